/**
 * Decides which entries can be answered before their commit. Two invariants make that safe:
 *
 *   - An entry answered early is in the volatile log, and the durable reservations of its accounts cover it.
 *   - The log takes every entry before the journal does. If it fails, all reservations end, and it begins again only when
 *     the journal lacks nothing.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import type { ClockStamp, Journal, PendingEntry, Reservation } from './journal.ts'
import { Reservations, type Spendable } from './reservations.ts'
import type { Anchor, LogOwner, VolatileLog } from './volatile-log.ts'

/** As many entries in the volatile log trigger a commit. */
const MOVE_ENTRIES = 256

/** Bounds memory while the journal accepts nothing. */
const LOGGED_MAX = 50_000

/** Closes a reservation that was idle for this long, ms, so that a power cut on an idle device burns nothing. */
export const CLOSE_AFTER_MS = 10_000

/** Retries a failed volatile log after this time, ms. */
const RETRY_LOG_MS = 10_000

export interface WriteBehindDeps {
  readonly journal: Pick<Journal, 'appendWriteBehind'>
  readonly log: VolatileLog
  /** Largest reservation, micro-tokens, unless one charge is larger. */
  readonly reservationMax: bigint
  /** The log failed (the error), or works again (null). */
  readonly onLog: (error: unknown) => void
}

/** Entries are answered early only while it is OPEN. NONE: the next commit begins it. FAILED: a later commit retries it. */
type LogState = 'NONE' | 'OPEN' | 'FAILED'

interface Context {
  readonly spendableOf: (account: AccountId) => Spendable
  readonly stamp: () => ClockStamp
  readonly owner: () => LogOwner
  /** Monotonic, ms. */
  readonly now: () => number
  readonly onBroken: (error: unknown) => void
}

export class WriteBehind {
  readonly #deps: WriteBehindDeps
  readonly #context: Context
  readonly #reservations: Reservations
  /** Accounts charged since the last commit began: the next one extends their reservations. */
  readonly #charged = new Set<AccountId>()
  /** Accounts whose reservation has ended in memory but not yet in the journal. */
  readonly #closing = new Set<AccountId>()
  #logState: LogState = 'NONE'
  #logFailedAt = 0
  /** When an entry was last answered early. */
  #answeredAt = -Infinity
  /** Null: no commit that changes reservations is under way. `turned`: the log can forget its older part afterwards. */
  #underWay: { readonly closing: readonly AccountId[]; readonly turned: boolean } | null = null

  constructor(deps: WriteBehindDeps, context: Context) {
    this.#deps = deps
    this.#context = context
    this.#reservations = new Reservations(deps.reservationMax, context.now)
  }

  get logState(): LogState {
    return this.#logState
  }

  /** Whether a reservation has ended that the journal has open. */
  get isClosing(): boolean {
    return this.#closing.size > 0
  }

  /** Time until the reservations are idle, ms; not positive: they are. */
  get restMs(): number {
    return this.#answeredAt + CLOSE_AFTER_MS - this.#context.now()
  }

  charged(postings: readonly Posting[]): void {
    for (const { account, amount } of postings) {
      this.#reservations.saw(account, amount)
      this.#charged.add(account)
    }
  }

