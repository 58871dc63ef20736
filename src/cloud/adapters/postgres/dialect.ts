/**
 * Kysely over the pool. Knows of each transaction how far it came: one whose connection fails before COMMIT was sent has
 * changed nothing, one whose COMMIT was not answered may have. A connection that failed leaves the pool. Nobody waits for
 * an answer that tells nothing: BEGIN and what only writes go ahead of the next statement, and what they fail with is the
 * failure of whatever comes next, at the latest of the commit. Nothing is written before BEGIN was answered.
 */
import {
  AbortedTransactionError,
  type Compilable,
  type CompiledQuery,
  type DatabaseConnection,
  DeleteQueryNode,
  type Driver,
  InsertQueryNode,
  type Kysely,
  PostgresDialect,
  type QueryResult,
  SelectQueryNode,
  type TransactionSettings,
  UpdateQueryNode,
} from 'kysely'
import type pg from 'pg'
import type { Sql } from '../sql/sql.ts'
import { requireStorable } from '../sql/storable.ts'
import type { Tables } from '../sql/tables.ts'
import { CommitUnanswered, ConnectionLost, NotConnected, endsConnection, isStalePlan, messageOf } from './failures.ts'
import type { Limits } from './limits.ts'
import type { Pool } from './pool.ts'

/** Texts that are given names; others are parsed each time. */
const NAMES_MAX = 300

/** Longer ones come in too many shapes to be kept by the server. */
const NAMED_LENGTH_MAX = 10_000

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
  readonly #texts = new Texts()

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
    const connection = new Connection(client, this.#texts)
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
    connection.begin(accessMode === 'read only' ? 'READ' : 'WRITE')
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
  readonly #texts: Texts
  readonly #onError = (): void => {
    this.#lost = true
  }
  #lost = false
  #purpose: 'READ' | 'WRITE' = 'WRITE'
  #begun: Promise<void> = Promise.resolve()
  /** Of the transaction that writes. */
  #xid: string | null = null
  /** Resolves when all statements that were sent ahead are answered, whatever the answers are. */
  #ahead: Promise<unknown> = Promise.resolve()
  /** What those of them that failed have failed with, the first one first. */
  readonly #failures: unknown[] = []

  constructor(client: pg.PoolClient, texts: Texts) {
    this.#client = client
    this.#texts = texts
    client.on('error', this.#onError)
  }

  async run(text: string): Promise<pg.QueryResult> {
    return this.#guard(() => this.#client.query(text))
  }

  async executeQuery<R>({ sql, parameters, query }: CompiledQuery): Promise<QueryResult<R>> {
    requireStorable(parameters)
    const locks = sentAhead.has(query)
    // Without a transaction around it, what is written would be there at once and for good.
    if (!locks && !SelectQueryNode.is(query)) await this.#begun
    const answer = this.#guard(() => this.#client.query({ ...this.#texts.named(sql), values: [...parameters] }))
    if (locks || onlyWrites(query)) {
      const told = answer.then(
        ({ rows }) => answered.get(query)?.(rows),
        (cause: unknown) => void this.#failures.push(cause),
      )
      this.#ahead = Promise.all([this.#ahead, told])
      return { rows: [] }
    }
    // What was sent ahead is answered first, and tells better why this one has failed too.
    const [, , outcome] = await Promise.all([this.#begun, this.#ahead, settled(answer)])
    if (this.#failures.length > 0) throw this.#failures[0]
    const { rows, rowCount } = outcome()
    return { rows: rows as R[], ...(rowCount === null ? {} : { numAffectedRows: BigInt(rowCount) }) }
  }

  async *streamQuery(): AsyncIterableIterator<never> {
    yield* []
    throw new Error('invariant: nobody reads this store as a stream')
  }

  begin(purpose: 'READ' | 'WRITE'): void {
    this.#purpose = purpose
    this.#begun = this.#begin(purpose)
    // Heard by whoever comes next.
    this.#begun.catch(() => undefined)
  }

  async #begin(purpose: 'READ' | 'WRITE'): Promise<void> {
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
    if (this.#purpose === 'READ') {
      // It has changed nothing: whoever gets the connection next need not know how it ended.
      this.run('COMMIT').catch(() => undefined)
      return
    }
    // Without the id of the transaction nobody could ask what became of it.
    await this.#begun
    if (this.#failures.length > 0) throw this.#failures[0]
    const answer = await settled(this.run('COMMIT'))
    await this.#ahead
    // What the server has refused is rolled back. A connection that was lost says nothing of a commit that was sent.
    const refusals = this.#failures.filter((failure) => !(failure instanceof ConnectionLost))
    if (refusals.length > 0) throw refusals[0]
    let command: string
    try {
      command = answer().command
    } catch (error) {
      throw error instanceof ConnectionLost && this.#xid !== null ? new CommitUnanswered(this.#xid, error.cause) : error
    }
    if (command !== 'ROLLBACK') return
    if (this.#failures.length > 0) throw this.#failures[0]
    throw new AbortedTransactionError()
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
      if (silent || endsConnection(cause) || isStalePlan(cause)) this.#lost = true
      if (this.#lost) throw new ConnectionLost(messageOf(cause), { cause })
      throw cause
    }
  }
}

const sentAhead = new WeakSet<CompiledQuery['query']>()

/**
 * Marks a statement that only locks, and whose answer tells nothing: it is sent before BEGIN is answered, and the next one
 * without waiting for it.
 */
export function sendAhead(query: CompiledQuery): CompiledQuery {
  sentAhead.add(query.query)
  return query
}

/** Who wants the rows of a statement that was sent ahead. */
const answered = new WeakMap<CompiledQuery['query'], (rows: readonly unknown[]) => void>()

/**
 * Sends queries that lock what they read, and tells their rows. They are there as soon as the next statement is answered:
 * where this one has failed, so has that.
 */
export function aheadOn(db: Kysely<Tables>): NonNullable<Sql['ahead']> {
  return async <R>(query: Compilable<R>) => {
    const compiled = sendAhead(query.compile())
    let rows: readonly R[] | undefined
    answered.set(compiled.query, (told) => (rows = told as readonly R[]))
    await db.executeQuery(compiled)
    return () => {
      if (rows === undefined) throw new Error('invariant: a later statement was answered')
      return rows
    }
  }
}

/** Texts that the server has parsed are known to it by name, on each connection. */
class Texts {
  readonly #names = new Map<string, string>()

  named(text: string): { readonly text: string; readonly name?: string } {
    const known = this.#names.get(text)
    if (known !== undefined) return { text, name: known }
    if (this.#names.size >= NAMES_MAX || text.length > NAMED_LENGTH_MAX) return { text }
    const name = `t${this.#names.size}`
    this.#names.set(text, name)
    return { text, name }
  }
}

/** Its answer tells nothing but that it went well. */
function onlyWrites(query: CompiledQuery['query']): boolean {
  return (
    (InsertQueryNode.is(query) || UpdateQueryNode.is(query) || DeleteQueryNode.is(query)) &&
    query.returning === undefined
  )
}

/** Waits without failing; the failure is thrown by what comes out. */
async function settled<T>(answer: Promise<T>): Promise<() => T> {
  try {
    const value = await answer
    return () => value
  } catch (error) {
    return () => {
      throw error
    }
  }
}
