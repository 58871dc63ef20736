/** Kysely over one connection of better-sqlite3. Prepared statements are kept: most requests run the same few. */
import { type CompiledQuery, type DatabaseConnection, type QueryResult, SqliteDialect, SqliteDriver } from 'kysely'
import { requireStorable } from '../sql/storable.ts'
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
    return new StorableDriver({ database: { close: () => database.close(), prepare: keepStatements(database) } })
  }
}

class StorableDriver extends SqliteDriver {
  override async acquireConnection(): Promise<DatabaseConnection> {
    const connection = await super.acquireConnection()
    return {
      async executeQuery<R>(query: CompiledQuery): Promise<QueryResult<R>> {
        requireStorable(query.parameters)
        return connection.executeQuery<R>(query)
      },
      streamQuery: (query, size) => connection.streamQuery(query, size),
    }
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
