import Database from 'better-sqlite3'

/** Codes of SQLite that say nothing about the content of the file. */
const PASSING = /^SQLITE_(FULL|IOERR|NOMEM|CANTOPEN|READONLY|BUSY)/

/** Whether the data may be readable later, for example when the disk has space again. */
export function isPassing(error: unknown): boolean {
  if (error instanceof Database.SqliteError) return PASSING.test(error.code)
  return (error as { readonly syscall?: unknown }).syscall !== undefined
}

/** Reads data, or replaces it if it is damaged. @throws an error that {@link isPassing} */
export function unlessDamaged<T, O>(otherwise: O, read: () => T): T | O {
  try {
    return read()
  } catch (error) {
    if (isPassing(error)) throw error
    return otherwise
  }
}
