import { closeSync, openSync, readFileSync, readSync } from 'node:fs'

export interface Uptime {
  /** Time since boot including suspend, which Node's monotonic clock excludes, ms. */
  read(): number
  close(): void
}

/** @throws without /proc */
export function readBootId(): string {
  return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
}

/** The file stays open: a process that has used up its file descriptors still reads the time. @throws without /proc */
export function openUptime(): Uptime {
  const file = openSync('/proc/uptime', 'r')
  const bytes = Buffer.alloc(64)
  return {
    read() {
      const text = bytes.toString('latin1', 0, readSync(file, bytes, 0, bytes.length, 0))
      const ms = Math.round(Number.parseFloat(text) * 1_000)
      if (!Number.isSafeInteger(ms)) throw new Error('/proc/uptime does not begin with a number')
      return ms
    },
    close: () => closeSync(file),
  }
}
