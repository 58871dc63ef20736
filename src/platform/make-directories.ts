import { mkdirSync, statSync } from 'node:fs'
import { dirname } from 'node:path'

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

function isDirectory(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true
}
