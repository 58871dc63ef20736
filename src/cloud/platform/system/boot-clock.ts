/** Time since boot including suspend, which Node's monotonic clock excludes. */
import { readFileSync } from 'node:fs'
import { randomUUID } from 'node:crypto'
import type { Clocks } from '../../runtime/clock-guard.ts'

/** Without /proc: the time since the process started. */
export function bootClock(): Pick<Clocks, 'sinceBoot' | 'bootId'> {
  try {
    const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
    uptime()
    return { bootId, sinceBoot: uptime }
  } catch {
    return { bootId: randomUUID(), sinceBoot: () => Math.round(performance.now()) }
  }
}

function uptime(): number {
  const ms = Math.round(Number.parseFloat(readFileSync('/proc/uptime', 'latin1')) * 1_000)
  if (!Number.isSafeInteger(ms)) throw new Error('/proc/uptime does not begin with a number')
  return ms
}
