/**
 * Runs calls on the store: with or without the reserved disk space, and with an error that says what a failure means. One that
 * may have left a partial write ends the process.
 */
import Database from 'better-sqlite3'
import { lacksSpace } from '../../../platform/disk-space.ts'
import { CodedError, type ErrorCode, messageOf } from '../../../protocol/errors.ts'
import { systemFailure } from '../../../protocol/file-reasons.ts'
import type { JournalStore } from './journal-store.ts'
import type { DiskReserve } from './disk-reserve.ts'
import { refusalOf } from './open-database.ts'

/** One call of the journal. */
export interface JournalCall {
  readonly name: keyof JournalStore
  /** One transaction. Runs again if a full disk refused it and has space then. */
  readonly work: (store: JournalStore) => void
  readonly traits: CallTraits
  /** The agent's time, POSIX ms, to date records with a retention time. */
  readonly now: number
  /** Called once, in the order of the calls. @param error an error without a code: a broken invariant; null: the work is durable */
  readonly done: (error: Error | null) => void
}

/** How a call differs from most. */
export interface CallTraits {
  /** Refused if it would need the reserved disk space: success shows that the ledger takes entries. */
  readonly sparesDiskReserve?: boolean
  /** Fills the disk reserve if the disk has space for it. */
  readonly fillsDiskReserve?: 'BEFORE' | 'AFTER'
  /** All callers that are expected now wait for it. */
  readonly isForAll?: boolean
  /** Closes the database. Does not open it. */
  readonly isLast?: boolean
}

export interface JournalHandlerDeps {
  readonly path: string
  /** Run by the first call, so that an open failure is returned like any other. @param now of the call, POSIX ms */
  readonly open: (now: number) => JournalStore
  readonly diskReserve: Pick<DiskReserve, 'fill' | 'release'>
}

export class JournalHandler {
  readonly #deps: JournalHandlerDeps
  #store: JournalStore | undefined
  /** A failure between calls, returned to the next call. */
  #failed: { readonly error: unknown } | undefined

  constructor(deps: JournalHandlerDeps) {
    this.#deps = deps
  }

