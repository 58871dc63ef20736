import { openSync, readFileSync, readSync } from 'node:fs'
import { randomUUID } from 'node:crypto'
import type { Clocks } from '../../runtime/clock-guard.ts'
import type { Timers } from '../../runtime/run-repeatedly.ts'

/** Includes suspend, which Node's monotonic clock excludes. Without /proc: the time since the process started. */
export function bootClock(): Pick<Clocks, 'sinceBoot' | 'bootId'> {
  const bootId = readBootId()
  try {
    uptime()
    if (bootId !== null) return { bootId, sinceBoot: uptime }
  } catch {
    // As without a boot id.
  }
  return { bootId: randomUUID(), sinceBoot: () => Math.round(performance.now()) }
}

export function readBootId(): string | null {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
  } catch {
    return null
  }
}

/** {@link readUptime}, for this long after it was read, ms: each request asks for the time. */
const READ_EVERY_MS = 5

let read = { at: -Infinity, uptime: 0 }

function uptime(): number {
  const at = performance.now()
  if (at - read.at >= READ_EVERY_MS) read = { at, uptime: readUptime() }
  return Math.round(read.uptime + at - read.at)
}

/** Stays open: a process that has used up its file descriptors still reads the time. */
let uptimeFile: number | undefined
const bytes = Buffer.alloc(64)

function readUptime(): number {
  uptimeFile ??= openSync('/proc/uptime', 'r')
  const text = bytes.toString('latin1', 0, readSync(uptimeFile, bytes, 0, bytes.length, 0))
  const ms = Math.round(Number.parseFloat(text) * 1_000)
  if (!Number.isSafeInteger(ms)) throw new Error('/proc/uptime does not begin with a number')
  return ms
}

export const systemTimers: Timers = {
  every(ms, call) {
    const timer = setInterval(() => void call(), ms)
    return () => clearInterval(timer)
  },
}
