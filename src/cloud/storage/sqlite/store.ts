/**
 * The store in one SQLite file. Transactions run one after another, so rows need no locks; waiting ones share a commit.
 * Readers use a separate connection and see the last commit. After a failure that leaves the file's state unknown, the store
 * refuses everything: the process must restart.
 */
import Sqlite from 'better-sqlite3'
import { giveWayTo } from '../../runtime/give-way.ts'
import { Turns } from '../../runtime/turns.ts'
import type { Reader, Store } from '../store.ts'
import { FleetFigures } from '../sql/fleet-figures.ts'
import { ALONE } from '../sql/sql.ts'
import { readerOf, workOn } from '../sql/transaction.ts'
import { type Database, coded, codedAtOpen, openDatabase, openReader } from './database.ts'
import { withoutQueue } from './dialect.ts'
import { GroupCommit } from './group-commit.ts'
import { LogFlush, type LogFlushOptions } from './log-flush.ts'

export interface SqliteStoreOptions extends Pick<LogFlushOptions, 'path' | 'requestsInProgress' | 'flushes'> {
  /** Verify the whole file at open. */
  readonly check: boolean
  /** Called once when the file may not contain what was committed. */
  readonly onBroken: (error: unknown) => void
}

/**
 * Frames of the write-ahead log that trigger a checkpoint: 16 MiB. It copies a page once, however many commits have written it, so
 * a longer log saves writes; the thread waits longer for each checkpoint.
 */
const CHECKPOINT_FRAMES = 4_000

/** Commits between two looks at the length of the log, which take as long as a statement. */
const LOOK_EVERY = 16

export interface SqliteStore extends Store {
  /** Another number after each change of registered keys, before the change is confirmed: no other process writes. */
  readonly keysVersion: () => number
}

/** @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER or STATE_UNWRITABLE */
export function openSqliteStore({ path, check, onBroken, ...flush }: SqliteStoreOptions): SqliteStore {
  const forWriting = openWriter(path, check)
  const forReading = openReader(path)
  const log = new LogFlush({ path, ...flush })
  // A statement blocks the thread. Between the statements of a long transaction, other events run.
  const giveWay = giveWayTo(() => performance.now(), setImmediate)
  const writer = withoutQueue(forWriting, giveWay)
  const commits = new GroupCommit(forWriting, () => performance.now(), flushOf(log, checkpointOf(forWriting)))
  const fleet = new FleetFigures()
  const snapshots = new Snapshots(forReading, fleet)
  const listeners = new Set<() => void>()
  const shrink = (pages: number): boolean => shrinkBy(forWriting, pages)
  const runWork = workOn({ db: writer, lockRows: false, rules: ALONE, fleet, ahead: null, shrink })
  const health: { cause?: unknown } = {}
  let keysVersion = 0

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
        const written = { outbox: false, keys: false, requests: 1 }
        const result = await commits.run(
          () => runWork(work, written),
          // It may have bumped a policy revision: decisions must not cache a revision before it is committed.
          () => written.outbox,
          () => written.requests,
        )
        if (written.keys) keysVersion += 1
        if (written.outbox) for (const listener of listeners) listener()
        return result
      }),
    read: (work) =>
      guard(async () => {
        try {
          return await snapshots.read(work)
        } finally {
          // It may have read a commit that a power cut could still undo. A refusal may depend on it, too.
          await log.ended()
        }
      }),
    onOutbox(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    keysVersion: () => keysVersion,
    async close() {
      await commits.idle()
      await snapshots.ended()
      forReading.close()
      forWriting.close()
      await log.close()
    },
  }
}

/** Reads one after another, each from one snapshot. */
class Snapshots {
  readonly #turns = new Turns(1)
  readonly #reader: Reader
  readonly #begin: Sqlite.Statement
  readonly #end: Sqlite.Statement

  constructor(database: Database, fleet: FleetFigures) {
    const db = withoutQueue(database, () => undefined)
    this.#reader = readerOf({ db, lockRows: false, rules: ALONE, fleet, ahead: null, shrink: null })
    this.#begin = database.prepare('BEGIN')
    this.#end = database.prepare('COMMIT')
  }

  read<T>(work: (reader: Reader) => Promise<T>): Promise<T> {
    return this.#turns.take(async () => {
      this.#begin.run()
      try {
        return await work(this.#reader)
      } finally {
        this.#end.run()
      }
    })
  }

  async ended(): Promise<void> {
    await this.#turns.take(async () => undefined)
  }
}

function openWriter(path: string, check: boolean): Database {
  const database = openDatabase(path, { check })
  // The group waits for another process's lock, and other events run meanwhile.
  database.pragma('busy_timeout = 0')
  try {
    // If a flush failed in the last process, the disk may lack a part of the log, and new commits behind it would be lost.
    database.pragma('wal_checkpoint(TRUNCATE)')
  } catch (error) {
    database.close()
    throw codedAtOpen(error, path)
  }
  // A commit flushes nothing itself: that would block the thread.
  database.pragma('synchronous = NORMAL')
  // SQLite ignores the failures of automatic ones.
  database.pragma('wal_autocheckpoint = 0')
  return database
}

/**
 * A checkpoint when the log is long. A failed flush is as final as that of a commit: a second one could succeed without the
 * pages on the disk. On a full disk, the log grows until a later checkpoint succeeds.
 */
function checkpointOf(database: Database): () => void {
  const size = database.prepare('PRAGMA wal_checkpoint(NOOP)').raw()
  const checkpoint = database.prepare('PRAGMA wal_checkpoint(PASSIVE)')
  let commits = 0
  return () => {
    commits += 1
    if (commits % LOOK_EVERY !== 0) return
    const [, frames = 0n] = size.get() as readonly bigint[]
    if (frames < CHECKPOINT_FRAMES) return
    try {
      checkpoint.get()
    } catch (error) {
      if (!(error instanceof Sqlite.SqliteError) || error.code !== 'SQLITE_FULL') throw error
    }
  }
}

/** To be called between transactions. If a checkpoint fails, all later calls do. */
export function flushOf(log: Pick<LogFlush, 'flush'>, checkpoint: () => void): (waiting: number) => Promise<void> {
  let failed: { readonly error: unknown } | undefined
  return async (waiting) => {
    if (failed !== undefined) throw failed.error
    try {
      // Not after the flush: the next transaction runs meanwhile.
      checkpoint()
    } catch (error) {
      failed = { error }
      throw error
    }
    await log.flush(waiting)
  }
}

/** Returns whether there is more to give back. */
function shrinkBy(database: Database, pages: number): boolean {
  const free = (): bigint => database.pragma('freelist_count', { simple: true }) as bigint
  const before = free()
  // Not a query: it steps once for each page.
  database.exec(`PRAGMA incremental_vacuum(${pages})`)
  const after = free()
  // A file that was created without the means for it gives nothing back.
  return after > 0n && after < before
}

/** After a failed write or flush, the disk's content is unknown; a damaged page may give a wrong balance. */
function isFatal(error: unknown): boolean {
  return error instanceof Sqlite.SqliteError && /^SQLITE_(IOERR|CORRUPT|NOTADB)/.test(error.code)
}
