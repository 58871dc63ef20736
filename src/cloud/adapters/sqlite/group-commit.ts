/**
 * Transactions that wait at the same time share one commit, and so one flush of the disk. Each runs alone, inside a savepoint:
 * one that fails takes nothing of the others with it. Nobody hears of a result before the commit that holds it; when that
 * commit fails, all of its transactions have failed, and none has had any effect.
 */
import type { Database } from './database.ts'

/** Transactions of one commit: the first of them waits for the last. */
const GROUP_MAX = 64

/** How long a commit may be put off for transactions that still wait, ms. */
const GROUP_MS_MAX = 20

interface Waiting {
  readonly work: () => Promise<unknown>
  readonly isLast: () => boolean
  readonly resolve: (result: never) => void
  readonly reject: (error: unknown) => void
}

export class GroupCommit {
  readonly #database: Database
  readonly #stopwatch: () => number
  readonly #waiting: Waiting[] = []
  #running: Promise<void> | undefined

  /** @param stopwatch any clock that only goes forward, ms */
  constructor(database: Database, stopwatch: () => number) {
    this.#database = database
    this.#stopwatch = stopwatch
  }

  /**
   * Resolves after the commit.
   * @param isLast asked after the work: true when the next transaction must not see what this one wrote before it is
   *   committed
   */
  run<T>(work: () => Promise<T>, isLast: () => boolean): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({ work, isLast, resolve, reject })
      this.#running ??= this.#drain()
    })
  }

  /** Resolves when nothing waits any more. */
  async idle(): Promise<void> {
    while (this.#running !== undefined) await this.#running
  }

  async #drain(): Promise<void> {
    // Whatever else this turn of the event loop brings joins the first group.
    await new Promise((resolve) => setImmediate(resolve))
    while (this.#waiting.length > 0) await this.#group()
    this.#running = undefined
  }

  async #group(): Promise<void> {
    const database = this.#database
    const group: Waiting[] = []
    const outcomes: (() => void)[] = []
    try {
      database.exec('BEGIN IMMEDIATE')
      const begun = this.#stopwatch()
      for (;;) {
        const one = this.#waiting.shift()
        if (one === undefined) break
        group.push(one)
        outcomes.push(await this.#alone(one))
        if (one.isLast() || group.length >= GROUP_MAX || this.#stopwatch() - begun > GROUP_MS_MAX) break
      }
      database.exec('COMMIT')
    } catch (error) {
      if (database.inTransaction) database.exec('ROLLBACK')
      if (group.length === 0) group.push(...this.#waiting.splice(0, 1))
      for (const { reject } of group) reject(error)
      return
    }
    for (const tell of outcomes) tell()
  }

  /** Runs one transaction inside the group. Throws when SQLite has given up the whole group. */
  async #alone({ work, resolve, reject }: Waiting): Promise<() => void> {
    const database = this.#database
    database.exec('SAVEPOINT alone')
    try {
      const result = (await work()) as never
      database.exec('RELEASE alone')
      return () => resolve(result)
    } catch (error) {
      if (!database.inTransaction) throw error
      database.exec('ROLLBACK TO alone')
      database.exec('RELEASE alone')
      return () => reject(error)
    }
  }
}
