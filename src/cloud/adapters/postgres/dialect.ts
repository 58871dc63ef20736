/**
 * Kysely over the pool. Knows of each transaction how far it came: one whose connection fails before COMMIT was sent has
 * changed nothing, one whose COMMIT was not answered may have. A connection that failed leaves the pool.
 */
import {
  AbortedTransactionError,
  type CompiledQuery,
  type DatabaseConnection,
  type Driver,
  PostgresDialect,
  type QueryResult,
  type TransactionSettings,
} from 'kysely'
import type pg from 'pg'
import { CommitUnanswered, ConnectionLost, NotConnected, endsConnection, messageOf } from './failures.ts'
import type { Limits } from './limits.ts'
import type { Pool } from './pool.ts'

export class PoolDialect extends PostgresDialect {
  readonly #pool: Pool
  readonly #limits: Limits

  constructor(pool: Pool, limits: Limits) {
    super({ pool })
    this.#pool = pool
    this.#limits = limits
  }

  override createDriver(): PoolDriver {
    return new PoolDriver(this.#pool, sessionSettings(this.#limits))
  }
}

/** The pool is its owner's: the driver never ends it. */
class PoolDriver implements Driver {
  readonly #pool: Pool
  readonly #settings: string
  readonly #prepared = new WeakSet<pg.PoolClient>()

  /** @param settings SQL that each new connection runs first */
  constructor(pool: Pool, settings: string) {
    this.#pool = pool
    this.#settings = settings
  }

  async init(): Promise<void> {
    // Connections are made when they are needed.
  }

  async acquireConnection(): Promise<Connection> {
    let client: pg.PoolClient
    try {
      client = await this.#pool.connect()
    } catch (cause) {
      throw new NotConnected('no connection', { cause })
    }
    const connection = new Connection(client)
    if (!this.#prepared.has(client)) {
      try {
        await connection.run(this.#settings)
      } catch (cause) {
        connection.release(true)
        throw new NotConnected('a new connection did not take its settings', { cause })
      }
      this.#prepared.add(client)
    }
    return connection
  }

  async beginTransaction(connection: Connection, { accessMode }: TransactionSettings): Promise<void> {
    await connection.begin(accessMode === 'read only' ? 'READ' : 'WRITE')
  }

  async commitTransaction(connection: Connection): Promise<void> {
    await connection.commit()
  }

  /** Never throws: what made the transaction fail is what the caller must hear. */
  async rollbackTransaction(connection: Connection): Promise<void> {
    await connection.rollback()
  }

  async releaseConnection(connection: Connection): Promise<void> {
    connection.release()
  }

  async destroy(): Promise<void> {
    // See above.
  }
}

/**
 * Limits of each wait, and a commit that is on the disk before it is answered, whatever the server's own defaults are. A
 * server that does more than that for a commit, such as waiting for a standby, goes on doing so.
 */
function sessionSettings({ statementTimeoutMs, lockTimeoutMs, silenceTimeoutMs }: Limits): string {
  return `
    SELECT set_config('statement_timeout', '${statementTimeoutMs}', false),
      set_config('lock_timeout', '${lockTimeoutMs}', false),
      set_config('idle_in_transaction_session_timeout', '${silenceTimeoutMs}', false),
      CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END`
}

/**
 * Readers see one state. In what writes, each statement sees what was committed before it began, so that a row that is read
 * after it was locked is the last word on it; the id of the transaction is for the case that its commit is not answered.
 */
const BEGIN = {
  READ: 'BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY',
  WRITE: 'BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_current_xact_id()::text AS xid',
}

class Connection implements DatabaseConnection {
  readonly #client: pg.PoolClient
  readonly #onError = (): void => {
    this.#lost = true
  }
  #lost = false
  /** Of the transaction that writes. */
  #xid: string | null = null

  constructor(client: pg.PoolClient) {
    this.#client = client
    client.on('error', this.#onError)
  }

  async run(text: string): Promise<pg.QueryResult> {
    return this.#guard(() => this.#client.query(text))
  }

  async executeQuery<R>({ sql, parameters }: CompiledQuery): Promise<QueryResult<R>> {
    const { rows, rowCount } = await this.#guard(() => this.#client.query(sql, [...parameters]))
    return { rows: rows as R[], ...(rowCount === null ? {} : { numAffectedRows: BigInt(rowCount) }) }
  }

  async *streamQuery(): AsyncIterableIterator<never> {
    yield* []
    throw new Error('invariant: nobody reads this store as a stream')
  }

  async begin(purpose: 'READ' | 'WRITE'): Promise<void> {
    try {
      const results = await this.run(BEGIN[purpose])
      const [, second] = [results].flat() as readonly pg.QueryResult<{ xid: string }>[]
      this.#xid = second?.rows[0]?.xid ?? null
    } catch (cause) {
      // A server that begins nothing, a standby for one, is of no use whatever its reason: the next connection may be.
      this.#lost = true
      throw cause instanceof ConnectionLost ? cause : new ConnectionLost(messageOf(cause), { cause })
    }
  }

  async commit(): Promise<void> {
    let command: string
    try {
      command = (await this.run('COMMIT')).command
    } catch (error) {
      throw error instanceof ConnectionLost && this.#xid !== null ? new CommitUnanswered(this.#xid, error.cause) : error
    }
    if (command === 'ROLLBACK') throw new AbortedTransactionError()
  }

  async rollback(): Promise<void> {
    if (this.#lost) return
    try {
      await this.run('ROLLBACK')
    } catch {
      this.#lost = true
    }
  }

  /** @param discard never to be used again, even though it works */
  release(discard = false): void {
    this.#client.off('error', this.#onError)
    this.#client.release(discard || this.#lost)
  }

  async #guard<T>(query: () => Promise<T>): Promise<T> {
    try {
      return await query()
    } catch (cause) {
      // The driver's own limit of time leaves a question on the way: whoever came next would read its answer.
      const silent = cause instanceof Error && cause.message === 'Query read timeout'
      if (silent || endsConnection(cause)) this.#lost = true
      if (this.#lost) throw new ConnectionLost(messageOf(cause), { cause })
      throw cause
    }
  }
}
