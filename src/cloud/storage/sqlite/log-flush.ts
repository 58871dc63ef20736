/**
 * Flushes the write-ahead log beside the thread, which does other work meanwhile, or in the thread if all requests wait for the
 * flush: a change to another thread and back takes as long as a fast one.
 */
import { close, existsSync, fdatasync, fdatasyncSync, openSync, renameSync } from 'node:fs'
import { promisify } from 'node:util'
import Sqlite from 'better-sqlite3'
import { FilesInUse } from '../../../platform/files-in-use.ts'
import { FAST_FLUSH_MS } from '../../../platform/flush.ts'
import { messageOf } from '../../../protocol/errors.ts'

/** Of a file with this descriptor. */
export interface Flushes {
  readonly beside: (file: number) => Promise<void>
  readonly here: (file: number) => void
}

export interface LogFlushOptions {
  /** Of an open database. */
  readonly path: string
  /** Requests that have no response yet. Default: more than wait for any flush. */
  readonly requestsInProgress?: (() => number) | undefined
  /** Default: fdatasync. */
  readonly flushes?: Flushes | undefined
}

const OF_NODE: Flushes = { beside: promisify(fdatasync), here: fdatasyncSync }

export class LogFlush {
  readonly #database: string
  readonly #path: string
  readonly #requestsInProgress: () => number
  readonly #flushes: Flushes
  readonly #file: number
  readonly #inUse: FilesInUse
  #last: Promise<void> = Promise.resolve()
  #lastMs = Infinity

  /** Begins a flush: a process that was killed may have left commits that are not on the disk. */
  constructor({ path, requestsInProgress = () => Infinity, flushes = OF_NODE }: LogFlushOptions) {
    this.#database = path
    this.#path = `${path}-wal`
    this.#requestsInProgress = requestsInProgress
    this.#flushes = flushes
    // Before the first commit: a file that is opened after a failed write may not learn of it.
    this.#file = openSync(this.#path, 'r+')
    this.#inUse = new FilesInUse([path, this.#path])
    this.flush().catch(() => undefined)
  }

  /**
   * Resolves when the commits so far are on the disk. Call it after a commit.
   * @param waiting requests that wait for it
   * @throws SqliteError SQLITE_IOERR_FSYNC, also in all later calls: the disk's content is unknown
   */
  flush(waiting = 0): Promise<void> {
    this.#last = this.#last.then(() => this.#flush(waiting))
    return this.#last
  }

  /** Resolves when the last flush has ended. @throws the same */
  async ended(): Promise<void> {
    await this.#last
  }

  async close(): Promise<void> {
    await this.#last.catch(() => undefined)
    this.#setAside()
    await promisify(close)(this.#file)
  }

  async #flush(waiting: number): Promise<void> {
    const begun = performance.now()
    try {
      if (this.#lastMs < FAST_FLUSH_MS && this.#requestsInProgress() <= waiting) this.#flushes.here(this.#file)
      else await this.#flushes.beside(this.#file)
    } catch (cause) {
      throw new Sqlite.SqliteError(`${this.#path}: ${messageOf(cause)}`, 'SQLITE_IOERR_FSYNC')
    }
    this.#lastMs = performance.now() - begun
    const removed = this.#inUse.removed()
    if (removed === null) return
    const kept = this.#setAside()
    throw new Sqlite.SqliteError(`${removed} was removed or replaced by another program${kept}`, 'SQLITE_IOERR_FSYNC')
  }

  /** If the database was replaced: the next process would write the log of the former one into the new one. */
  #setAside(): string {
    const isReplaced = existsSync(this.#database) && this.#inUse.isRemoved(this.#database)
    if (!isReplaced || this.#inUse.isRemoved(this.#path)) return ''
    const aside = `${this.#path}.former`
    try {
      renameSync(this.#path, aside)
      return `; the log of the former one is now ${aside}`
    } catch (error) {
      return `; remove ${this.#path}, which cannot be renamed: ${messageOf(error)}`
    }
  }
}
