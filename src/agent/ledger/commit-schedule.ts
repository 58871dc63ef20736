/**
 * Decides when the next commit begins: a commit takes nearly as long for many entries as for one, so it waits for the callers
 * that are probably about to send. Invariant: it affects how long callers wait, and never what is recorded or answered.
 */
import type { Timers } from '../runtime/timers.ts'

/** Commits at least this slow, ms, wait for the callers just answered to send again. Faster ones wait only while some do. */
const SLOW_COMMIT_MS = 4

/** A commit of so many entries waits for no more. */
export const ENOUGH = 64

/** Longest wait, as a fraction of the last commit's duration. */
const PATIENCE = 0.5

interface CommitScheduleDeps {
  /** Calls after the current batch of entries has arrived, so that they share a commit. */
  readonly defer: (call: () => void) => void
  readonly timers: Timers
}

export class CommitSchedule {
  readonly #deps: CommitScheduleDeps
  readonly #onTurn: () => void
  #isTurnDeferred = false
  /** So many callers waited at the last turn. */
  #awaitedBefore = 0
  /** Entries of the last two commits that callers waited for, and whether the last one was slow. */
  #lastSizes: readonly [number, number] = [0, 0]
  #isSlow = false
  /** Ends the wait for callers to send again; null while not waiting. */
  #endPatience: (() => void) | null = null

  /** @param onTurn a batch of entries has arrived */
  constructor(deps: CommitScheduleDeps, onTurn: () => void) {
    this.#deps = deps
    this.#onTurn = onTurn
  }

  /** @param waiting entries that wait for a commit */
  arrived(waiting: number): void {
    if (this.#isTurnDeferred) return
    if (this.#endPatience !== null && waiting < this.#expected()) return
    this.#isTurnDeferred = true
    this.#deps.defer(this.#turn)
  }

  readonly #turn = (): void => {
    this.#isTurnDeferred = false
    this.#endPatience?.()
    this.#endPatience = null
    this.#onTurn()
  }

  /**
   * Call once in each turn. Whether it has brought entries, and the next turn probably brings more: callers that were
   * answered together come back within a few turns. @param awaited entries that callers wait for
   */
  waitsForMore(awaited: number): boolean {
    const [last, earlier] = this.#lastSizes
    const isForOne = awaited === 1 && last + earlier <= 2
    const isGrowing = awaited > this.#awaitedBefore
    this.#awaitedBefore = awaited
    return isGrowing && !this.#isSlow && !isForOne && awaited < ENOUGH
  }

  /** The waiting entries are taken. */
  taken(): void {
    this.#awaitedBefore = 0
  }

  /** Whether probably all callers wait. */
  isForAll(awaited: number): boolean {
    return awaited > 0 && awaited >= Math.max(...this.#lastSizes)
  }

  /** A commit of `size` entries that waited for it has ended; `waiting` ones arrived meanwhile. */
  committed(size: number, tookMs: number, waiting: number): void {
    if (size > 0) this.#lastSizes = [size, this.#lastSizes[0]]
    this.#isSlow = tookMs >= SLOW_COMMIT_MS
    const isPatient = size > 0 && this.#isSlow && waiting < this.#expected()
    if (isPatient) this.#endPatience = this.#deps.timers.after(tookMs * PATIENCE, this.#turn)
    else if (waiting > 0) this.#turn()
  }

  /** Alternating groups of callers would each wait for the other's commit, so they are batched together. */
  #expected(): number {
    return this.#lastSizes[0] + this.#lastSizes[1] > 2 ? Math.max(...this.#lastSizes) : 0
  }

  stop(): void {
    this.#endPatience?.()
  }
}
