/**
 * Makes decisions durable. Entries that arrive at the same moment are answered together, in one of two ways:
 *
 *   write-behind  all charges fit durable reservations and the volatile log has the entries: answered at once, journaled later
 *   durable       answered after the commit that contains them and all entries before them
 *
 * The log takes every entry before it is answered or committed, so the journal is never ahead of it; if the log fails,
 * nothing is reserved. Behind an entry that waits for a commit all later ones wait too, so a failed commit loses only
 * the ledger's last entries and never one that was answered.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import { CodedError } from '../../protocol/errors.ts'
import { CHAIN_START } from '../../protocol/signing.ts'
import { Reservations, type Spendable } from './reservations.ts'
import { type ClockStamp, type Journal, JournalLost, type PendingEntry, type Reservation } from './journal.ts'
import type { Timers } from '../runtime/timers.ts'
import type { Anchor, LogOwner, VolatileLog } from './volatile-log.ts'

/** `later`: of a denial, which charges nothing; its entry follows with the next commit. */
export type Durability = 'durable' | 'write-behind' | 'later'

export interface WriteBehindDeps {
  readonly journal: Pick<Journal, 'appendWriteBehind'>
  readonly log: VolatileLog
  /** Largest reservation, micro-tokens, unless one charge is larger. */
  readonly reservationMax: bigint
  /** The log failed (the error), or works again (null). */
  readonly onLog: (error: unknown) => void
}

export interface CommitsDeps {
  readonly journal: Pick<Journal, 'append'>
  /** Null: every answer follows its commit. */
  readonly writeBehind: WriteBehindDeps | null
  readonly spendableOf: (account: AccountId) => Spendable
  readonly stamp: () => ClockStamp
  readonly owner: () => LogOwner
  /** Calls after the current batch of entries has arrived, so that they share a commit. */
  readonly defer: (call: () => void) => void
  /** Monotonic, ms. */
  readonly now: () => number
  readonly timers: Timers
  /** Called when these are in the journal. */
  readonly onRecorded: (decided: readonly Decided[]) => void
  /** Called when these, the last entries of the ledger, could not be recorded. */
  readonly onLost: (decided: readonly Decided[]) => void
  /** A write has an unknown outcome, or an invariant is broken: the process must end and reopen. */
  readonly onBroken: (error: unknown) => void
}

/** Commits at least this slow, ms, wait for the callers just answered to send again. Faster ones wait only while some do. */
const SLOW_COMMIT_MS = 4

/** A commit of so many entries waits for no more. */
const ENOUGH = 64

/** Longest wait, as a fraction of the last commit's duration. */
const PATIENCE = 0.5

/** Longest time that an entry stays only in the volatile log, ms. */
const MOVE_AFTER_MS = 1_000

/** As many entries in the volatile log trigger a commit. */
const MOVE_ENTRIES = 256

/** Bounds memory while the journal accepts nothing. */
const LOGGED_MAX = 50_000

/** Denials alone, for which no caller waits, are committed after this time, ms, or when there are enough. */
const DENIALS_AFTER_MS = 10

/** While more entries wait, denials wait too: callers are never faster than the journal for long. */
const DENIALS_AHEAD_MAX = 1_000

const LATER: Promise<Durability> = Promise.resolve('later')

const answeredAlready = (): void => undefined

/** Closes a reservation that was idle for this long, ms, so that a power cut on an idle device burns nothing. */
const CLOSE_AFTER_MS = 10_000

/** Retries a failed volatile log after this time, ms. */
const RETRY_LOG_MS = 10_000

/** An entry with the refunds recorded with it: those that count already, and those that count once durable. */
export interface Decided {
  readonly entry: PendingEntry
  readonly atOnce: readonly Posting[]
  readonly later: readonly Posting[]
}

interface Waiting extends Decided {
  readonly resolve: (durability: Durability) => void
  readonly reject: (error: unknown) => void
}

interface UnderWay {
  /** How many entries of the log, from the first, it contains; they are answered already. */
  readonly logged: number
  readonly waiting: readonly Waiting[]
  readonly closing: readonly AccountId[]
  /** Whether the log can forget its older part afterwards. */
  readonly turned: boolean
  /** Contains only answered entries, because the journal accepts no others. */
  readonly salvage: boolean
  readonly begunAt: number
}

