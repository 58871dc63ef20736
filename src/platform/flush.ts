import { closeSync, fsyncSync, openSync } from 'node:fs'

/** A flush this fast, ms, takes less time than to begin it beside the thread and to learn of its end. */
export const FAST_FLUSH_MS = 1

/**
 * Makes a file, or the names in a directory, survive a power cut. Not for an open SQLite database: closing it would drop
 * this process's locks.
 */
export function flush(path: string): void {
  const file = openSync(path, 'r')
  try {
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}
