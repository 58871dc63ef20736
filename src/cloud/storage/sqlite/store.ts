/**
 * The store in one SQLite file. Transactions run one after another, so rows need no locks; waiting ones share a commit.
 * Readers use a separate connection and see the last commit. After a failure that leaves the file's state unknown, the store
 * refuses everything: the process must restart.
 */
import Sqlite from 'better-sqlite3'
import { Kysely } from 'kysely'
import { giveWayTo } from '../../runtime/give-way.ts'
import type { Store } from '../store.ts'
import { FleetFigures } from '../sql/fleet-figures.ts'
import { ALONE } from '../sql/sql.ts'
import type { Tables } from '../sql/tables.ts'
import { readerOf, runWork } from '../sql/transaction.ts'
import { type Database, coded, openDatabase, openReader } from './database.ts'
import { SingleConnectionDialect, inOneHand } from './dialect.ts'
import { GroupCommit } from './group-commit.ts'
import { LogFlush } from './log-flush.ts'

export interface SqliteStoreOptions {
  readonly path: string
  /** Verify the whole file at open. */
  readonly check: boolean
  /** Called once when the file may not contain what was committed. */
  readonly onBroken: (error: unknown) => void
}

/**
 * Frames of the write-ahead log that trigger a checkpoint: 16 MiB. A sync writes about 15, most to pages that the next ones write
 * as well, so a longer log saves writes; the thread waits longer for each checkpoint.
 */
const CHECKPOINT_FRAMES = 4_000

/** @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER or STATE_UNWRITABLE */
export function openSqliteStore({ path, check, onBroken }: SqliteStoreOptions): Store {
  const forWriting = openWriter(path, check)
  const forReading = openReader(path)
  const log = new LogFlush(path)
  // A statement blocks the thread. Between the statements of a long transaction, other events run.
  const giveWay = giveWayTo(() => performance.now(), setImmediate)
  const writer = inOneHand(forWriting, giveWay)
  const reader = new Kysely<Tables>({ dialect: new SingleConnectionDialect(forReading) })
  const commits = new GroupCommit(
    forWriting,
    () => performance.now(),
    () => log.flush(),
  )
  const fleet = new FleetFigures()
  const listeners = new Set<() => void>()
  const shrink = (pages: number): boolean => {
    const free = (): bigint => forWriting.pragma('freelist_count', { simple: true }) as bigint
    const before = free()
    // Not a query: it steps once for each page.
    forWriting.exec(`PRAGMA incremental_vacuum(${pages})`)
    const after = free()
    // A file that was created without the means for it gives nothing back.
    return after > 0n && after < before
  }
  const health: { cause?: unknown } = {}

  const guard = async <T>(run: () => Promise<T>): Promise<T> => {
    if ('cause' in health) throw new Error('the store is broken', health)
    try {
      return await run()
    } catch (error) {
      if (isFatal(error) && !('cause' in health)) {
        health.cause = error
        onBroken(coded(error, path))
      }
      throw coded(error, path)
    }
  }

  return {
    transaction: (work) =>
      guard(async () => {
        const written = { outbox: false }
        const sql = { db: writer, lockRows: false, rules: ALONE, fleet, ahead: null, shrink }
        const result = await commits.run(
          () => runWork(sql, work, () => (written.outbox = true)),
          // It may have bumped a policy revision: decisions must not cache a revision before it is committed.
          () => written.outbox,
        )
        if (written.outbox) for (const listener of listeners) listener()
        return result
      }),
    read: (work) =>
      guard(async () => {
        const result = await reader
          .transaction()
          .execute((db) => work(readerOf({ db, lockRows: false, rules: ALONE, fleet, ahead: null, shrink: null })))
        // It may have read a commit that a power cut could still undo.
        await log.ended()
        return result
      }),
    onOutbox(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    async close() {
      await commits.idle()
      // Kysely closes only connections that it has used.
      await reader.destroy()
      await writer.destroy()
      forReading.close()
      forWriting.close()
      await log.close()
    },
  }
}

function openWriter(path: string, check: boolean): Database {
  const database = openDatabase(path, { check })
  // The group waits for another process's lock, and other events run meanwhile.
  database.pragma('busy_timeout = 0')
  // A commit flushes nothing itself: that would block the thread.
  database.pragma('synchronous = NORMAL')
  database.pragma(`wal_autocheckpoint = ${CHECKPOINT_FRAMES}`)
  return database
}

/** After a failed write or flush, the disk's content is unknown; a damaged page may give a wrong balance. */
function isFatal(error: unknown): boolean {
  return error instanceof Sqlite.SqliteError && /^SQLITE_(IOERR|CORRUPT|NOTADB)/.test(error.code)
}
