/** Prepares the auditor's statements once per database. */
import type Sqlite from 'better-sqlite3'

const prepared = new WeakMap<Sqlite.Database, Map<string, Sqlite.Statement>>()

export function query(database: Sqlite.Database, sql: string): Sqlite.Statement {
  const statements = prepared.get(database) ?? new Map<string, Sqlite.Statement>()
  prepared.set(database, statements)
  const statement = statements.get(sql) ?? database.prepare(sql)
  statements.set(sql, statement)
  return statement
}

/** Rows written since the database was opened. */
export function changesOf(database: Sqlite.Database): bigint {
  return query(database, 'SELECT total_changes()').pluck().get() as bigint
}
