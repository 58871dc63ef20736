/** One call at a time, in order. A failure that may have left a partial write ends the process. */
import Database from 'better-sqlite3'
import { CodedError, type ErrorCode, messageOf } from '../../../protocol/errors.ts'
import { systemFailure } from '../../../protocol/file-reasons.ts'
import type { JournalAnswer, JournalCall } from './journal-calls.ts'
import type { JournalStore } from './journal-store.ts'
import type { DiskReserve } from './disk-reserve.ts'
import { isFull } from './open-database.ts'

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

  answerTo(call: JournalCall): JournalAnswer {
    try {
      return { ok: true, value: this.#take(call) }
    } catch (cause) {
      const error = errorOf(cause, this.#deps.path, this.#store !== undefined)
      if (isDiskFailure(error)) this.#failed ??= { error: cause }
      return { ok: false, error }
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
  fail(error: unknown): JournalAnswer {
    this.#failed ??= { error }
    return { ok: false, error: errorOf(error, this.#deps.path, true) }
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

  #take(call: JournalCall): unknown {
    const { method, args, now } = call
    if (this.#failed !== undefined) throw this.#failed.error
    if (method === 'close') return this.#store?.close()
    const store = (this.#store ??= this.#opened(now))
    store.now = now
    const run = (): unknown => Reflect.apply(store[method], store, args)
    if (method === 'append' && !call.args[0].answered) return this.#withoutDiskReserve(store, run)
    if (method === 'saveClock') {
      return this.#withoutDiskReserve(store, () => {
        run()
        store.file.refuseDiskReserve()
      })
    }
    if (method === 'read') store.file.hasDiskReserve = this.#deps.diskReserve.fill()
    const result = this.#withDiskReserve(store, run)
    if (method === 'acknowledge') store.file.hasDiskReserve = this.#deps.diskReserve.fill()
    return result
  }

  /** Opening folds what an earlier process left pending, which may need the reserved disk space. */
  #opened(now: number): JournalStore {
    try {
      return this.#deps.open(now)
    } catch (error) {
      if (!isFull(error) || !this.#deps.diskReserve.release()) throw error
      const store = this.#deps.open(now)
      store.file.hasDiskReserve = false
      return store
    }
  }

  /** Refuses the work while the reserved disk space is missing, after trying to reserve it again. */
  #withoutDiskReserve(store: JournalStore, work: () => unknown): unknown {
    try {
      return withDiskSpace(store, work)
    } catch (error) {
      if (store.file.hasDiskReserve || !this.#deps.diskReserve.fill(store.file)) throw error
      store.file.hasDiskReserve = true
      return work()
    }
  }

  #withDiskReserve(store: JournalStore, run: () => unknown): unknown {
    try {
      return withDiskSpace(store, run)
    } catch (error) {
      if (!isFull(error) || !this.#deps.diskReserve.release()) throw error
      store.file.hasDiskReserve = false
      store.file.checkpoint()
      return run()
    }
  }
}

/** On a full disk, a checkpoint may still free the log for reuse. */
function withDiskSpace<T>(open: JournalStore, work: () => T): T {
  try {
    return work()
  } catch (error) {
    if (!isFull(error) || !open.file.checkpoint()) throw error
    return work()
  }
}

/**
 * Out of space or not writable. SQLite detects these before the commit record is complete and before any flush, so the
 * transaction is rolled back and recovery cannot bring it back.
 */
function isSurelyUndone(error: unknown): boolean {
  return isFull(error) || (error instanceof Database.SqliteError && error.code.startsWith('SQLITE_READONLY'))
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
  if (isSurelyUndone(error)) return coded('NOT_RECORDED')
  const isCorrupt = error.code.startsWith('SQLITE_CORRUPT') || error.code === 'SQLITE_NOTADB'
  if (error.code.startsWith('SQLITE_IOERR') || (isCorrupt && wasChecked)) return coded('DISK_FAILED')
  return isCorrupt ? coded('DATABASE_CORRUPT') : new Error(`${error.message} (${error.code})`, { cause: error })
}

export function isDiskFailure(error: Error): boolean {
  return error instanceof CodedError && error.code === 'DISK_FAILED'
}
