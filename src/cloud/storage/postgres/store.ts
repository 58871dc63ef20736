/**
 * The store on PostgreSQL, for one or more nodes. Decisions lock their rows; conflicting transactions are rerun a bounded
 * number of times. A lost connection affects only its caller. An unanswered commit is looked up before reporting.
 */
import { setTimeout as pause } from 'node:timers/promises'
import pg from 'pg'
import { CodedError } from '../../../protocol/errors.ts'
import type { Store } from '../store.ts'
import { FleetFigures } from '../sql/fleet-figures.ts'
import { ALONE } from '../sql/sql.ts'
import { readerOf, workOn } from '../sql/transaction.ts'
import { databaseAddress } from './hosts.ts'
import { type Pool, type PooledConnection, openPool } from './pool.ts'
import { prepareDatabase } from './database.ts'
import { WAITS, pipelineOn, transactionsOver } from './dialect.ts'
import { CommitUnanswered, ConnectionLost, coded, endsWait, mayRerunSucceed } from './failures.ts'
import { LIMITS, type Limits } from './limits.ts'
import { keepPartitions } from './partitions.ts'
import { ruleLocks } from './rule-locks.ts'
import { renewStatistics } from './statistics.ts'

export interface PostgresStoreOptions {
  /** `postgres://user:password@host:port/database`, or with several hosts: `host:port,host:port` */
  readonly url: string
  /** Null: use the URL's or PGPASSWORD. */
  readonly password?: string | null
  /** Whether each change must reach a standby before it is confirmed. Otherwise it fails with DATABASE_WITHOUT_STANDBY. */
  readonly requiresStandby?: boolean
  /** Called when an idle connection was lost. */
  readonly onConnectionLost: (error: CodedError) => void
  /** Called with `host:port` at the first connection after an outage. */
  readonly onConnectionRegained?: (server: string) => void
  /** Called with the cause of a rerun. */
  readonly onRerun?: (cause: unknown) => void
  /** Overrides of the default limits. */
  readonly limits?: Partial<Limits>
}

/** How long a registered key is used before it is read again, ms. */
const KEYS_KEPT_MS = 200

/** Wait between the commit of a change of registered keys and its response, ms: then no node uses the keys from before. */
const KEYS_FORGOTTEN_MS = KEYS_KEPT_MS + 50

export interface PostgresStore extends Store {
  /** Another number when registered keys that were read must be read again: another node may have changed them. */
  readonly keysVersion: () => number
  /** Makes partitions of the usage in advance, and gives back the space of those that are archived. To be called often. */
  keepPartitions(): Promise<void>
  /** Renews the statistics of tables that have grown much: see statistics.ts. To be called often. */
  renewStatistics(): Promise<void>
  /**
   * Cuts all connections: work in progress fails with STOPPING, or with OUTCOME_UNKNOWN if its commit is not answered.
   * Nothing more is read or written.
   */
  cut(): void
}

/**
 * @throws CodedError CONFIG_INVALID, DATABASE_UNREACHABLE, DATABASE_REFUSED, DATABASE_UNSUITABLE, DATABASE_CORRUPT,
 * DATABASE_NEWER
 */
