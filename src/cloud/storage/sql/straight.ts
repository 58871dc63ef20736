import {
  type CompiledQuery,
  type DatabaseConnection,
  DefaultQueryExecutor,
  type Dialect,
  type Driver,
  Kysely,
  type QueryResult,
} from 'kysely'
import type { Tables } from './tables.ts'

/** The parts of a dialect, made once. */
export interface DialectParts {
  readonly dialect: Dialect
  readonly compiler: ReturnType<Dialect['createQueryCompiler']>
  readonly adapter: ReturnType<Dialect['createAdapter']>
  readonly driver: Driver
}

/** Kysely over one connection. Queries run directly, without a queue: in the order of the calls. */
export function straight(
  { dialect, compiler, adapter, driver }: DialectParts,
  connection: DatabaseConnection,
): Kysely<Tables> {
  const executor = new StraightExecutor(compiler, adapter, { provideConnection: (consumer) => consumer(connection) })
  return new Kysely<Tables>({ config: { dialect }, dialect, driver, executor })
}

class StraightExecutor extends DefaultQueryExecutor {
  override executeQuery<R>(query: CompiledQuery): Promise<QueryResult<R>> {
    return this.provideConnection((connection) => connection.executeQuery<R>(query))
  }
}
