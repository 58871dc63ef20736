/**
 * The machine's clocks: the wall clock, and the time since boot with suspend included, which Node's own monotonic clock
 * leaves out.
 */
import { closeSync, openSync, readFileSync, readSync } from 'node:fs'
import { CodedError } from '../../../protocol/errors.ts'
import type { TimeSource } from '../../app/clock.ts'

/** A reading is good for so much time of the running process, ms: time in suspend passes between two of them. */
const GOOD_FOR_MS = 1

export interface OpenTimeSource extends TimeSource {
  close(): void
}

/** @throws CodedError SYSTEM_UNSUPPORTED where the system has no /proc */
export function openTimeSource(): OpenTimeSource {
  let uptime: number
  let bootId: string
  try {
    bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
    uptime = openSync('/proc/uptime', 'r')
  } catch (cause) {
    throw new CodedError('SYSTEM_UNSUPPORTED', '/proc does not tell the time since boot.', { cause })
  }
  const bytes = Buffer.alloc(32)
  let readAt = -Infinity
  let reading = 0
  return {
    bootId,
    wall: () => Date.now(),
    sinceBoot() {
      const now = performance.now()
      if (now - readAt >= GOOD_FOR_MS) {
        const text = bytes.toString('latin1', 0, readSync(uptime, bytes, 0, bytes.length, 0))
        reading = Math.round(Number.parseFloat(text) * 1000)
        readAt = now
      }
      return reading
    },
    close: () => closeSync(uptime),
  }
}
