/**
 * Makes decisions durable, in sequence: entries wait, then one commit at a time takes all of them to the journal. Entries that
 * arrive at the same moment are answered together, in one of two ways:
 *
 *   write-behind  {@link WriteBehind} covers them, and no earlier entry waits: answered at once, journaled later
 *   durable       answered after the commit that contains them and all entries before them
 *
 * Invariant: behind an entry that waits for a commit all later ones wait too, so a failed commit loses only the ledger's
 * last entries and never one that was answered. {@link CommitSchedule} decides when a commit begins.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import { CodedError } from '../../protocol/errors.ts'
import { CHAIN_START } from '../../protocol/signing.ts'
import { CommitSchedule, ENOUGH } from './commit-schedule.ts'
import { type ClockStamp, type Journal, JournalLost, type PendingEntry } from './journal.ts'
import type { Spendable } from './reservations.ts'
import { Alarm, type Timers } from '../runtime/timers.ts'
import type { Anchor, LogOwner } from './volatile-log.ts'
import { CLOSE_AFTER_MS, WriteBehind, type WriteBehindDeps } from './write-behind.ts'

/** `later`: of a denial, which charges nothing; its entry follows with the next commit. */
export type Durability = 'durable' | 'write-behind' | 'later'

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

/** Longest time that an entry stays only in the volatile log, ms. */
const MOVE_AFTER_MS = 1_000

/** Denials alone, for which no caller waits, are committed after this time, ms, or when there are enough. */
const DENIALS_AFTER_MS = 10

/** While more entries wait, denials wait too: callers are never faster than the journal for long. */
const DENIALS_AHEAD_MAX = 1_000

const LATER: Promise<Durability> = Promise.resolve('later')

const answeredAlready = (): void => undefined

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
  /** Contains only answered entries, because the journal accepts no others. */
  readonly isSalvage: boolean
  readonly begunAt: number
}

export class Commits {
  readonly #deps: CommitsDeps
  readonly #writeBehind: WriteBehind | null
  readonly #schedule: CommitSchedule
  readonly #alarm: Alarm
  /** Answered from the volatile log, not yet in the journal. */
  #logged: Decided[] = []
  #waiting: Waiting[] = []
  /** How many of these a caller waits for; denials are answered at once. */
  #awaited = 0
  #underWay: UnderWay | null = null
  #broken = false
  /** Whether the journal accepted the last commit. */
  #isAccepted = true
  #reached: Anchor
  /** Callbacks for when the journal has reached an entry, or failed to. */
  #flushing: { readonly upTo: number; readonly notify: (reached: boolean) => void }[] = []
  #settled: (() => void)[] = []

  /** @param reached end of the journal, with no reservation open */
  constructor(deps: CommitsDeps, reached: Anchor) {
    this.#deps = deps
    this.#reached = reached
    this.#schedule = new CommitSchedule(deps, this.#turn)
    this.#alarm = new Alarm(deps, this.#wake)
    const onBroken = (error: unknown): void => this.#break(error)
    this.#writeBehind = deps.writeBehind && new WriteBehind(deps.writeBehind, { ...deps, onBroken })
  }

  /** Durability of the answer to an entry that a reservation covers. */
  get durability(): Exclude<Durability, 'later'> {
    return (this.#writeBehind?.logState ?? 'FAILED') === 'FAILED' ? 'durable' : 'write-behind'
  }

  get isSettled(): boolean {
    return this.#logged.length === 0 && this.#waiting.length === 0 && this.#underWay === null
  }

  /** Whether a commit would record anything. */
  get #hasWork(): boolean {
    return this.#logged.length > 0 || this.#waiting.length > 0 || this.#writeBehind?.isClosing === true
  }

  /** Rejects with NOT_RECORDED when the entry was certainly not recorded. */
  add(decided: Decided): Promise<Durability> {
    const { entry } = decided
    if (entry.moves === 'used') this.#writeBehind?.charged(entry.postings)
    if (
      entry.isDenial === true &&
      entry.postings.length === 0 &&
      this.#isAccepted &&
      this.#waiting.length < DENIALS_AHEAD_MAX
    ) {
      this.#enqueue({ ...decided, resolve: answeredAlready, reject: answeredAlready })
      return LATER
    }
    this.#awaited += 1
    return new Promise((resolve, reject) => {
      this.#enqueue({ entry, atOnce: decided.atOnce, later: decided.later, resolve, reject })
    })
  }

