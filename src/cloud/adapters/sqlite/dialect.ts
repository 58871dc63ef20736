/**
 * Kysely over one connection of better-sqlite3. A transaction takes the write lock when it begins, so that what it reads
 * still holds when it writes. Prepared statements are kept: most requests run the same few.
 */
import { CompiledQuery, type DatabaseConnection, SqliteDialect, SqliteDriver } from 'kysely'
import type { Database } from './database.ts'

/** Prepared statements kept for each connection; inserts of many sizes have many texts. */
const STATEMENTS_MAX = 500

export class SingleConnectionDialect extends SqliteDialect {
  readonly #database: Database
  readonly #begin: 'BEGIN' | 'BEGIN IMMEDIATE'

  constructor(database: Database, begin: 'BEGIN' | 'BEGIN IMMEDIATE') {
    super({ database })
    this.#database = database
    this.#begin = begin
  }

  override createDriver(): SqliteDriver {
    return new Driver(this.#database, this.#begin)
  }
}

class Driver extends SqliteDriver {
  readonly #database: Database
  readonly #begin: string

  constructor(database: Database, begin: string) {
    super({ database: { close: () => database.close(), prepare: keepStatements(database) } })
    this.#database = database
    this.#begin = begin
  }

  override async beginTransaction(connection: DatabaseConnection): Promise<void> {
    await connection.executeQuery(CompiledQuery.raw(this.#begin))
  }

  /** After a failure such as a full disk SQLite may have rolled back by itself. */
  override async rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    if (this.#database.inTransaction) await super.rollbackTransaction(connection)
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
