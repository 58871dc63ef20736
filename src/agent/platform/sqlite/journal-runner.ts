/**
 * Runs the calls of the journal one by one in this thread. Only flushes run beside it: while one does, the agent decides the
 * next requests. If all callers wait for it, a fast flush runs in the thread, too. A second thread would take 30 MiB more, for its own heap.
 */
import { closeSync, fdatasync, fdatasyncSync, openSync } from 'node:fs'
import Database from 'better-sqlite3'
import { FilesInUse } from '../../../platform/files-in-use.ts'
import { FAST_FLUSH_MS } from '../../../platform/flush.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import { DiskReserve } from './disk-reserve.ts'
import { Housekeeping } from './housekeeping.ts'
import { type JournalCall, JournalHandler, isDiskFailure } from './journal-handler.ts'
import { PAGE_BYTES } from './open-database.ts'
import { openOrSalvage, type StoreOptions } from './salvage-journal.ts'

/** Runs calls in the order in which they are posted, and then answers them. */
export interface JournalRunner {
  post(call: JournalCall): void
}

export interface RunnerOptions extends StoreOptions {
  /** Called when another program has removed the file or its log: all later calls fail with this. */
  readonly onRemoved: (error: Error) => void
}

export type StartRunner = (options: RunnerOptions) => JournalRunner

/** A collection of these would close their databases. */
const keptOpen = new Set<JournalRunner>()

export interface Flushes {
  readonly beside: (file: number, done: (error: Error | null) => void) => void
  readonly here: (file: number) => void
}

/** @param flushes of `node:fs` unless a test replaces them */
export function runInThisThread(
  options: RunnerOptions,
  flushes: Flushes = { beside: fdatasync, here: fdatasyncSync },
): JournalRunner {
  return new Runner(options, flushes)
}

/** Files of the database, open for as long as it is: closing one before it would drop the locks of the process. */
interface Files {
  readonly database: number
  readonly log: number
}

class Runner implements JournalRunner {
  readonly #path: string
  readonly #flushes: Flushes
  readonly #onRemoved: (error: Error) => void
  readonly #handler: JournalHandler
  readonly #housekeeping: Housekeeping
  readonly #waiting: JournalCall[] = []
  #files: Files | null = null
  #inUse: FilesInUse | null = null
  #isBusy = false
  #lastFlushMs = Infinity

  constructor(options: RunnerOptions, flushes: Flushes) {
    const { path, limits, later, onRemoved } = options
    const diskReservePath = `${path}-disk-reserve`
    this.#path = path
    this.#flushes = flushes
    this.#onRemoved = onRemoved
    this.#handler = new JournalHandler({
      path,
      open: (now) => {
        const store = openOrSalvage({ ...options, later: [...later, diskReservePath] }, now)
        store.file.leaveFlushes()
        // Before the first commit: a file that is opened after a failed write may not learn of it.
        this.#files = { database: openSync(path, 'r'), log: openSync(`${path}-wal`, 'r') }
        this.#inUse = new FilesInUse([path, `${path}-wal`])
        return store
      },
      diskReserve: new DiskReserve(diskReservePath, limits.diskReservePages * PAGE_BYTES),
    })
    const timers = {
      after: (ms: number, call: () => void) => {
        const timer = setTimeout(call, ms).unref()
        return () => clearTimeout(timer)
      },
    }
    this.#housekeeping = new Housekeeping({ step: () => this.#tidy(), now: () => performance.now(), timers })
  }

  post(call: JournalCall): void {
    if (this.#isBusy) this.#waiting.push(call)
    else this.#take(call)
  }

  #take(call: JournalCall): void {
    this.#isBusy = true
    const { isLast, isForAll } = call.traits
    const error = this.#handler.run(call)
    if (error !== null && isDiskFailure(error)) this.#keepOpen()
    if (isLast === true) {
      this.#close(error)
      call.done(error)
    } else if (error !== null || !this.#handler.takeUnflushed()) {
      this.#answer(call, error)
    } else if (isForAll === true && this.#lastFlushMs < FAST_FLUSH_MS) {
      this.#answer(call, this.#flushedHere('log'))
    } else {
      this.#flush('log', (failure) => this.#answer(call, failure))
    }
  }

  #answer(call: JournalCall, error: Error | null): void {
    call.done(error)
    // After the responses are written.
    setImmediate(this.#afterAnswer)
  }

  readonly #afterAnswer = (): void => {
    this.#isBusy = false
    this.#housekeeping.answered()
    this.#proceed()
  }

  #proceed(): void {
    if (this.#isBusy) return
    if (this.#handler.answered()) {
      this.#checkpoint()
      return
    }
    const next = this.#waiting.shift()
    if (next !== undefined) this.#take(next)
  }

  /** A step between calls. */
  #tidy(): boolean {
    if (this.#isBusy || this.#failIfRemoved()) return false
    const isMore = this.#handler.tidy()
    if (this.#handler.isIdleCheckpointDue()) this.#checkpoint()
    return isMore
  }

  /** First copies what a removed log contains into the database. */
  #failIfRemoved(): boolean {
    const removed = this.#inUse?.removed() ?? null
    if (removed === null) return false
    if (removed === this.#pathOf('log')) {
      this.#handler.copyLog()
      this.#flushedHere('database')
    }
    this.#keepOpen()
    const message = `${removed} was removed or replaced by another program while the agent used it.`
    const error = new CodedError('DISK_FAILED', message)
    this.#handler.fail(error)
    this.#onRemoved(error)
    return true
  }

  /** Later calls wait: the log may only begin again once the database is flushed. */
  #checkpoint(): void {
    this.#isBusy = true
    const copy = (): void => {
      this.#handler.copyLog()
      this.#flush('database', this.#afterAnswer)
    }
    if (this.#handler.takeUnflushed())
      this.#flush('log', (failure) => (failure === null ? copy() : this.#afterAnswer()))
    else copy()
  }

  #flush(file: keyof Files, done: (failure: Error | null) => void): void {
    const begun = performance.now()
    this.#flushes.beside(this.#file(file), (error) => {
      this.#lastFlushMs = performance.now() - begun
      done(error === null ? null : this.#failed(file, error))
    })
  }

  /** In this thread. Null: it is flushed. */
  #flushedHere(file: keyof Files): Error | null {
    const begun = performance.now()
    try {
      this.#flushes.here(this.#file(file))
      return null
    } catch (error) {
      return this.#failed(file, error)
    } finally {
      this.#lastFlushMs = performance.now() - begun
    }
  }

  #file(file: keyof Files): number {
    if (this.#files === null) throw new Error('invariant: only an open database is flushed')
    return this.#files[file]
  }

  #pathOf(file: keyof Files): string {
    return file === 'log' ? `${this.#path}-wal` : this.#path
  }

  /** What the disk contains is unknown, so that all later calls fail, too. */
  #failed(file: keyof Files, cause: unknown): Error {
    this.#keepOpen()
    return this.#handler.fail(
      new Database.SqliteError(`${this.#pathOf(file)}: ${messageOf(cause)}`, 'SQLITE_IOERR_FSYNC'),
    )
  }

  /**
   * The end of a process closes its databases, and SQLite then deletes the log, which alone may have what was to be flushed. This
   * way it ends without that, and the next process finds the log.
   */
  #keepOpen(): void {
    if (keptOpen.size === 0) process.once('exit', () => process.exit())
    keptOpen.add(this)
  }

  #close(error: Error | null): void {
    this.#housekeeping.stop()
    if (error === null && this.#files !== null)
      for (const file of [this.#files.log, this.#files.database]) closeSync(file)
  }
}
