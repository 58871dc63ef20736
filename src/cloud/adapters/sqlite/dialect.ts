/** Kysely over one connection of better-sqlite3. Prepared statements are kept: most requests run the same few. */
import { SqliteDialect, SqliteDriver } from 'kysely'
import type { Database } from './database.ts'

/** Prepared statements kept for each connection; inserts of many sizes have many texts. */
const STATEMENTS_MAX = 500

export class SingleConnectionDialect extends SqliteDialect {
  readonly #database: Database

  constructor(database: Database) {
    super({ database })
    this.#database = database
  }

  override createDriver(): SqliteDriver {
    const database = this.#database
    return new SqliteDriver({ database: { close: () => database.close(), prepare: keepStatements(database) } })
  }
}

function keepStatements(database: Database): Database['prepare'] {
  const kept = new Map<string, ReturnType<Database['prepare']>>()
  return ((sql: string) => {
    const known = kept.get(sql)
    if (known !== undefined) return known
    const statement = database.prepare(sql)
    if (kept.size >= STATEMENTS_MAX) kept.clear()
    kept.set(sql, statement)
    return statement
  }) as Database['prepare']
}