export class Commits {
  readonly #deps: CommitsDeps
  readonly #reservations: Reservations
  /** Answered from the volatile log, not yet in the journal. */
  #logged: Decided[] = []
  readonly #touched = new Set<AccountId>()
  /** Accounts whose reservation has ended in memory but not yet in the journal. */
  readonly #closing = new Set<AccountId>()
  #waiting: Waiting[] = []
  /** How many of these a caller waits for; denials are answered at once. */
  #awaited = 0
  /** So many were awaited at the last turn. */
  #awaitedBefore = 0
  #underWay: UnderWay | null = null
  #scheduled = false
  #broken = false
  /** Whether the journal accepted the last commit. */
  #isAccepted = true
  #logState: 'NONE' | 'OPEN' | 'FAILED' = 'NONE'
  #logFailedAt = 0
  #reached: Anchor
  #cancelTimer: (() => void) | null = null
  #timerAt = Infinity
  #touchedAt = -Infinity
  #lastSizes: readonly [number, number] = [0, 0]
  /** Whether the last commit was. */
  #isSlow = false
  /** Ends the wait for callers to send again; null while not waiting. */
  #endPatience: (() => void) | null = null
  /** Callbacks for when the journal has reached an entry, or failed to. */
  #flushing: { readonly upTo: number; readonly notify: (reached: boolean) => void }[] = []
  #settled: (() => void)[] = []

  /** @param reached end of the journal, with no reservation open */
  constructor(deps: CommitsDeps, reached: Anchor) {
    this.#deps = deps
    this.#reached = reached
    this.#reservations = new Reservations(deps.writeBehind?.reservationMax ?? 0n, deps.now)
  }

  /** Durability of the answer to an entry that a reservation covers. */
  get durability(): Exclude<Durability, 'later'> {
    return this.#deps.writeBehind !== null && this.#logState !== 'FAILED' ? 'write-behind' : 'durable'
  }

  get isSettled(): boolean {
    return this.#logged.length === 0 && this.#waiting.length === 0 && this.#underWay === null
  }

  /** Rejects with NOT_RECORDED when the entry was certainly not recorded. */
  add(decided: Decided): Promise<Durability> {
    const { entry } = decided
    if (this.#deps.writeBehind !== null && entry.moves === 'used') {
      for (const { account, amount } of entry.postings) {
        this.#reservations.saw(account, amount)
        this.#touched.add(account)
      }
    }
    if (
      entry.isDenial === true &&
      entry.postings.length === 0 &&
      this.#isAccepted &&
      this.#waiting.length < DENIALS_AHEAD_MAX
    ) {
      this.#waiting.push({ ...decided, resolve: answeredAlready, reject: answeredAlready })
      this.#schedule()
      return LATER
    }
    this.#awaited += 1
    return new Promise((resolve, reject) => {
      this.#waiting.push({ entry, atOnce: decided.atOnce, later: decided.later, resolve, reject })
      this.#schedule()
    })
  }

  /** Resolves when the charges answered so far are in the journal, or when the journal rejects them. */
  async flushed(): Promise<void> {
    await this.#reaches(this.#logged.at(-1))
  }

  /** Resolves when all entries so far are in the journal or undone; false when the journal rejects them. */
  async drained(): Promise<boolean> {
    return this.#reaches(this.#waiting.at(-1) ?? this.#underWay?.waiting.at(-1) ?? this.#logged.at(-1))
  }

