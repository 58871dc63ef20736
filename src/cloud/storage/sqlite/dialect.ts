/** Kysely over one better-sqlite3 connection, with cached prepared statements. */
import {
  type CompiledQuery,
  type DatabaseConnection,
  type Kysely,
  type QueryResult,
  SqliteDialect,
  SqliteQueryCompiler,
} from 'kysely'
import { requireStorable } from '../sql/sql.ts'
import { straight } from '../sql/straight.ts'
import type { GiveWay } from '../../runtime/give-way.ts'
import type { Tables } from '../sql/tables.ts'
import type { Database } from './database.ts'

/** Prepared statements per connection; bulk inserts have many texts. */
const STATEMENTS_MAX = 500

/**
 * Hides the values of parameters from the planner. SQLite parses and plans a statement again at each execution if the plan
 * may depend on one, as with LIMIT and with ORDER BY. Conditions of partial indexes must therefore be literals.
 */
export class StablePlans extends SqliteQueryCompiler {
  protected override getCurrentParameterPlaceholder(): string {
    return '+?'
  }
}

/** For a connection whose caller serializes transactions and queries: queries run directly, without a queue. */
export function withoutQueue(database: Database, giveWay: GiveWay): Kysely<Tables> {
  const dialect = new SqliteDialect({ database })
  const prepare = keepStatements(database)
  const connection: DatabaseConnection = {
    executeQuery: async <R>({ sql, parameters }: CompiledQuery) => {
      const pause = giveWay()
      if (pause !== undefined) await pause
      return answerTo<R>(prepare(sql), parameters)
    },
    streamQuery: () => {
      throw new Error('streaming is not supported')
    },
  }
  const [compiler, adapter, driver] = [new StablePlans(), dialect.createAdapter(), dialect.createDriver()]
  return straight({ dialect, compiler, adapter, driver }, connection)
}

function answerTo<R>(statement: Statement, parameters: readonly unknown[]): QueryResult<R> {
  requireStorable(parameters)
  if (statement.reader) return { rows: statement.all(parameters) as R[] }
  const { changes, lastInsertRowid } = statement.run(parameters)
  return { rows: [], numAffectedRows: BigInt(changes), insertId: BigInt(lastInsertRowid) }
}

type Statement = ReturnType<Database['prepare']>

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
