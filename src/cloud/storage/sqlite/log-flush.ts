/** Flushes the write-ahead log beside the thread, which does other work meanwhile. */
import { close, fdatasync, openSync } from 'node:fs'
import { promisify } from 'node:util'
import Sqlite from 'better-sqlite3'
import { messageOf } from '../../../protocol/errors.ts'

export class LogFlush {
  readonly #path: string
  #file: number | undefined
  #failed: { readonly error: unknown } | undefined
  #last: Promise<void> = Promise.resolve()

  /** @param path of the database */
  constructor(path: string) {
    this.#path = `${path}-wal`
  }

  /**
   * Resolves when the commits so far are on the disk. Call it after a commit.
   * @throws SqliteError SQLITE_IOERR_FSYNC, also in all later calls: the disk's content is unknown
   */
  flush(): Promise<void> {
    this.#last = this.#flush()
    return this.#last
  }

  /** Resolves when the last flush has ended. @throws the same */
  async ended(): Promise<void> {
    await this.#last
  }

  async close(): Promise<void> {
    if (this.#file !== undefined) await promisify(close)(this.#file)
  }

  async #flush(): Promise<void> {
    if (this.#failed !== undefined) throw this.#failed.error
    try {
      this.#file ??= openSync(this.#path, 'r+')
      await promisify(fdatasync)(this.#file)
    } catch (cause) {
      const error = new Sqlite.SqliteError(`${this.#path}: ${messageOf(cause)}`, 'SQLITE_IOERR_FSYNC')
      this.#failed = { error }
      throw error
    }
  }
}