  /** Writes these entries to the log if they can be answered now. @param logged entries that the journal lacks */
  logIfCovered(decided: readonly { readonly entry: PendingEntry }[], logged: number): boolean {
    if (this.#logState !== 'OPEN' || logged >= LOGGED_MAX) return false
    if (!decided.every(({ entry }) => this.#isCovered(entry))) return false
    const entries = decided.map(({ entry }) => entry)
    if (!this.#attempt((log) => log.write(entries))) return false
    this.#answeredAt = this.#context.now()
    return true
  }

  #isCovered({ moves, postings, session }: PendingEntry): boolean {
    const { spendableOf } = this.#context
    // Session state must survive a power cut; otherwise its charge could never be refunded.
    if (moves !== 'used' || session !== undefined) return false
    for (const { account } of postings) if (!this.#reservations.covers(account, spendableOf(account))) return false
    return true
  }

  /** Whether entries in the log should move to the journal now. @param logged how many there are */
  isDue(logged: number): boolean {
    if (this.#logState !== 'OPEN' || logged === 0) return false
    if (logged >= MOVE_ENTRIES) return true
    for (const account of this.#charged) {
      if (this.#reservations.isLow(account, this.#context.spendableOf(account))) return true
    }
    return false
  }

  /**
   * Commits entries with the next ends of the reservations. Resolves with the hash chain over the epoch's entries.
   * @param logged how many of them, from the first, are in the log. @param reached end of the journal
   */
  commit(entries: readonly PendingEntry[], logged: number, reached: Anchor): Promise<string> {
    if (logged === 0 && this.#canLogBegin()) this.#beginLog(reached)
    const turned =
      this.#logState === 'OPEN' &&
      this.#attempt((log) => {
        // First: if it fails, the log must have no entries that the journal may refuse.
        log.turn()
        if (entries.length > logged) log.write(entries.slice(logged))
      })
    this.#underWay = { closing: [...this.#closing], turned }
    return this.#deps.journal.appendWriteBehind(entries, this.#nextReservations(), this.#context.stamp(), false)
  }

  /** Records answered entries, using reserved disk space if the disk is full. */
  salvage(entries: readonly PendingEntry[]): Promise<string> {
    return this.#deps.journal.appendWriteBehind(entries, [], this.#context.stamp(), true)
  }

  /** Nothing is reserved; a failed log is retried after a while. */
  #canLogBegin(): boolean {
    if (this.#closing.size > 0) return false
    if (this.#logState === 'FAILED') return this.#context.now() >= this.#logFailedAt + RETRY_LOG_MS
    return this.#logState === 'NONE'
  }

  #beginLog(reached: Anchor): void {
    if (!this.#attempt((log) => log.begin(this.#context.owner(), reached))) return
    this.#logState = 'OPEN'
    this.#deps.onLog(null)
  }

  #nextReservations(): readonly Reservation[] {
    const { spendableOf } = this.#context
    const reservations = new Map<AccountId, bigint>()
    for (const account of this.#closing) reservations.set(account, spendableOf(account).used)
    if (this.#logState !== 'FAILED') {
      for (const account of this.#charged) {
        reservations.set(account, this.#reservations.propose(account, spendableOf(account)))
      }
    }
    this.#charged.clear()
    return [...reservations].map(([account, usedUpTo]) => ({ account, usedUpTo }))
  }

  /** The commit under way is durable. @param reached end of the journal */
  committed(reached: Anchor): void {
    if (this.#underWay === null) return
    const { closing, turned } = this.#underWay
    this.#underWay = null
    this.#reservations.committed()
    for (const account of closing) this.#closing.delete(account)
    if (turned && this.#logState === 'OPEN') this.#attempt((log) => log.forget(reached))
  }

  /** The journal recorded nothing of the commit under way. @param waiting its first entry that is not answered */
  undone(waiting: number | undefined): void {
    this.#underWay = null
    this.#reservations.failed()
    if (waiting !== undefined && this.#logState === 'OPEN') this.#attempt((log) => log.retract(waiting))
  }

  /** Lowers reservations to what their accounts can still spend, in memory only. */
  shorten(accounts: Iterable<AccountId>): void {
    for (const account of accounts) this.#reservations.lower(account, this.#context.spendableOf(account))
  }

  /** Accounts whose reservation is open. */
  open(): readonly AccountId[] {
    return this.#reservations.open(this.#context.spendableOf)
  }

  /** Ends these reservations in memory; the next commit ends them in the journal. */
  end(accounts: Iterable<AccountId>): void {
    for (const account of accounts) {
      this.#reservations.close(account)
      this.#charged.delete(account)
      this.#closing.add(account)
    }
  }

  /** Call when the journal closes the reservations itself, with their epoch. */
  forgetReservations(): void {
    this.#reservations.clear()
    this.#charged.clear()
    this.#closing.clear()
  }

  /** Call when a new epoch is in the journal and no entry is pending. */
  beginEpoch(): void {
    this.forgetReservations()
    if (this.#logState === 'OPEN') this.#logState = 'NONE'
  }

  /** Call with no reservation and no pending entry. */
  removeLog(): void {
    if (this.#attempt((log) => log.remove())) this.#logState = 'NONE'
  }

  /** Entries missing from the log are answered after their commit; from the first one on nothing is reserved. */
  #attempt(work: (log: VolatileLog) => void): boolean {
    const { log, onLog } = this.#deps
    try {
      work(log)
      return true
    } catch (error) {
      this.#logState = 'FAILED'
      this.#logFailedAt = this.#context.now()
      this.end(this.open())
      onLog(error)
      // Without a code, it is a broken invariant.
      if ((error as { readonly code?: unknown }).code === undefined) this.#context.onBroken(error)
      return false
    }
  }
}