  #enqueue(waiting: Waiting): void {
    this.#waiting.push(waiting)
    if (!this.#mustWait()) this.#schedule.arrived(this.#waiting.length)
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
    const writeBehind = this.#writeBehind
    if (writeBehind === null) return this.settled()
    await this.drained()
    if (this.#logged.length > 0 || this.#broken) return
    this.endReservations(writeBehind.open())
    if (writeBehind.isClosing) await this.settled()
    // With no reservation and no pending entry, the log is not needed.
    if (this.isSettled && !writeBehind.isClosing) writeBehind.removeLog()
    this.#alarm.cancel()
  }

  stop(): void {
    this.#broken = true
    this.#schedule.stop()
    this.#alarm.cancel()
  }

  shorten(accounts: Iterable<AccountId>): void {
    this.#writeBehind?.shorten(accounts)
  }

  /** Ends these accounts' reservations: charges wait for a commit until a new reservation is made. */
  endReservations(accounts: Iterable<AccountId>): void {
    this.#writeBehind?.end(accounts)
    if (this.#writeBehind?.isClosing === true) this.#commit()
  }

  /** No charges until {@link Commits.begin}. The journal closes the reservations with the epoch. */
  forgetReservations(): void {
    this.#writeBehind?.forgetReservations()
  }

  /** Call when a new epoch is in the journal and no entry is pending. */
  begin(): void {
    this.#writeBehind?.beginEpoch()
    this.#reached = { n: 0, head: CHAIN_START }
  }

  /** Later entries must not be answered before the commit under way. */
  #mustWait(): boolean {
    if (this.#underWay === null) return false
    return this.#writeBehind?.logState !== 'OPEN' || this.#underWay.waiting.length > 0
  }

  readonly #turn = (): void => {
    if (this.#broken || this.#waiting.length === 0 || this.#mustWait() || this.#answerFromLog()) return
    if (this.#schedule.waitsForMore(this.#awaited)) this.#schedule.arrived(this.#waiting.length)
    else if (this.#awaited === 0 && this.#waiting.length < ENOUGH) this.#alarm.within(DENIALS_AFTER_MS)
    else this.#commit()
  }

  #takeWaiting(): readonly Waiting[] {
    const waiting = this.#waiting
    this.#waiting = []
    this.#awaited = 0
    this.#schedule.taken()
    return waiting
  }

  #answerFromLog(): boolean {
    const writeBehind = this.#writeBehind
    if (writeBehind?.logIfCovered(this.#waiting, this.#logged.length) !== true) return false
    const batch = this.#takeWaiting()
    for (const decided of batch) this.#logged.push(decided)
    for (const { resolve } of batch) resolve('write-behind')
    if (writeBehind.isDue(this.#logged.length)) this.#commit()
    else this.#alarm.within(MOVE_AFTER_MS)
    return true
  }

  #commit(): void {
    if (this.#broken || this.#underWay !== null) return
    const { journal, stamp } = this.#deps
    const isForAll = this.#schedule.isForAll(this.#awaited)
    const waiting = this.#takeWaiting()
    const entries = entriesOf([...this.#logged, ...waiting])
    const logged = this.#logged.length
    const writing =
      this.#writeBehind === null
        ? journal.append(entries, stamp(), isForAll).then(() => '')
        : this.#writeBehind.commit(entries, logged, this.#reached)
    this.#await(writing, { logged, waiting, isSalvage: false })
  }

  #await(writing: Promise<string>, commit: Omit<UnderWay, 'begunAt'>): void {
    const underWay = { ...commit, begunAt: this.#deps.now() }
    this.#underWay = underWay
    writing.then(
      (head) => this.#committed(underWay, head),
      (error: unknown) => this.#failed(underWay, error),
    )
  }

  #committed({ logged, waiting, isSalvage, begunAt }: UnderWay, head: string): void {
    this.#underWay = null
    // A salvage takes reserved space.
    if (!isSalvage) this.#isAccepted = true
    const recorded = this.#logged.splice(0, logged)
    for (const decided of waiting) recorded.push(decided)
    this.#reached = { n: recorded.at(-1)?.entry.n ?? this.#reached.n, head }
    this.#deps.onRecorded(recorded)
    this.#writeBehind?.committed(this.#reached)
    // The journal begins the next commit when these responses are written.
    this.#schedule.committed(waiting.length, this.#deps.now() - begunAt, this.#waiting.length)
    for (const { resolve } of waiting) resolve('durable')
    this.#next()
  }

  /** Waiting entries fail too: they were numbered and decided on top of the failed ones. */
  #failed({ waiting, isSalvage }: UnderWay, error: unknown): void {
    this.#underWay = null
    this.#isAccepted = false
    const lost = [...waiting, ...this.#takeWaiting()]
    const isUndone = error instanceof CodedError && error.code === 'NOT_RECORDED'
    if (isUndone) {
      this.#writeBehind?.undone(waiting[0]?.entry.n)
      this.#deps.onLost(lost)
    } else this.#break(error)
    const reason = error instanceof JournalLost ? error.cause : error
    for (const { reject } of lost) reject(reason)
    if (isUndone && !isSalvage && this.#writeBehind !== null && this.#logged.length > 0) {
      const writing = this.#writeBehind.salvage(entriesOf(this.#logged))
      this.#await(writing, { logged: this.#logged.length, waiting: [], isSalvage: true })
      return
    }
    const isTaken = this.#logged.length === 0 && !this.#broken
    for (const { notify } of this.#flushing.splice(0)) notify(isTaken)
    if (isUndone) this.#alarm.within(MOVE_AFTER_MS)
    this.#notify()
  }

  #next(): void {
    this.#notify()
    if (this.#underWay !== null || this.#broken) return
    const isRequested = this.#flushing.length > 0 || this.#settled.length > 0
    if (isRequested && this.#hasWork) this.#commit()
    else if (this.#writeBehind?.isDue(this.#logged.length) === true) this.#commit()
    else if (this.#logged.length > 0) this.#alarm.within(MOVE_AFTER_MS)
    else if (this.#writeBehind !== null) this.#alarm.within(CLOSE_AFTER_MS)
  }

  readonly #wake = (): void => {
    if (this.#broken || this.#underWay !== null) return
    if (this.#hasWork) this.#commit()
    else if (this.#writeBehind !== null) {
      const { restMs } = this.#writeBehind
      if (restMs > 0) this.#alarm.within(restMs)
      else this.endReservations(this.#writeBehind.open())
    }
  }

  #break(error: unknown): void {
    this.stop()
    this.#deps.onBroken(error)
  }

  #notify(): void {
    const hasAll = this.isSettled
    for (const waiting of this.#flushing.splice(0)) {
      if (hasAll || waiting.upTo <= this.#reached.n) waiting.notify(true)
      else this.#flushing.push(waiting)
    }
    if (this.isSettled || this.#broken) for (const notify of this.#settled.splice(0)) notify()
  }
}

function entriesOf(decided: readonly Decided[]): readonly PendingEntry[] {
  return decided.map(({ entry }) => entry)
}
