// Readers and transactions of one SQLite connection, which the test can ask beside them.
import type Sqlite from 'better-sqlite3'
import { Kysely, SqliteDialect } from 'kysely'
import { FleetFigures } from '../../../src/cloud/storage/sql/fleet-figures.ts'
import { ALONE, type Sql } from '../../../src/cloud/storage/sql/sql.ts'
import type { Tables } from '../../../src/cloud/storage/sql/tables.ts'
import { StablePlans } from '../../../src/cloud/storage/sqlite/dialect.ts'

export interface Query {
  readonly sql: string
  readonly parameters: readonly unknown[]
}

export function sqlOver(database: Sqlite.Database, onQuery: (query: Query) => void = () => undefined): Sql {
  const db = new Kysely<Tables>({
    dialect: Object.assign(new SqliteDialect({ database }), { createQueryCompiler: () => new StablePlans() }),
    log: ({ query }) => {
      onQuery(query)
    },
  })
  return { db, lockRows: false, rules: ALONE, fleet: new FleetFigures(), ahead: null, shrink: null }
}
