/** The wall clock, and the time since boot including suspend, which Node's monotonic clock excludes. */
import { type Uptime, openUptime, readBootId } from '../../../platform/uptime.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { TimeSource } from '../../runtime/clock.ts'

/** A cached boot-time reading is valid this long, ms; suspend may pass between two readings. */
const GOOD_FOR_MS = 1

export interface OpenTimeSource extends TimeSource {
  close(): void
}

/** @throws CodedError SYSTEM_UNSUPPORTED without /proc */
export function openTimeSource(): OpenTimeSource {
  let uptime: Uptime
  let bootId: string
  try {
    bootId = readBootId()
    uptime = openUptime()
  } catch (cause) {
    throw new CodedError(
      'SYSTEM_UNSUPPORTED',
      'The time since boot cannot be read from /proc. Mount /proc and start again.',
      { cause },
    )
  }
  let readAt = -Infinity
  let reading = 0
  return {
    bootId,
    wall: () => Date.now(),
    sinceBoot() {
      const now = performance.now()
      if (now - readAt >= GOOD_FOR_MS) {
        reading = uptime.read()
        readAt = now
      }
      return reading
    },
    close: () => uptime.close(),
  }
}
