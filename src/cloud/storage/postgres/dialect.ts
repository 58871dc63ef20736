/**
 * Kysely over the pool. Tracks each transaction: if its connection fails before COMMIT is sent, nothing changed; after that,
 * it may have. Failed connections leave the pool. BEGIN and pure writes are pipelined: their failure surfaces with a later
 * statement, at the latest with the commit. Nothing is written before BEGIN succeeds.
 */
import {
  AbortedTransactionError,
  type Compilable,
  type CompiledQuery,
  type DatabaseConnection,
  DeleteQueryNode,
  InsertQueryNode,
  type Kysely,
  PostgresDialect,
  type QueryResult,
  SelectQueryNode,
  UpdateQueryNode,
} from 'kysely'
import type { Duplex } from 'node:stream'
import type pg from 'pg'
import { CodedError } from '../../../protocol/errors.ts'
import { type Sql, requireStorable } from '../sql/sql.ts'
import { straight } from '../sql/straight.ts'
import type { Tables } from '../sql/tables.ts'
import {
  CommitUnanswered,
  ConnectionLost,
  endsConnection,
  endsWait,
  isStalePlan,
  databaseMessageOf,
} from './failures.ts'
import type { Pool, PooledConnection } from './pool.ts'

/** Maximum named statements; others are parsed each time. */
const NAMES_MAX = 300

/** Longer texts vary too much to be prepared. */
const NAMED_LENGTH_MAX = 10_000

/**
 * Runs transactions, each on a connection of the pool. Their statements are sent at once, in the order of the calls.
 * @param requiresStandby whether a write begins only if its commit will wait for a standby
 */
export function transactionsOver(pool: Pool, requiresStandby: boolean) {
  const dialect = new PostgresDialect({
    pool: () => Promise.reject(new Error('invariant: the connections come from the pool of the store')),
  })
  const parts = {
    dialect,
    compiler: dialect.createQueryCompiler(),
    adapter: dialect.createAdapter(),
    driver: dialect.createDriver(),
  }
  const texts = new Texts()
  return async <T>(purpose: 'READ' | 'WRITE', work: (db: Kysely<Tables>) => Promise<T>): Promise<T> => {
    const connection = new Connection(await pool.connect(), texts)
    try {
      connection.begin(purpose, requiresStandby)
      const result = await work(straight(parts, connection))
      await connection.commit()
      return result
    } catch (error) {
      // Never throws: the caller must receive the transaction's own failure.
      await connection.rollback()
      throw error
    } finally {
      connection.release()
    }
  }
}

/** Whether PostgreSQL confirms a commit only when a standby has it. */
export const WAITS =
  "current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_apply')"

/**
 * Readers see one snapshot. In write transactions, each statement sees everything committed before it began, so a row read
 * after locking is current. They leave READ WRITE out, so that a server may be made read-only. The transaction id serves to look up an unanswered commit.
 */
const BEGIN = {
  READ: 'BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY',
  WRITE: `BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_current_xact_id()::text AS xid, ${WAITS} AS waits`,
}

