import {
  type Compilable,
  type CompiledQuery,
  type DatabaseConnection,
  DefaultQueryExecutor,
  type Dialect,
  type Driver,
  Kysely,
  type KyselyProps,
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
  return new StraightKysely({ config: { dialect }, dialect, driver, executor }, connection)
}

class StraightExecutor extends DefaultQueryExecutor {
  override executeQuery<R>(query: CompiledQuery): Promise<QueryResult<R>> {
    return this.provideConnection((connection) => connection.executeQuery<R>(query))
  }
}

/** Most statements are compiled once: they skip the steps that Kysely takes with each query. */
class StraightKysely extends Kysely<Tables> {
  readonly #connection: DatabaseConnection

  constructor(props: KyselyProps, connection: DatabaseConnection) {
    super(props)
    this.#connection = connection
  }

  override executeQuery<R>(query: CompiledQuery<R> | Compilable<R>): Promise<QueryResult<R>> {
    return this.#connection.executeQuery<R>('compile' in query ? query.compile() : query)
  }
}
