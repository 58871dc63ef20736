/**
 * The order in which decisions become durable. Entries that come in one moment are answered together, in one of two ways:
 *
 *   reserved  every charge lies within a block that is reserved durably, and the volatile log takes the entries: they are
 *             answered at once, and moved to the journal later
 *   durable   a commit holds them, with everything before them: they are answered after it
 *
 * The log takes every entry before it is answered or committed, so that the journal is never ahead of it; while it does not,
 * nothing is reserved. Without a volatile log all is durable. Nobody overtakes: behind an entry that waits for a commit all others wait, so that
 * what a failed commit takes back is always the end of the ledger, and never an entry that was answered.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import { CodedError } from '../../protocol/errors.ts'
import { CHAIN_START } from '../../protocol/signing.ts'
import { Reservations, type Spendable } from './reservations.ts'
import type { ClockStamp, Journal, PendingEntry, Reservation } from './journal.ts'
import type { Timers } from '../sync/ports.ts'
import type { Anchor, VolatileLog } from './volatile-log.ts'

export type Durability = 'durable' | 'write-behind'

/** What a device that spends ahead of its disk has besides the journal. */
export interface WriteBehindDeps {
  readonly journal: Pick<Journal, 'appendWriteBehind'>
  readonly log: VolatileLog
  /** Most tokens of a block, unless one charge is larger, micro-tokens. */
  readonly reservationMax: bigint
  /** The log does not take entries (the error), or takes them again (null). */
  readonly onLog: (error: unknown) => void
}

export interface CommitsDeps {
  readonly journal: Pick<Journal, 'append'>
  /** Null: every answer follows its commit. */
  readonly reserve: WriteBehindDeps | null
  readonly spendableOf: (account: AccountId) => Spendable
  readonly stamp: () => ClockStamp
  readonly epoch: () => number
  /** Calls when the entries of this moment have come, so that they share a commit. */
  readonly defer: (call: () => void) => void
  /** Time that passes, ms; only differences mean something. */
  readonly now: () => number
  readonly timers: Timers
  /** These stand in the journal. */
  readonly onRecorded: (decided: readonly Decided[]) => void
  /** These, the last ones of the ledger, never happened. */
  readonly onLost: (decided: readonly Decided[]) => void
  /** The outcome of a write is unknown: the process must end and open again. */
  readonly onBroken: (error: unknown) => void
}

/**
 * From so long a commit on, it is worth waiting for those who were just answered to ask again, ms. On faster storage a
 * commit and the decisions for the next one overlap, and waiting would only cost.
 */
const SLOW_COMMIT_MS = 4

/** For how much of the last commit's time the next one waits at most. */
const PATIENCE = 0.5

/** An entry in the volatile log is moved to the journal after so long at the latest, ms. */
const MOVE_AFTER_MS = 1_000

/** So many entries in the volatile log are moved at once. */
const MOVE_ENTRIES = 1_000

/** Most entries in the volatile log: a journal that takes nothing must not fill the memory. */
const LOGGED_MAX = 50_000

/** A block that was not touched for so long is closed, so that an idle device has nothing to burn, ms. */
const CLOSE_AFTER_MS = 10_000

/** A volatile log that failed is tried again after so long, ms. */
const RETRY_LOG_MS = 10_000

/** An entry with what it, and those recorded together with it, give back: what counts already, and what is to count. */
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
  /** Answered before: so many of those that were logged, from the first. */
  readonly logged: number
  readonly waiting: readonly Waiting[]
  /** Blocks that end with it. */
  readonly closing: readonly AccountId[]
  /** What was logged before it can be forgotten after it. */
  readonly turned: boolean
  /** Only what was answered, because the journal does not take more. */
  readonly salvage: boolean
  readonly begunAt: number
}

export class Commits {
  readonly #deps: CommitsDeps
  readonly #accountReservations: Reservations
  /** Answered from the volatile log, not in the journal yet. */
  #logged: Decided[] = []
  /** Accounts that were charged since the last commit began. */
  readonly #touched = new Set<AccountId>()
  /** Accounts whose block has ended here and not yet in the journal. */
  readonly #closing = new Set<AccountId>()
  #waiting: Waiting[] = []
  #underWay: UnderWay | null = null
  #scheduled = false
  #broken = false
  #logState: 'NONE' | 'OPEN' | 'FAILED' = 'NONE'
  #logFailedAt = -Infinity
  /** How far the journal is known to be. */
  #reached: Anchor
  #cancelTimer: (() => void) | null = null
  #timerAt = Infinity
  #touchedAt = -Infinity
  /** Sizes of the last two commits that somebody waited for. */
  #lastSizes: readonly [number, number] = [0, 0]
  /** Ends the wait for callers to come back; null while nobody waits. */
  #endPatience: (() => void) | null = null
  /** Those who wait until the journal has reached an entry, and whether it has is what they are told. */
  #flushing: { readonly upTo: number; readonly tell: (reached: boolean) => void }[] = []
  #settled: (() => void)[] = []