/** One transaction on a connection. */
class Connection implements DatabaseConnection {
  readonly #client: pg.PoolClient
  readonly #serverRun: string
  readonly #leaveHost: () => void
  readonly #leaveIfNotWaiting: (waits: boolean) => boolean
  readonly #texts: Texts
  readonly #onError = (): void => {
    this.#lost = true
  }
  readonly #onNotice = (notice: { readonly routine?: string | undefined }): void => {
    this.#waitEnded ||= endsWait(notice)
  }
  #lost = false
  #isOver = false
  #isCorked = false
  /** Whether a commit did not wait for its standby to the end. */
  #waitEnded = false
  #purpose: 'READ' | 'WRITE' = 'WRITE'
  /** Whether the transaction began while PostgreSQL waited for a standby. */
  #didWait = false
  #begun: Promise<void> = Promise.resolve()
  /** Id of the write transaction. */
  #xid: string | null = null
  /** Resolves when all pipelined statements are answered, successfully or not. */
  #ahead: Promise<unknown> = Promise.resolve()
  /** Failures of statements, in order. */
  readonly #failures: unknown[] = []

  constructor({ client, serverRun, leaveHost, leaveIfNotWaiting }: PooledConnection, texts: Texts) {
    this.#client = client
    this.#serverRun = serverRun
    this.#leaveHost = leaveHost
    this.#leaveIfNotWaiting = leaveIfNotWaiting
    this.#texts = texts
    client.on('error', this.#onError)
    client.on('notice', this.#onNotice)
  }

  /** Statements of one turn of the event loop leave in one packet. */
  async #send(query: pg.QueryConfig): Promise<pg.QueryResult> {
    const { stream } = (this.#client as unknown as { readonly connection: { readonly stream: Duplex } }).connection
    if (!this.#isCorked) {
      this.#isCorked = true
      stream.cork()
      process.nextTick(() => {
        this.#isCorked = false
        stream.uncork()
      })
    }
    try {
      return await this.#client.query(query)
    } catch (cause) {
      // After the driver's timeout, the response is still pending and would go to the next statement.
      const silent = cause instanceof Error && cause.message === 'Query read timeout'
      if (silent) this.#leaveHost()
      if (silent || endsConnection(cause) || isStalePlan(cause)) this.#lost = true
      if (this.#lost) throw new ConnectionLost(databaseMessageOf(cause), { cause })
      throw cause
    }
  }

  async executeQuery<R>({ sql, parameters, query }: CompiledQuery): Promise<QueryResult<R>> {
    requireStorable(parameters)
    const locks = sentAhead.has(query)
    // Outside a transaction, a write would be permanent at once.
    if (!locks && !SelectQueryNode.is(query)) await this.#begun
    // It would run alone, or in the next transaction of the connection.
    if (this.#isOver) throw new Error('invariant: a statement comes before the end of its transaction')
    const answer = this.#send({ ...this.#texts.named(sql), values: [...parameters] })
    if (locks || onlyWrites(query)) {
      const received = answer.then(
        ({ rows }) => answered.get(query)?.(rows),
        (cause: unknown) => void this.#failures.push(cause),
      )
      this.#ahead = Promise.all([this.#ahead, received])
      return { rows: [] }
    }
    const noted = answer.catch((cause: unknown) => {
      this.#failures.push(cause)
      throw cause
    })
    // Earlier failures explain this one better.
    const [, , outcome] = await Promise.all([this.#begun, this.#ahead, settled(noted)])
    if (this.#failures.length > 0) throw this.#failures[0]
    const { rows, rowCount } = outcome()
    return { rows: rows as R[], ...(rowCount === null ? {} : { numAffectedRows: BigInt(rowCount) }) }
  }

  async *streamQuery(): AsyncIterableIterator<never> {
    yield* []
    throw new Error('invariant: this store is not read as a stream')
  }

  begin(purpose: 'READ' | 'WRITE', requiresStandby: boolean): void {
    this.#purpose = purpose
    this.#begun = this.#begin(purpose, requiresStandby)
    // Reported to the next statement.
    this.#begun.catch(() => undefined)
  }

  async #begin(purpose: 'READ' | 'WRITE', requiresStandby: boolean): Promise<void> {
    let begun: { readonly xid: string; readonly waits: boolean } | undefined
    try {
      const results = await this.#send({ text: BEGIN[purpose] })
      const [, second] = [results].flat() as readonly pg.QueryResult<NonNullable<typeof begun>>[]
      begun = second?.rows[0]
    } catch (cause) {
      // A server that refuses BEGIN is useless: drop the connection.
      this.#lost = true
      throw cause instanceof ConnectionLost ? cause : new ConnectionLost(databaseMessageOf(cause), { cause })
    }
    if (begun === undefined) return
    this.#xid = begun.xid
    this.#didWait = begun.waits
    if (this.#leaveIfNotWaiting(begun.waits)) {
      this.#lost = true
      throw new ConnectionLost('PostgreSQL does not wait for its standby any more')
    }
    if (requiresStandby && !begun.waits) {
      throw new CodedError('DATABASE_WITHOUT_STANDBY', 'PostgreSQL would not wait for a standby before it confirms.')
    }
  }

  async commit(): Promise<void> {
    this.#isOver = true
    if (this.#purpose === 'READ') {
      // A read-only transaction: its end does not matter.
      this.#send({ text: 'COMMIT' }).catch(() => undefined)
      return
    }
    // The transaction id is needed to look up the commit's outcome.
    await this.#begun
    if (this.#failures.length > 0) throw this.#failures[0]
    const committed = settled(this.#send({ text: 'COMMIT' }))
    const waited = this.#didWait ? this.#waitsStill() : true
    const answer = await committed
    await this.#ahead
    // A server error means rollback. A lost connection leaves a sent commit unknown.
    const refusals = this.#failures.filter((failure) => !(failure instanceof ConnectionLost))
    if (refusals.length > 0) throw refusals[0]
    let command: string
    try {
      command = answer().command
    } catch (error) {
      if (!(error instanceof ConnectionLost) || this.#xid === null) throw error
      throw new CommitUnanswered(this.#xid, this.#serverRun, error.cause)
    }
    const isWaitEnded = !(await waited) || this.#waitEnded
    if (command === 'ROLLBACK') {
      if (this.#failures.length > 0) throw this.#failures[0]
      throw new AbortedTransactionError()
    }
    if (isWaitEnded && this.#xid !== null) {
      throw new CommitUnanswered(this.#xid, this.#serverRun, new Error('the wait for a standby was ended'))
    }
  }

  /** Sent behind COMMIT: when `synchronous_standby_names` is emptied, commits that wait are confirmed without a notice. */
  async #waitsStill(): Promise<boolean> {
    const answer = this.#send({ text: `SELECT ${WAITS} AS waits` }) as Promise<
      pg.QueryResult<{ readonly waits: boolean }>
    >
    return answer.then(
      ({ rows: [row] }) => row !== undefined && !this.#leaveIfNotWaiting(row.waits),
      () => false,
    )
  }

  async rollback(): Promise<void> {
    this.#isOver = true
    if (this.#lost) return
    try {
      await this.#send({ text: 'ROLLBACK' })
    } catch {
      this.#lost = true
    }
  }

  release(): void {
    this.#client.off('error', this.#onError)
    this.#client.off('notice', this.#onNotice)
    this.#client.release(this.#lost)
  }
}

const sentAhead = new WeakSet<CompiledQuery['query']>()

/** Marks a lock-only statement as pipelined: sent before BEGIN is answered, without waiting for its result. */
export function sendAhead(query: CompiledQuery): CompiledQuery {
  sentAhead.add(query.query)
  return query
}

/** Receivers of a pipelined statement's rows. */
const answered = new WeakMap<CompiledQuery['query'], (rows: readonly unknown[]) => void>()

/**
 * Pipelines locking queries and returns their rows, which are available once the next statement is answered; if this one
 * fails, the next one fails too.
 */
export function pipelineOn(db: Kysely<Tables>): NonNullable<Sql['ahead']> {
  return async <R>(query: Compilable<R>) => {
    const made = query.compile()
    // Transactions share the text of a prepared query, not what is sent with it.
    const compiled = sendAhead({ ...made, query: { ...made.query } })
    let rows: readonly R[] | undefined
    answered.set(compiled.query, (received) => (rows = received as readonly R[]))
    await db.executeQuery(compiled)
    return () => {
      if (rows === undefined) throw new Error('invariant: a later statement was answered')
      return rows
    }
  }
}

/** Names of prepared statements, per connection. */
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

/** Whether a query only writes and returns no rows. */
function onlyWrites(query: CompiledQuery['query']): boolean {
  return (
    (InsertQueryNode.is(query) || UpdateQueryNode.is(query) || DeleteQueryNode.is(query)) &&
    query.returning === undefined
  )
}

/** Waits without throwing; the returned function throws the failure. */
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
