/**
 * PostgreSQL gives numbers to rows before their transactions commit. A transaction that inserts into the tables with shared
 * row numbers locks an empty table before it gets a number, and until it commits. It takes no other lock after that, so that
 * no deadlock is possible. A lock on the tables themselves would wait for their VACUUM.
 */
import type { Sql } from './sql.ts'

/** For inserts into tables that share the row numbers. */
export function inserter({ db, lockRows }: Pick<Sql, 'db' | 'lockRows'>) {
  // A statement locks its tables before it runs.
  return lockRows ? db.with('numbered', (query) => query.deleteFrom('row_numbers')) : db
}
