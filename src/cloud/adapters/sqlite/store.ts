/**
 * The store on one SQLite file. Transactions run one after another, so no row needs a lock, and those that wait together
 * share a commit; readers have a connection of their own and see the last commit. Once the file failed in a way that leaves its state unknown, nothing is done any
 * more: the process must end and open it again.
 */
import Sqlite from 'better-sqlite3'
import { Kysely } from 'kysely'
import type { Store } from '../../app/store.ts'
import { ALONE } from '../sql/sql.ts'
import type { Tables } from '../sql/tables.ts'
import { readerOf, runWork } from '../sql/transaction.ts'
import { coded, openDatabase, openReader } from './database.ts'
import { SingleConnectionDialect, inOneHand } from './dialect.ts'
import { GroupCommit } from './group-commit.ts'

export interface SqliteStoreOptions {
  readonly path: string
  /** Verify the whole file first. */
  readonly check: boolean
  /** Called once, when the file can no longer be trusted to hold what was committed. */
  readonly onBroken: (error: unknown) => void
}

/** @throws CodedError DATABASE_CORRUPT, DATABASE_NEWER or STATE_UNWRITABLE */
export function openSqliteStore({ path, check, onBroken }: SqliteStoreOptions): Store {
  const forWriting = openDatabase(path, { check })
  const forReading = openReader(path)
  const writer = inOneHand(forWriting)
  const reader = new Kysely<Tables>({ dialect: new SingleConnectionDialect(forReading) })
  const commits = new GroupCommit(forWriting, () => performance.now())
  const listeners = new Set<() => void>()
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
        const sql = { db: writer, lockRows: false, rules: ALONE, ahead: null }
        const result = await commits.run(
          () => runWork(sql, work, () => (written.outbox = true)),
          // It may have raised a policy's revision, by which nobody may decide before it is committed: what is kept in
          // memory of a revision must never outlive it.
          () => written.outbox,
        )
        if (written.outbox) for (const listener of listeners) listener()
        return result
      }),
    read: (work) =>
      guard(() =>
        reader.transaction().execute((db) => work(readerOf({ db, lockRows: false, rules: ALONE, ahead: null }))),
      ),
    onOutbox(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    async close() {
      await commits.idle()
      // Kysely closes only what it has used.
      await reader.destroy()
      await writer.destroy()
      forReading.close()
      forWriting.close()
    },
  }
}

/** After a failed write or flush nobody knows what the disk holds; a damaged page may be read as a wrong balance. */
function isFatal(error: unknown): boolean {
  return error instanceof Sqlite.SqliteError && /^SQLITE_(IOERR|CORRUPT|NOTADB)/.test(error.code)
}
