import { randomUUID } from 'node:crypto'
import { type Uptime, openUptime, readBootId } from '../../../platform/uptime.ts'
import type { Clocks } from '../../runtime/clock-guard.ts'
import type { Timers } from '../../runtime/run-repeatedly.ts'

/** Includes suspend, which Node's monotonic clock excludes. Without /proc: the time since the process started. */
export function bootClock(): Pick<Clocks, 'sinceBoot' | 'bootId'> {
  try {
    uptime()
    return { bootId: readBootId(), sinceBoot: uptime }
  } catch {
    return { bootId: randomUUID(), sinceBoot: () => Math.round(performance.now()) }
  }
}

/** A reading is used for so long, ms: each request needs the time. */
const READ_EVERY_MS = 5

let file: Uptime | undefined
let read = { at: -Infinity, uptime: 0 }

function uptime(): number {
  const at = performance.now()
  if (at - read.at >= READ_EVERY_MS) {
    file ??= openUptime()
    read = { at, uptime: file.read() }
  }
  return Math.round(read.uptime + at - read.at)
}

export const systemTimers: Timers = {
  every(ms, call) {
    const timer = setInterval(() => void call(), ms)
    return () => clearInterval(timer)
  },
}
