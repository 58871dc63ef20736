/** The files of a SQLite database. */
import { statSync } from 'node:fs'

/** Length of an empty write-ahead log. */
const LOG_HEADER_BYTES = 32

export function holdsFrames(path: string): boolean {
  return (sizeOf(`${path}-wal`) ?? 0) > LOG_HEADER_BYTES
}

export function sizeOf(path: string): number | undefined {
  return statSync(path, { throwIfNoEntry: false })?.size
}
