import { closeSync, fsyncSync, openSync } from 'node:fs'

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
