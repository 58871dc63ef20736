/**
 * Waiting transactions share one commit and so one flush. A failure affects only its own transaction: each but the first runs
 * in a savepoint. Results are returned after the flush; if the commit fails, all its transactions fail without effect. While a
 * commit is flushed, the next transactions run; they are committed after that flush, so that each flush serves as many as
 * possible.
 */
import { setTimeout } from 'node:timers/promises'
import Sqlite from 'better-sqlite3'
import { BUSY_TIMEOUT_MS, type Database } from './database.ts'

/** Maximum transactions per commit; the first waits for the last. */
const GROUP_MAX = 64

/** Longest delay of a commit for waiting transactions, ms. */
const GROUP_MS_MAX = 20

/** Longest pause before another attempt to lock the database, ms. */
const RETRY_MS_MAX = 50

interface Waiting {
  readonly work: () => Promise<unknown>
  readonly isLast: () => boolean
  readonly requests: () => number
  readonly resolve: (result: never) => void
  readonly reject: (error: unknown) => void
}

export class GroupCommit {
  readonly #database: Database
  readonly #stopwatch: () => number
  readonly #flush: (waiting: number) => Promise<void>
  readonly #waiting: Waiting[] = []
  #running: Promise<void> | undefined
  /** Resolves at the end of the flush, whether or not it succeeds. Undefined: none is in progress. */
  #flushing: Promise<void> | undefined
  #arrived: () => void = () => undefined

  /**
   * @param stopwatch monotonic clock, ms
   * @param flush makes commits durable for so many requests
   */
  constructor(database: Database, stopwatch: () => number, flush: (waiting: number) => Promise<void>) {
    this.#database = database
    this.#stopwatch = stopwatch
    this.#flush = flush
  }

  /**
   * Resolves when the commit is durable.
   * @param isLast called after the work; true if the next transaction must not see its uncommitted writes
   * @param requests called after the work: so many wait for it
   */
  run<T>(work: () => Promise<T>, isLast: () => boolean, requests = () => 1): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({ work, isLast, requests, resolve, reject })
      this.#arrived()
      this.#running ??= this.#drain()
    })
  }

  /** Resolves when no transaction is waiting, and all are flushed. */
  async idle(): Promise<void> {
    while (this.#running !== undefined) await this.#running
    await this.#flushing
  }

  async #drain(): Promise<void> {
    // Transactions of the same event loop turn join the first group.
    await new Promise((resolve) => setImmediate(resolve))
    while (this.#waiting.length > 0) await this.#group()
    this.#running = undefined
  }

  async #group(): Promise<void> {
    const database = this.#database
    const group: Waiting[] = []
    const outcomes: (() => void)[] = []
    try {
      await this.#begin()
      const begun = this.#stopwatch()
      for (;;) {
        const one = this.#waiting.shift() ?? (await this.#nextDuringFlush())
        if (one === undefined) break
        group.push(one)
        outcomes.push(await this.#alone(one, group.length === 1))
        if (one.isLast()) break
        // Until the flush ends, the first transaction waits for it, whatever others do.
        const isFull = group.length >= GROUP_MAX || this.#stopwatch() - begun > GROUP_MS_MAX
        if (isFull && this.#flushing === undefined) break
      }
      await this.#flushing
      database.exec('COMMIT')
    } catch (error) {
      if (database.inTransaction) database.exec('ROLLBACK')
      if (group.length === 0) group.push(...this.#waiting.splice(0, 1))
      for (const { reject } of group) reject(error)
      return
    }
    this.#flushing = this.#flush(group.reduce((sum, { requests }) => sum + requests(), 0))
      .then(
        () => outcomes.forEach((tell) => tell()),
        (error: unknown) => group.forEach(({ reject }) => reject(error)),
      )
      .then(() => (this.#flushing = undefined))
  }

  /** Undefined: the flush has ended, or none is in progress. */
  async #nextDuringFlush(): Promise<Waiting | undefined> {
    while (this.#waiting.length === 0 && this.#flushing !== undefined) {
      const arrived = new Promise<void>((resolve) => (this.#arrived = resolve))
      await Promise.race([arrived, this.#flushing])
    }
    return this.#waiting.shift()
  }

  /** Waits for another process's lock without blocking the thread. */
  async #begin(): Promise<void> {
    const deadline = this.#stopwatch() + BUSY_TIMEOUT_MS
    for (let pause = 1; ; pause = Math.min(2 * pause, RETRY_MS_MAX)) {
      try {
        this.#database.exec('BEGIN IMMEDIATE')
        return
      } catch (error) {
        const isLocked = error instanceof Sqlite.SqliteError && error.code === 'SQLITE_BUSY'
        if (!isLocked || this.#stopwatch() >= deadline) throw error
      }
      await setTimeout(pause)
    }
  }

  /**
   * Runs one transaction in the group. Throws if SQLite rolled back the whole group.
   * @param isFirst nothing else is rolled back with it, so that it needs no savepoint
   */
  async #alone({ work, resolve, reject }: Waiting, isFirst: boolean): Promise<() => void> {
    const database = this.#database
    if (!isFirst) database.exec('SAVEPOINT alone')
    try {
      const result = (await work()) as never
      if (!isFirst) database.exec('RELEASE alone')
      return () => resolve(result)
    } catch (error) {
      if (!database.inTransaction) throw error
      if (isFirst) {
        database.exec('ROLLBACK')
        await this.#begin()
      } else {
        database.exec('ROLLBACK TO alone')
        database.exec('RELEASE alone')
      }
      return () => reject(error)
    }
  }
}