export async function openPostgresStore(options: PostgresStoreOptions): Promise<PostgresStore> {
  const address = databaseAddress(options.url, options.password)
  const limits = { ...LIMITS, ...options.limits }
  const { onRerun = () => undefined, onConnectionRegained, requiresStandby = false } = options
  const { shown } = address
  const schema = await prepareDatabase(address, limits)
  const onLost = ({ message }: Error): void =>
    options.onConnectionLost(new CodedError('DATABASE_UNREACHABLE', `${shown}: ${message}`))
  const pool = openPool(address, limits, onLost, onConnectionRegained)
  const inTransaction = transactionsOver(pool, requiresStandby)
  const fleet = new FleetFigures()
  const listeners = new Set<() => void>()

  return {
    async transaction(work) {
      const written = { outbox: false, keys: false, requests: 1 }
      const result = await rerunning(shown, limits, onRerun, async () => {
        Object.assign(written, { outbox: false, keys: false })
        const done: { result?: Awaited<ReturnType<typeof work>> } = {}
        try {
          return await inTransaction('WRITE', async (db) => {
            const sql = { db, lockRows: true, rules: ruleLocks(db, schema), fleet, ahead: pipelineOn(db), shrink: null }
            const result = await workOn(sql)(work, written)
            done.result = result
            return result
          })
        } catch (error) {
          if (!(error instanceof CommitUnanswered) || !('result' in done)) throw error
          if (await wasCommitted(pool, limits, error, requiresStandby)) return done.result
          throw error
        }
      })
      if (written.outbox) for (const listener of listeners) listener()
      if (written.keys) await pause(KEYS_FORGOTTEN_MS)
      return result
    },
    read: (work) =>
      rerunning(shown, limits, onRerun, () =>
        inTransaction('READ', (db) =>
          work(readerOf({ db, lockRows: false, rules: ALONE, fleet, ahead: null, shrink: null })),
        ),
      ),
    onOutbox(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    keysVersion: () => Math.floor(performance.now() / KEYS_KEPT_MS),
    keepPartitions: () => withClient(pool, (client) => keepPartitions(client, schema)),
    renewStatistics: () => withClient(pool, renewStatistics),
    cut: () => pool.cut(),
    close: () => pool.end(),
  }
}

/** A connection on which this fails is closed. */
async function withClient(pool: Pool, work: (client: pg.ClientBase) => Promise<void>): Promise<void> {
  const { client } = await pool.connect()
  let isLost = true
  try {
    await work(client)
    isLost = false
  } finally {
    client.release(isLost)
  }
}

async function rerunning<T>(
  shown: string,
  { runsMax, rerunPauseMs }: Limits,
  onRerun: (cause: unknown) => void,
  run: () => Promise<T>,
): Promise<T> {
  for (let runs = 1; ; runs += 1) {
    try {
      return await run()
    } catch (error) {
      if (runs >= runsMax || !mayRerunSucceed(error)) throw coded(error, shown)
      onRerun(error)
      await pause(Math.random() * rerunPauseMs * 2 ** (runs - 1))
    }
  }
}

/**
 * Whether the transaction was committed. False: unknown, and a rerun might charge twice.
 *
 * @throws ConnectionLost if nothing has changed
 */
async function wasCommitted(
  pool: Pool,
  { outcomeQuestionsMax, outcomePauseMs, outcomeTimeoutMs }: Limits,
  unanswered: CommitUnanswered,
  requiresStandby: boolean,
): Promise<boolean> {
  const done = new AbortController()
  const timeout = pause(outcomeTimeoutMs, 'UNKNOWN' as const, done).catch(() => 'UNKNOWN' as const)
  try {
    for (let questions = 0; questions < outcomeQuestionsMax && !pool.isCut; questions += 1) {
      if (questions > 0) await pause(outcomePauseMs)
      const answer = outcomeOf(pool, unanswered, requiresStandby).catch(() => 'PENDING' as const)
      const outcome = await Promise.race([answer, timeout])
      if (outcome === 'ABORTED') throw new ConnectionLost(unanswered.message, { cause: unanswered.cause })
      if (outcome !== 'PENDING') return outcome === 'COMMITTED'
    }
    return false
  } finally {
    done.abort()
  }
}

/**
 * After a crash or a failover, the server assigns the ids again that it had not yet written or received. Then only
 * `committed` is ambiguous: the transaction, or another one with the same id. In every other case this one is gone.
 *
 * @throws the failure of the connection
 */
async function outcomeOf(
  pool: Pool,
  unanswered: CommitUnanswered,
  requiresStandby: boolean,
): Promise<'COMMITTED' | 'ABORTED' | 'PENDING' | 'UNKNOWN'> {
  const connection = await pool.connect()
  const { client } = connection
  let isLost = true
  try {
    const { status, serverRun } = await statusOf(connection, unanswered.xid)
    const isSameRun = serverRun === unanswered.serverRun
    if (isSameRun && status === 'committed') {
      const outcome = await outcomeOfVisible(connection, requiresStandby)
      isLost = outcome !== 'COMMITTED'
      return outcome
    }
    isLost = false
    if (isSameRun) return OUTCOMES[status]
    return status === 'committed' || status === 'forgotten' ? 'UNKNOWN' : 'ABORTED'
  } finally {
    client.release(isLost)
  }
}

const OUTCOMES = {
  committed: 'COMMITTED',
  aborted: 'ABORTED',
  'in progress': 'PENDING',
  future: 'UNKNOWN',
  forgotten: 'UNKNOWN',
} as const

/** A pooler may have led an older connection to another server: the run is read together with the status. */
async function statusOf({ client, serverRun }: PooledConnection, xid: string): Promise<TransactionStatus> {
  const text = 'SELECT pg_xact_status($1::xid8) AS status, (SELECT id::text FROM server_runs) AS "serverRun"'
  try {
    const [row] = (await client.query<{ status: StoredStatus | null; serverRun: string | null }>(text, [xid])).rows
    return { status: row?.status ?? 'forgotten', serverRun: row?.serverRun ?? null }
  } catch (error) {
    // The server has not assigned this id.
    if (error instanceof pg.DatabaseError && error.code === INVALID_PARAMETER_VALUE)
      return { status: 'future', serverRun }
    throw error
  }
}

type StoredStatus = 'committed' | 'aborted' | 'in progress'

interface TransactionStatus {
  readonly status: keyof typeof OUTCOMES
  /** Null: none is written yet. */
  readonly serverRun: string | null
}

const INVALID_PARAMETER_VALUE = '22023'

/**
 * COMMITTED: a standby has all earlier commits, if the server waits for standbys, or must. A commit whose wait has ended is
 * visible without that, and the commit of a message waits for everything before it. PENDING: another server may be the primary.
 */
async function outcomeOfVisible(
  { client, leaveIfNotWaiting }: PooledConnection,
  requiresStandby: boolean,
): Promise<'COMMITTED' | 'PENDING' | 'UNKNOWN'> {
  const ends: unknown[] = []
  const listen = (notice: { readonly routine?: string | undefined }): void => {
    if (endsWait(notice)) ends.push(notice)
  }
  client.on('notice', listen)
  try {
    await client.query(`SELECT pg_logical_emit_message(true, 'tallygate', '')`)
    const { rows } = await client.query<{ waits: boolean }>(`SELECT ${WAITS} AS waits`)
    const waits = rows[0]?.waits === true
    if (leaveIfNotWaiting(waits)) return 'PENDING'
    return ends.length > 0 || (requiresStandby && !waits) ? 'UNKNOWN' : 'COMMITTED'
  } catch {
    return 'UNKNOWN'
  } finally {
    client.off('notice', listen)
  }
}
