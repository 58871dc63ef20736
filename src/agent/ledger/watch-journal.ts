/**
 * Tracks whether the journal accepts entries: a device that cannot record refuses every request, and the status must
 * say why.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { ClockStamp, Journal, PendingEntry } from './journal.ts'
import type { HealthCondition } from '../sync/health.ts'

export interface WatchLog {
  warn(fields: Record<string, unknown>, message: string): void
  info(fields: Record<string, unknown>, message: string): void
}

type Watched = Pick<Journal, 'append' | 'appendWriteBehind' | 'saveClock' | 'limit'>

export class WatchedJournal implements Watched {
  readonly #journal: Watched
  readonly #now: () => number
  readonly #log: WatchLog
  #condition: HealthCondition | null = null

  /** @param now best estimate, POSIX ms */
  constructor(journal: Watched, now: () => number, log: WatchLog) {
    this.#journal = journal
    this.#now = now
    this.#log = log
  }

  /** The error that prevents recording, and since when; null while entries are accepted. */
  condition(): HealthCondition | null {
    return this.#condition
  }

  async append(entries: readonly PendingEntry[], stamp: ClockStamp): Promise<void> {
    await this.#watch(this.#journal.append(entries, stamp))
    this.#clear()
  }

  /** May use reserved disk space, so its success does not clear the condition. */
  async appendWriteBehind(...order: Parameters<Journal['appendWriteBehind']>): Promise<string> {
    const head = await this.#watch(this.#journal.appendWriteBehind(...order))
    const [, , , answered] = order
    if (!answered) this.#clear()
    return head
  }

  /** Needs less space than an entry, so its success does not clear the condition. */
  saveClock(stamp: ClockStamp): Promise<void> {
    return this.#watch(this.#journal.saveClock(stamp))
  }

  limit(accounts: readonly AccountId[]): Promise<void> {
    return this.#watch(this.#journal.limit(accounts))
  }

  async #watch<T>(writing: Promise<T>): Promise<T> {
    try {
      return await writing
    } catch (error) {
      if (error instanceof CodedError && error.code === 'NOT_RECORDED') this.#raise(error)
      throw error
    }
  }

  #clear(): void {
    if (this.#condition !== null) this.#log.info({ since: this.#condition.since }, 'the ledger takes entries again')
    this.#condition = null
  }

  #raise({ code, message, details }: CodedError): void {
    if (this.#condition === null) this.#log.warn({ code, ...details }, 'the ledger takes no entries')
    const since = this.#condition?.since ?? this.#now()
    this.#condition = { subject: 'ledger', code, message, since, details }
  }
}
