/**
 * PostgreSQL gives numbers to rows before their transactions commit. Who inserts a row with a number of the usage record
 * holds a lock on an empty table from before the number until the commit, and takes no other lock in between: no deadlock.
 * The tables themselves are not locked: their VACUUM would be waited for.
 */
import type { Sql } from './sql.ts'

/** For inserts into tables that share the row numbers. */
export function inserter({ db, lockRows }: Pick<Sql, 'db' | 'lockRows'>) {
  // A statement locks its tables before it runs.
  return lockRows ? db.with('numbered', (query) => query.deleteFrom('row_numbers')) : db
}
