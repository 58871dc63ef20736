import type Database from 'better-sqlite3'

const statements = new WeakMap<Database.Database, Map<string, Database.Statement>>()

/** Prepared once for each connection. Integers are bigint. */
export function prepared(database: Database.Database, sql: string): Database.Statement {
  let known = statements.get(database)
  if (known === undefined) {
    known = new Map()
    statements.set(database, known)
  }
  let statement = known.get(sql)
  if (statement === undefined) {
    statement = database.prepare(sql).safeIntegers(true)
    known.set(sql, statement)
  }
  return statement
}