  /** Null: the work is done, and not flushed yet. */
  run(call: JournalCall): Error | null {
    try {
      this.#run(call)
      return null
    } catch (cause) {
      const error = errorOf(cause, this.#deps.path, this.#store !== undefined)
      if (isDiskFailure(error)) this.#failed ??= { error: cause }
      return error
    }
  }

  /** Work that is due after an answer. True: a checkpoint is due as well. */
  answered(): boolean {
    return this.#unasked((store) => store.commits.tidyWhenDue()) ?? false
  }

  isIdleCheckpointDue(): boolean {
    return this.#unasked((store) => store.file.isIdleCheckpointDue()) ?? false
  }

  /** First half of a checkpoint: {@link JournalFile.copyLog}. */
  copyLog(): void {
    this.#unasked((store) => store.file.copyLog())
  }

  /** Whether a commit is not on the disk yet; from now on it counts as flushed. */
  takeUnflushed(): boolean {
    const file = this.#store?.file
    if (file?.hasUnflushed !== true) return false
    file.hasUnflushed = false
    return true
  }

  /** All later calls fail with this. */
  fail(error: unknown): Error {
    this.#failed ??= { error }
    return errorOf(error, this.#deps.path, true)
  }

  /** One step in an idle moment; false: nothing (more) to do. Never throws: a failure fails every later call. */
  tidy(): boolean {
    const step = ({ file }: JournalStore): boolean => {
      const isMore = file.shrink()
      if (!isMore && !file.hasDiskReserve) file.hasDiskReserve = this.#deps.diskReserve.fill(file)
      return isMore
    }
    return this.#unasked(step) ?? false
  }

  #unasked<T>(work: (store: JournalStore) => T): T | undefined {
    if (this.#store === undefined || this.#failed !== undefined) return undefined
    try {
      return work(this.#store)
    } catch (error) {
      this.#failed = { error }
      return undefined
    }
  }

  #run({ work, now, traits }: JournalCall): void {
    if (this.#failed !== undefined) throw this.#failed.error
    if (traits.isLast === true) {
      if (this.#store !== undefined) work(this.#store)
      return
    }
    const { diskReserve } = this.#deps
    const store = (this.#store ??= this.#opened(now))
    store.now = now
    if (traits.fillsDiskReserve === 'BEFORE') store.file.hasDiskReserve = diskReserve.fill()
    if (traits.sparesDiskReserve === true) this.#withoutDiskReserve(store, work)
    else this.#withDiskReserve(store, work)
    if (traits.fillsDiskReserve === 'AFTER') store.file.hasDiskReserve = diskReserve.fill()
  }

  #opened(now: number): JournalStore {
    try {
      return this.#openedInReserve(now)
    } catch (error) {
      throw refusalOf(error, this.#deps.path)
    }
  }

  /** Opening folds what an earlier process left pending, or salvages it, which may need the reserved disk space. */
  #openedInReserve(now: number): JournalStore {
    try {
      return this.#deps.open(now)
    } catch (error) {
      if (!lacksSpace(error, this.#deps.path) || !this.#deps.diskReserve.release()) throw error
      const store = this.#deps.open(now)
      store.file.hasDiskReserve = false
      return store
    }
  }

  /** Refuses the work while the reserved disk space is missing, after trying to reserve it again. */
  #withoutDiskReserve(store: JournalStore, work: JournalCall['work']): void {
    try {
      withDiskSpace(store, work, this.#deps.path)
    } catch (error) {
      if (store.file.hasDiskReserve || !this.#deps.diskReserve.fill(store.file)) throw error
      store.file.hasDiskReserve = true
      work(store)
    }
  }

  #withDiskReserve(store: JournalStore, work: JournalCall['work']): void {
    try {
      withDiskSpace(store, work, this.#deps.path)
    } catch (error) {
      if (!lacksSpace(error, this.#deps.path) || !this.#deps.diskReserve.release()) throw error
      store.file.hasDiskReserve = false
      store.file.checkpoint()
      work(store)
    }
  }
}

/** On a full disk, a checkpoint may still free the log for reuse. */
function withDiskSpace(store: JournalStore, work: JournalCall['work'], path: string): void {
  try {
    work(store)
  } catch (error) {
    if (!lacksSpace(error, path) || !store.file.checkpoint()) throw error
    work(store)
  }
}

/**
 * Out of space or not writable. SQLite detects these before the commit record is complete and before any flush, so the
 * transaction is rolled back and recovery cannot bring it back.
 */
function isSurelyUndone(error: InstanceType<typeof Database.SqliteError>, path: string): boolean {
  return lacksSpace(error, path) || error.code.startsWith('SQLITE_READONLY')
}

/**
 * A page that reads wrongly after the check at the start may read correctly again: the restart checks the whole file
 * and salvages it only if the damage is real.
 */
function errorOf(error: unknown, path: string, wasChecked: boolean): Error {
  if (!(error instanceof Database.SqliteError)) {
    return systemFailure(error, path) ?? (error instanceof Error ? error : new Error(messageOf(error)))
  }
  const coded = (code: ErrorCode): CodedError =>
    new CodedError(code, `${path}: ${error.message}`, { cause: error, details: { path, sqlite: error.code } })
  if (isSurelyUndone(error, path)) return coded('NOT_RECORDED')
  const isCorrupt = error.code.startsWith('SQLITE_CORRUPT') || error.code === 'SQLITE_NOTADB'
  if (error.code.startsWith('SQLITE_IOERR') || (isCorrupt && wasChecked)) return coded('DISK_FAILED')
  return isCorrupt ? coded('DATABASE_CORRUPT') : new Error(`${error.message} (${error.code})`, { cause: error })
}

export function isDiskFailure(error: Error): boolean {
  return error instanceof CodedError && error.code === 'DISK_FAILED'
}