  /** @param reached how far the journal is, with no block open */
  constructor(deps: CommitsDeps, reached: Anchor) {
    this.#deps = deps
    this.#reached = reached
    this.#accountReservations = new Reservations(deps.reserve?.reservationMax ?? 0n, deps.now)
  }

  /** How an entry is answered whose charge lies within a block. */
  get promise(): Durability {
    return this.#deps.reserve !== null && this.#logState !== 'FAILED' ? 'write-behind' : 'durable'
  }

  /** Nothing is on its way to the journal. */
  get isSettled(): boolean {
    return this.#logged.length === 0 && this.#waiting.length === 0 && this.#underWay === null
  }

  /** Resolves with how it was answered. Rejects with NOT_RECORDED when it surely never happened. */
  add(decided: Decided): Promise<Durability> {
    const { entry } = decided
    if (this.#deps.reserve !== null && entry.moves === 'used') {
      for (const { account, amount } of entry.postings) {
        this.#accountReservations.saw(account, amount)
        this.#touched.add(account)
      }
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ entry, atOnce: decided.atOnce, later: decided.later, resolve, reject })
      this.#schedule()
    })
  }

  /** Resolves when what was answered before stands in the journal, or when the journal does not take it. */
  async flushed(): Promise<void> {
    await this.#reaches(this.#logged.at(-1))
  }

  /** Resolves when all that was decided before stands in the journal or was taken back; with false when the journal takes nothing. */
  async drained(): Promise<boolean> {
    return this.#reaches(this.#waiting.at(-1) ?? this.#underWay?.waiting.at(-1) ?? this.#logged.at(-1))
  }

  async #reaches(last: Decided | undefined): Promise<boolean> {
    if (last === undefined || this.#broken) return !this.#broken
    return new Promise((resolve) => {
      this.#flushing.push({ upTo: last.entry.n, tell: resolve })
      this.#commit()
    })
  }

  /** Resolves when nothing is on its way to the journal. What was answered is waited for until the journal takes it. */
  async settled(): Promise<void> {
    if (this.isSettled || this.#broken) return
    await new Promise<void>((resolve) => {
      this.#settled.push(resolve)
      this.#commit()
    })
  }

  /** Ends all blocks durably, where the journal takes it: a power cut costs nothing from here until the next charge. */
  async close(): Promise<void> {
    if (this.#deps.reserve === null) return this.settled()
    await this.flushed()
    if (this.#logged.length > 0 || this.#broken) return
    this.#closeReservations()
    if (this.#closing.size > 0) await this.settled()
    // With nothing reserved and nothing on its way, the log has nothing to tell.
    if (this.isSettled && this.#closing.size === 0) this.#deps.reserve.log.remove()
    this.#logState = 'NONE'
    this.#cancelTimer?.()
  }

  /** Lets nothing more happen by itself. */
  stop(): void {
    this.#broken = true
    this.#cancelTimer?.()
    this.#endPatience?.()
  }

  /** These accounts may not be charged beyond what is left of them now. */
  shorten(accounts: Iterable<AccountId>): void {
    for (const account of accounts) this.#accountReservations.lower(account, this.#deps.spendableOf(account))
  }

  /** Ends the blocks of these accounts: from here on each charge of them waits for its commit, until a new one is reserved. */
  endReservations(accounts: Iterable<AccountId>): void {
    if (this.#deps.reserve === null) return
    for (const account of accounts) {
      this.#accountReservations.close(account)
      this.#touched.delete(account)
      this.#closing.add(account)
    }
    if (this.#closing.size > 0) this.#commit()
  }

  /** Nothing is spent any more until {@link Commits.begin}; who closes the epoch in the journal closes its blocks. */
  forgetReservations(): void {
    this.#accountReservations.clear()
    this.#touched.clear()
    this.#closing.clear()
  }

  /** A new epoch stands in the journal; nothing was on its way. */
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

  /** Whoever comes is answered after the commit that is under way, at the earliest. */
  #mustWait(): boolean {
    if (this.#underWay === null) return false
    return this.#logState !== 'OPEN' || this.#underWay.waiting.length > 0
  }

  /** What has come at this moment is answered, or waits for the next commit. */
  readonly #turn = (): void => {
    this.#scheduled = false
    this.#endPatience?.()
    this.#endPatience = null
    if (this.#broken || this.#waiting.length === 0) return
    if (!this.#answerFromLog()) this.#commit()
  }

  #answerFromLog(): boolean {
    const { reserve, now } = this.#deps
    if (reserve === null || this.#logState !== 'OPEN') return false
    if (this.#mustWait() || this.#logged.length >= LOGGED_MAX) return false
    if (!this.#waiting.every(({ entry }) => this.#isCovered(entry))) return false
    const batch = this.#waiting
    const entries = batch.map(({ entry }) => entry)
    if (!this.#attempt(reserve, () => reserve.log.write(entries))) return false
    this.#waiting = []
    for (const decided of batch) this.#logged.push(decided)
    this.#touchedAt = now()
    for (const { resolve } of batch) resolve('write-behind')
    if (this.#isDue()) this.#commit()
    else this.#wakeIn(MOVE_AFTER_MS)
    return true
  }

  #isCovered({ moves, postings, session }: PendingEntry): boolean {
    const { spendableOf } = this.#deps
    // How a session stands is lost with the machine: what it was charged would never come back.
    if (moves !== 'used' || session !== undefined) return false
    for (const { account } of postings)
      if (!this.#accountReservations.covers(account, spendableOf(account))) return false
    return true
  }

  /** There is enough to move, or a block comes to its end. */
  #isDue(): boolean {
    if (this.#logState !== 'OPEN' || this.#logged.length === 0) return false
    if (this.#logged.length >= MOVE_ENTRIES) return true
    for (const account of this.#touched) {
      if (this.#accountReservations.isLow(account, this.#deps.spendableOf(account))) return true
    }
    return false
  }

  /** Everything that was decided, in one transaction; one at a time. */
  readonly #commit = (): void => {
    if (this.#broken || this.#underWay !== null) return
    if (this.#logged.length === 0 && this.#waiting.length === 0 && this.#closing.size === 0) {
      this.#tell()
      return
    }
    const { reserve, journal, stamp } = this.#deps
    const waiting = this.#waiting
    this.#waiting = []
    const entries = [...this.#logged, ...waiting].map(({ entry }) => entry)
    if (reserve === null) {
      const appending = journal.append(entries, stamp()).then(() => '')
      this.#await(appending, { logged: 0, waiting, closing: [], turned: false, salvage: false })
      return
    }
    if (this.#logMayBegin()) {
      const begun = this.#attempt(reserve, () => reserve.log.begin(this.#deps.epoch(), this.#reached))
      if (begun) this.#logState = 'OPEN'
      if (begun) reserve.onLog(null)
    }
    const turned =
      this.#logState === 'OPEN' &&
      this.#attempt(reserve, () => {
        if (waiting.length > 0) reserve.log.write(waiting.map(({ entry }) => entry))
        reserve.log.turn()
      })
    const reservations = this.#reservations()
    const writing = reserve.journal.appendWriteBehind(entries, reservations, stamp(), false)
    this.#await(writing, {
      logged: this.#logged.length,
      waiting,
      closing: [...this.#closing],
      turned,
      salvage: false,
    })
  }

  /** What was answered has to stay, also on a disk that takes nothing more. */
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

  #reservations(): readonly Reservation[] {
    const { spendableOf } = this.#deps
    const reservations = new Map<AccountId, bigint>()
    for (const account of this.#closing) reservations.set(account, spendableOf(account).used)
    if (this.#logState !== 'FAILED') {
      for (const account of this.#touched) {
        reservations.set(account, this.#accountReservations.propose(account, spendableOf(account)))
      }
    }
    this.#touched.clear()
    return [...reservations].map(([account, usedUpTo]) => ({ account, usedUpTo }))
  }

  #committed({ logged, waiting, closing, turned, salvage, begunAt }: UnderWay, head: string): void {
    const { reserve, now, timers, onRecorded } = this.#deps
    this.#underWay = null
    const recorded = this.#logged.splice(0, logged)
    for (const decided of waiting) recorded.push(decided)
    this.#reached = { n: recorded.at(-1)?.entry.n ?? this.#reached.n, head }
    onRecorded(recorded)
    if (salvage) this.#accountReservations.failed()
    else this.#accountReservations.committed()
    for (const account of closing) this.#closing.delete(account)
    if (reserve !== null && turned && this.#logState === 'OPEN') {
      this.#attempt(reserve, () => reserve.log.forget(this.#reached))
    }

    const tookMs = now() - begunAt
    if (waiting.length > 0) this.#lastSizes = [waiting.length, this.#lastSizes[0]]
    const isPatient = waiting.length > 0 && tookMs >= SLOW_COMMIT_MS && this.#waiting.length < this.#expected()
    if (isPatient) this.#endPatience = timers.after(tookMs * PATIENCE, this.#turn)
    // The next commit begins before the answers of this one are written.
    else if (this.#waiting.length > 0) this.#turn()
    for (const { resolve } of waiting) resolve('durable')
    this.#next()
  }

  /** Nothing that waits can be recorded either: it was numbered, and decided, on top of what failed. */
  #failed({ waiting, salvage }: UnderWay, error: unknown): void {
    const { reserve, onLost, onBroken } = this.#deps
    this.#underWay = null
    this.#accountReservations.failed()
    const lost = [...waiting, ...this.#waiting]
    this.#waiting = []
    const isUndone = error instanceof CodedError && error.code === 'NOT_RECORDED'
    if (isUndone) {
      const [first] = lost
      if (first !== undefined && reserve !== null && this.#logState === 'OPEN') {
        this.#attempt(reserve, () => reserve.log.retract(first.entry.n))
      }
      onLost(lost)
    } else {
      this.stop()
      onBroken(error)
    }
    for (const { reject } of lost) reject(error)
    if (isUndone && !salvage && reserve !== null && this.#logged.length > 0) {
      this.#salvage(reserve)
      return
    }
    const isTaken = this.#logged.length === 0 && !this.#broken
    for (const { tell } of this.#flushing.splice(0)) tell(isTaken)
    if (isUndone) this.#wakeIn(MOVE_AFTER_MS)
    this.#tell()
  }

  /** What is to come by itself, after a commit. */
  #next(): void {
    this.#tell()
    if (this.#underWay !== null || this.#broken) return
    const isAsked = this.#flushing.length > 0 || this.#settled.length > 0
    if (isAsked && this.#waiting.length + this.#logged.length + this.#closing.size > 0) this.#commit()
    else if (this.#isDue()) this.#commit()
    else if (this.#logged.length > 0) this.#wakeIn(MOVE_AFTER_MS)
    else if (this.#deps.reserve !== null) this.#wakeIn(CLOSE_AFTER_MS)
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
      if (this.#logged.length > 0 || this.#closing.size > 0) this.#commit()
      else if (restMs > 0) this.#wakeIn(restMs)
      else this.#closeReservations()
    })
  }

  /** Here first, and with the next commit in the journal. */
  #closeReservations(): void {
    const { spendableOf } = this.#deps
    for (const account of this.#accountReservations.open(spendableOf)) {
      this.#accountReservations.close(account)
      this.#closing.add(account)
    }
    if (this.#closing.size > 0) this.#commit()
  }

  /** Nothing is reserved, and the journal holds everything: a log that has failed is tried again after a while. */
  #logMayBegin(): boolean {
    if (this.#logged.length > 0 || this.#closing.size > 0) return false
    return (
      this.#logState === 'NONE' || (this.#logState === 'FAILED' && this.#deps.now() >= this.#logFailedAt + RETRY_LOG_MS)
    )
  }

  /** False when the log does not take it. */
  #attempt(reserve: WriteBehindDeps, work: () => void): boolean {
    try {
      work()
      return true
    } catch (error) {
      this.#failLog(reserve, error)
      return false
    }
  }

  /** Entries that the log does not hold are answered after their commit; from the first one on nothing is reserved. */
  #failLog({ onLog }: WriteBehindDeps, error: unknown): void {
    this.#logState = 'FAILED'
    this.#logFailedAt = this.#deps.now()
    for (const account of this.#accountReservations.open(this.#deps.spendableOf)) {
      this.#accountReservations.close(account)
      this.#closing.add(account)
    }
    onLog(error)
  }

  #tell(): void {
    const hasAll = this.isSettled
    for (const waiting of this.#flushing.splice(0)) {
      if (hasAll || waiting.upTo <= this.#reached.n) waiting.tell(true)
      else this.#flushing.push(waiting)
    }
    if (this.isSettled || this.#broken) for (const tell of this.#settled.splice(0)) tell()
  }

  /** Callers that ask in turn come in groups, each waiting for the other's commit, unless they are let come together. */
  #expected(): number {
    return this.#lastSizes[0] + this.#lastSizes[1] > 2 ? Math.max(...this.#lastSizes) : 0
  }
}
