/** Directories that are still there after a power cut, with all that is flushed in them. */
import { closeSync, fsyncSync, mkdirSync, openSync } from 'node:fs'
import { dirname, resolve } from 'node:path'

/**
 * Makes a directory for its owner only, with those above it, unless it is there. What a process that was killed has put
 * into it is flushed, too: it may be used from here on.
 */
export function makeDurableDirectory(path: string): void {
  const first = mkdirSync(path, { recursive: true, mode: 0o700 })
  flush(path)
  if (first === undefined) return
  const above = dirname(resolve(first))
  for (let made = resolve(path); made !== above; made = dirname(made)) flush(dirname(made))
}

function flush(path: string): void {
  const directory = openSync(path, 'r')
  try {
    fsyncSync(directory)
  } finally {
    closeSync(directory)
  }
}
