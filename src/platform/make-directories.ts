import { mkdirSync, statSync } from 'node:fs'
import { dirname } from 'node:path'

/**
 * Creates a directory with its missing parents, and returns the first one that it created. Node's recursive `mkdir` never ends
 * in a directory that accepts no entries, such as /proc.
 */
export function makeDirectories(path: string, mode = 0o777): string | undefined {
  if (isDirectory(path)) return undefined
  const parent = dirname(path)
  const first = parent === path ? undefined : makeDirectories(parent, mode)
  try {
    mkdirSync(path, { mode })
  } catch (error) {
    // Another process may have made it.
    if (!isDirectory(path)) throw error
    return first
  }
  return first ?? path
}

function isDirectory(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true
}
