/**
 * The journal as the ledger uses it, with an eye on whether it takes anything: a device that can record nothing refuses
 * every request, and a technician should see why without waiting for one.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { ClockStamp, Journal, PendingEntry } from './journal.ts'
import type { HealthCondition } from './link/health.ts'

export interface WatchLog {
  warn(fields: Record<string, unknown>, message: string): void
  info(fields: Record<string, unknown>, message: string): void
}

export class WatchedJournal implements Pick<Journal, 'append' | 'saveClock'> {
  readonly #journal: Pick<Journal, 'append' | 'saveClock'>
  readonly #now: () => number
  readonly #log: WatchLog
  #condition: HealthCondition | null = null

  /** @param now best estimate, POSIX ms */
  constructor(journal: Pick<Journal, 'append' | 'saveClock'>, now: () => number, log: WatchLog) {
    this.#journal = journal
    this.#now = now
    this.#log = log
  }

  /** What keeps entries from being recorded, since when; null while nothing does. */
  condition(): HealthCondition | null {
    return this.#condition
  }

  async append(entries: readonly PendingEntry[], stamp: ClockStamp): Promise<void> {
    await this.#watch(this.#journal.append(entries, stamp))
    if (this.#condition !== null) this.#log.info({ since: this.#condition.since }, 'the ledger takes entries again')
    this.#condition = null
  }

  /** The clock needs less room than an entry: that it was kept proves nothing. */
  saveClock(stamp: ClockStamp): Promise<void> {
    return this.#watch(this.#journal.saveClock(stamp))
  }

  async #watch(writing: Promise<void>): Promise<void> {
    try {
      await writing
    } catch (error) {
      if (error instanceof CodedError && error.code === 'NOT_RECORDED') this.#raise(error)
      throw error
    }
  }

  #raise({ code, message, facts }: CodedError): void {
    if (this.#condition === null) this.#log.warn({ code, ...facts }, 'the ledger takes no entries')
    const since = this.#condition?.since ?? this.#now()
    this.#condition = { subject: 'ledger', code, message, since, facts }
  }
}
