import { accessSync, constants } from 'node:fs'

/** Whether the file system of a directory is read-only, also for root. SQLite reports it as an I/O error or a missing file. */
export function isReadOnly(directory: string): boolean {
  try {
    accessSync(directory, constants.W_OK)
    return false
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EROFS'
  }
}
