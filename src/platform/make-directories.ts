import { mkdirSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { flush } from './flush.ts'

/** Returns the first new directory. Node's recursive `mkdir` never ends where no entry can be made, as in /proc. */
export function makeDirectories(path: string, mode = 0o777): string | undefined {
  if (isDirectory(path)) return undefined
  const parent = dirname(path)
  const first = parent === path ? undefined : makeDirectories(parent, mode)
  try {
    mkdirSync(path, { mode })
  } catch (error) {
    if (!isDirectory(path)) throw error
    return first
  }
  return first ?? path
}

/** Creates a directory and its parents for the owner only, unless it exists. */
export function makeDurableDirectory(path: string): void {
  const first = makeDirectories(path, 0o700)
  if (first === undefined) return
  const above = dirname(resolve(first))
  for (let made = resolve(path); made !== above; made = dirname(made)) flush(dirname(made))
}

function isDirectory(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true
}
