import { accessSync, constants, existsSync } from 'node:fs'
import { dirname } from 'node:path'

/** Whether the file system of a directory is read-only, also for root. */
export function isReadOnly(directory: string): boolean {
  return codeOf(directory, constants.W_OK) === 'EROFS'
}

/** Why this user cannot use a database file; null: for another reason. SQLite reports an I/O error or a missing file. */
export function denialOf(path: string): string | null {
  if (isReadOnly(dirname(path))) return 'the file system is read-only'
  const first = existsSync(path) ? path : dirname(path)
  if (codeOf(first, constants.R_OK | constants.W_OK) !== 'EACCES') return null
  return `the user with the id ${process.geteuid?.() ?? 0} may not read and write ${first}`
}

function codeOf(path: string, mode: number): string | undefined {
  try {
    accessSync(path, mode)
    return undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code
  }
}
