import Database from 'better-sqlite3'

/** Of SQLite, which say nothing of what a file contains. */
const PASSING = /^SQLITE_(FULL|IOERR|NOMEM|CANTOPEN|READONLY|BUSY)/

/** Of a full disk, for example: an error after which the data may be read again. */
export function isPassing(error: unknown): boolean {
  if (error instanceof Database.SqliteError) return PASSING.test(error.code)
  return (error as { readonly syscall?: unknown }).syscall !== undefined
}

/** Replaces data that cannot be read. @throws {@link isPassing} */
export function unlessDamaged<T, O>(otherwise: O, read: () => T): T | O {
  try {
    return read()
  } catch (error) {
    if (isPassing(error)) throw error
    return otherwise
  }
}