  /** Whether an entry with this text is not in the journal yet. */
  hasPending(text: string): boolean {
    const pending = [this.#logged, this.#underWay?.waiting ?? [], this.#waiting]
    return pending.some((some) => some.some(({ entry }) => entry.body.includes(text)))
  }

  async #reaches(last: Decided | undefined): Promise<boolean> {
    if (last === undefined || this.#broken) return !this.#broken
    return new Promise((resolve) => {
      this.#flushing.push({ upTo: last.entry.n, notify: resolve })
      this.#commit()
    })
  }

  /** Resolves when no entry waits for the journal. Retries answered entries until the journal accepts them. */
  async settled(): Promise<void> {
    if (this.isSettled || this.#broken) return
    await new Promise<void>((resolve) => {
      this.#settled.push(resolve)
      this.#commit()
    })
  }

  /**
   * Ends all reservations durably if the journal accepts it, so that a power cut costs nothing until the next charge.
   */
  async close(): Promise<void> {
    const { writeBehind } = this.#deps
    if (writeBehind === null) return this.settled()
    await this.drained()
    if (this.#logged.length > 0 || this.#broken) return
    this.endReservations(this.#open())
    if (this.#closing.size > 0) await this.settled()
    // With no reservation and no pending entry, the log is not needed.
    const isUnused = this.isSettled && this.#closing.size === 0
    if (isUnused && this.#attempt(writeBehind, () => writeBehind.log.remove())) this.#logState = 'NONE'
    this.#cancelTimer?.()
  }

  stop(): void {
    this.#broken = true
    this.#cancelTimer?.()
    this.#endPatience?.()
  }

  shorten(accounts: Iterable<AccountId>): void {
    for (const account of accounts) this.#reservations.lower(account, this.#deps.spendableOf(account))
  }

  /** Ends these accounts' reservations: charges wait for a commit until a new reservation is made. */
  endReservations(accounts: Iterable<AccountId>): void {
    if (this.#deps.writeBehind === null) return
    this.#end(accounts)
    if (this.#closing.size > 0) this.#commit()
  }

  /** No charges until {@link Commits.begin}. The journal closes the reservations with the epoch. */
  forgetReservations(): void {
    this.#reservations.clear()
    this.#touched.clear()
    this.#closing.clear()
  }

  /** Call when a new epoch is in the journal and no entry is pending. */
  begin(): void {
    this.forgetReservations()
    this.#reached = { n: 0, head: CHAIN_START }
    if (this.#logState === 'OPEN') this.#logState = 'NONE'
  }

  #schedule(): void {
    if (this.#scheduled || this.#mustWait()) return
    if (this.#endPatience !== null && this.#waiting.length < this.#expected()) return
    this.#scheduled = true
    this.#deps.defer(this.#turn)
  }

  /** Later entries must not be answered before the commit under way. */
  #mustWait(): boolean {
    if (this.#underWay === null) return false
    return this.#logState !== 'OPEN' || this.#underWay.waiting.length > 0
  }

  readonly #turn = (): void => {
    this.#scheduled = false
    this.#endPatience?.()
    this.#endPatience = null
    if (this.#broken || this.#waiting.length === 0) return
    if (this.#answerFromLog()) return
    const isGrowing = this.#isGrowing()
    this.#awaitedBefore = this.#awaited
    if (isGrowing) this.#schedule()
    else if (this.#awaited === 0 && this.#waiting.length < ENOUGH) this.#wakeIn(DENIALS_AFTER_MS)
    else this.#commit()
  }

  /**
   * Whether this turn has brought entries, and the next one probably brings more: a commit takes as long for many entries as
   * for one. Callers that were answered together come back within a few turns.
   */
  #isGrowing(): boolean {
    const [last, earlier] = this.#lastSizes
    const isForOne = this.#awaited === 1 && last + earlier <= 2
    return !this.#isSlow && !isForOne && this.#awaited > this.#awaitedBefore && this.#awaited < ENOUGH
  }

  #takeWaiting(): readonly Waiting[] {
    const waiting = this.#waiting
    this.#waiting = []
    this.#awaited = 0
    this.#awaitedBefore = 0
    return waiting
  }

  #answerFromLog(): boolean {
    const { writeBehind, now } = this.#deps
    if (writeBehind === null || this.#logState !== 'OPEN') return false
    if (this.#mustWait() || this.#logged.length >= LOGGED_MAX) return false
    if (!this.#waiting.every(({ entry }) => this.#isCovered(entry))) return false
    const entries = this.#waiting.map(({ entry }) => entry)
    if (!this.#attempt(writeBehind, () => writeBehind.log.write(entries))) return false
    const batch = this.#takeWaiting()
    for (const decided of batch) this.#logged.push(decided)
    this.#touchedAt = now()
    for (const { resolve } of batch) resolve('write-behind')
    if (this.#isDue()) this.#commit()
    else this.#wakeIn(MOVE_AFTER_MS)
    return true
  }

  #isCovered({ moves, postings, session }: PendingEntry): boolean {
    const { spendableOf } = this.#deps
    // Session state must survive a power cut; otherwise its charge could never be refunded.
    if (moves !== 'used' || session !== undefined) return false
    for (const { account } of postings) if (!this.#reservations.covers(account, spendableOf(account))) return false
    return true
  }

  #isDue(): boolean {
    if (this.#logState !== 'OPEN' || this.#logged.length === 0) return false
    if (this.#logged.length >= MOVE_ENTRIES) return true
    for (const account of this.#touched) {
      if (this.#reservations.isLow(account, this.#deps.spendableOf(account))) return true
    }
    return false
  }

  readonly #commit = (): void => {
    if (this.#broken || this.#underWay !== null) return
    const { writeBehind, journal, stamp } = this.#deps
    const isForAll = this.#awaited > 0 && this.#awaited >= Math.max(...this.#lastSizes)
    const waiting = this.#takeWaiting()
    const entries = [...this.#logged, ...waiting].map(({ entry }) => entry)
    if (writeBehind === null) {
      const appending = journal.append(entries, stamp(), isForAll).then(() => '')
      this.#await(appending, { logged: 0, waiting, closing: [], turned: false, salvage: false })
      return
    }
    if (this.#logMayBegin()) {
      const begun = this.#attempt(writeBehind, () => writeBehind.log.begin(this.#deps.owner(), this.#reached))
      if (begun) {
        this.#logState = 'OPEN'
        writeBehind.onLog(null)
      }
    }
    const turned =
      this.#logState === 'OPEN' &&
      this.#attempt(writeBehind, () => {
        // First: if it fails, the log must have no entries that the journal may refuse.
        writeBehind.log.turn()
        if (waiting.length > 0) writeBehind.log.write(waiting.map(({ entry }) => entry))
      })
    const reservations = this.#nextReservations()
    const writing = writeBehind.journal.appendWriteBehind(entries, reservations, stamp(), false)
    this.#await(writing, {
      logged: this.#logged.length,
      waiting,
      closing: [...this.#closing],
      turned,
      salvage: false,
    })
  }

  /** Records answered entries, using reserved disk space if the disk is full. */
  #salvage({ journal }: WriteBehindDeps): void {
    const entries = this.#logged.map(({ entry }) => entry)
    const writing = journal.appendWriteBehind(entries, [], this.#deps.stamp(), true)
    this.#await(writing, { logged: entries.length, waiting: [], closing: [], turned: false, salvage: true })
  }

  #await(writing: Promise<string>, commit: Omit<UnderWay, 'begunAt'>): void {
    const underWay = { ...commit, begunAt: this.#deps.now() }
    this.#underWay = underWay
    writing.then(
      (head) => this.#committed(underWay, head),
      (error: unknown) => this.#failed(underWay, error),
    )
  }

  #nextReservations(): readonly Reservation[] {
    const { spendableOf } = this.#deps
    const reservations = new Map<AccountId, bigint>()
    for (const account of this.#closing) reservations.set(account, spendableOf(account).used)
    if (this.#logState !== 'FAILED') {
      for (const account of this.#touched) {
        reservations.set(account, this.#reservations.propose(account, spendableOf(account)))
      }
    }
    this.#touched.clear()
    return [...reservations].map(([account, usedUpTo]) => ({ account, usedUpTo }))
  }

  #committed({ logged, waiting, closing, turned, salvage, begunAt }: UnderWay, head: string): void {
    const { writeBehind, now, timers, onRecorded } = this.#deps
    this.#underWay = null
    // A salvage takes reserved space.
    if (!salvage) this.#isAccepted = true
    const recorded = this.#logged.splice(0, logged)
    for (const decided of waiting) recorded.push(decided)
    this.#reached = { n: recorded.at(-1)?.entry.n ?? this.#reached.n, head }
    onRecorded(recorded)
    this.#reservations.committed()
    for (const account of closing) this.#closing.delete(account)
    if (writeBehind !== null && turned && this.#logState === 'OPEN') {
      this.#attempt(writeBehind, () => writeBehind.log.forget(this.#reached))
    }

    const tookMs = now() - begunAt
    if (waiting.length > 0) this.#lastSizes = [waiting.length, this.#lastSizes[0]]
    this.#isSlow = tookMs >= SLOW_COMMIT_MS
    const isPatient = waiting.length > 0 && this.#isSlow && this.#waiting.length < this.#expected()
    if (isPatient) this.#endPatience = timers.after(tookMs * PATIENCE, this.#turn)
    // The journal begins it when these responses are written.
    else if (this.#waiting.length > 0) this.#turn()
    for (const { resolve } of waiting) resolve('durable')
    this.#next()
  }

  /** Waiting entries fail too: they were numbered and decided on top of the failed ones. */
  #failed({ waiting, salvage }: UnderWay, error: unknown): void {
    const { writeBehind, onLost } = this.#deps
    this.#underWay = null
    this.#isAccepted = false
    this.#reservations.failed()
    const lost = [...waiting, ...this.#takeWaiting()]
    const isUndone = error instanceof CodedError && error.code === 'NOT_RECORDED'
    if (isUndone) {
      const [first] = waiting
      if (first !== undefined && writeBehind !== null && this.#logState === 'OPEN') {
        this.#attempt(writeBehind, () => writeBehind.log.retract(first.entry.n))
      }
      onLost(lost)
    } else this.#break(error)
    const reason = error instanceof JournalLost ? error.cause : error
    for (const { reject } of lost) reject(reason)
    if (isUndone && !salvage && writeBehind !== null && this.#logged.length > 0) {
      this.#salvage(writeBehind)
      return
    }
    const isTaken = this.#logged.length === 0 && !this.#broken
    for (const { notify } of this.#flushing.splice(0)) notify(isTaken)
    if (isUndone) this.#wakeIn(MOVE_AFTER_MS)
    this.#notify()
  }

  #next(): void {
    this.#notify()
    if (this.#underWay !== null || this.#broken) return
    const isRequested = this.#flushing.length > 0 || this.#settled.length > 0
    if (isRequested && this.#waiting.length + this.#logged.length + this.#closing.size > 0) this.#commit()
    else if (this.#isDue()) this.#commit()
    else if (this.#logged.length > 0) this.#wakeIn(MOVE_AFTER_MS)
    else if (this.#deps.writeBehind !== null) this.#wakeIn(CLOSE_AFTER_MS)
  }

  #wakeIn(ms: number): void {
    const at = this.#deps.now() + ms
    if (this.#cancelTimer !== null && this.#timerAt <= at) return
    this.#cancelTimer?.()
    this.#timerAt = at
    this.#cancelTimer = this.#deps.timers.after(ms, () => {
      this.#cancelTimer = null
      if (this.#broken || this.#underWay !== null) return
      const restMs = this.#touchedAt + CLOSE_AFTER_MS - this.#deps.now()
      if (this.#waiting.length + this.#logged.length + this.#closing.size > 0) this.#commit()
      else if (restMs > 0) this.#wakeIn(restMs)
      else this.endReservations(this.#open())
    })
  }

  #open(): Iterable<AccountId> {
    return this.#reservations.open(this.#deps.spendableOf)
  }

  /** Lowers them in memory; the next commit ends them in the journal. */
  #end(accounts: Iterable<AccountId>): void {
    for (const account of accounts) {
      this.#reservations.close(account)
      this.#touched.delete(account)
      this.#closing.add(account)
    }
  }

  /** Nothing is reserved and the journal is complete; a failed log is retried after a while. */
  #logMayBegin(): boolean {
    if (this.#logged.length > 0 || this.#closing.size > 0) return false
    return (
      this.#logState === 'NONE' || (this.#logState === 'FAILED' && this.#deps.now() >= this.#logFailedAt + RETRY_LOG_MS)
    )
  }

  #attempt(writeBehind: WriteBehindDeps, work: () => void): boolean {
    try {
      work()
      return true
    } catch (error) {
      this.#failLog(writeBehind, error)
      // Without a code, it is a broken invariant.
      if ((error as { readonly code?: unknown }).code === undefined) this.#break(error)
      return false
    }
  }

  #break(error: unknown): void {
    this.stop()
    this.#deps.onBroken(error)
  }

  /** Entries missing from the log are answered after their commit; from the first one on nothing is reserved. */
  #failLog({ onLog }: WriteBehindDeps, error: unknown): void {
    this.#logState = 'FAILED'
    this.#logFailedAt = this.#deps.now()
    this.#end(this.#open())
    onLog(error)
  }

  #notify(): void {
    const hasAll = this.isSettled
    for (const waiting of this.#flushing.splice(0)) {
      if (hasAll || waiting.upTo <= this.#reached.n) waiting.notify(true)
      else this.#flushing.push(waiting)
    }
    if (this.isSettled || this.#broken) for (const notify of this.#settled.splice(0)) notify()
  }

  /** Alternating groups of callers would each wait for the other's commit, so they are batched together. */
  #expected(): number {
    return this.#lastSizes[0] + this.#lastSizes[1] > 2 ? Math.max(...this.#lastSizes) : 0
  }
}
