import { dirname, resolve } from 'node:path'
import { flush } from '../../../platform/flush.ts'
import { makeDirectories } from '../../../platform/make-directories.ts'

/** Creates a directory and its parents for the owner only, unless it exists. Flushes files left by a killed process. */
export function makeDurableDirectory(path: string): void {
  const first = makeDirectories(path, 0o700)
  flush(path)
  if (first === undefined) return
  const above = dirname(resolve(first))
  for (let made = resolve(path); made !== above; made = dirname(made)) flush(dirname(made))
}
