/**
 * When a refused caller should come back. Callers get turns, one after another at twice the pace of the responses, so that
 * free places are taken at once. A caller that comes too early keeps its turn and delays no other one.
 */

/** The first turn: by then, requests in progress have left places, ms. */
const FIRST_MS = 1_000

const WAIT_MS_MAX = 60_000

/** Between two responses, ms: before any is measured, and at most. */
const GAP_MS_AT_FIRST = 5
const GAP_MS_MAX = 50

/** Time between two turns, in average gaps. Less than one, so that a cloud that has become faster is not idle. */
const EARLY = 1 / 2

/** Part of the last gap in the average. */
const PART_OF_LAST = 1 / 64

export class Comeback {
  readonly #now: () => number
  /** By caller, earliest first. */
  readonly #turns = new Map<string, number>()
  #gapMs = GAP_MS_AT_FIRST
  /** When the last response ended, or when a request began after a time without any. */
  #measuredFrom: number
  #lastTurn = -Infinity

  /** @param now monotonic, ms */
  constructor(now: () => number) {
    this.#now = now
    this.#measuredFrom = now()
  }

  /** A request begins while no other one is in progress: the idle time before it does not count for the pace. */
  began(): void {
    this.#measuredFrom = this.#now()
  }

  answered(): void {
    const now = this.#now()
    const gapMs = now - this.#measuredFrom
    this.#gapMs += (Math.min(gapMs, GAP_MS_MAX) - this.#gapMs) * PART_OF_LAST
    this.#measuredFrom = now
  }

  /** Returns the wait in whole milliseconds. */
  refused(caller: string): number {
    const now = this.#now()
    for (const [other, turn] of this.#turns) {
      if (turn > now) break
      this.#turns.delete(other)
    }
    const known = this.#turns.get(caller)
    if (known !== undefined) return waitUntil(known, now)
    const next = Math.max(this.#lastTurn + this.#gapMs * EARLY, now + FIRST_MS)
    this.#lastTurn = Math.min(next, now + WAIT_MS_MAX)
    this.#turns.set(caller, this.#lastTurn)
    return waitUntil(this.#lastTurn, now)
  }
}

/** Not by a fraction above a second: a response names the wait in whole seconds, rounded up. */
function waitUntil(turn: number, now: number): number {
  return Math.max(1, Math.round(turn - now))
}
