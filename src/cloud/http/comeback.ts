/**
 * When a refused caller should come back. Callers get turns, one after another at the pace of the responses, so that free
 * places are taken at once and few callers come too early. A caller that comes too early keeps its turn and delays no other one.
 */

/** The first turn: by then, requests in progress have left places, ms. */
const FIRST_MS = 1_000

const WAIT_MS_MAX = 60_000

/** Between two responses, ms: before any is measured, and at most. A pause without requests says nothing about the pace. */
const GAP_MS_AT_FIRST = 5
const GAP_MS_MAX = 50

/** Part of the last gap in the average. */
const PART_OF_LAST = 1 / 64

export class Comeback {
  readonly #now: () => number
  /** By caller, earliest first. */
  readonly #turns = new Map<string, number>()
  #gapMs = GAP_MS_AT_FIRST
  #answeredAt: number | undefined
  #lastTurn = -Infinity

  /** @param now monotonic, ms */
  constructor(now: () => number) {
    this.#now = now
  }

  answered(): void {
    const now = this.#now()
    const gapMs = now - (this.#answeredAt ?? now - this.#gapMs)
    this.#gapMs += (Math.min(gapMs, GAP_MS_MAX) - this.#gapMs) * PART_OF_LAST
    this.#answeredAt = now
  }

  /** Returns the wait, ms. */
  refused(caller: string): number {
    const now = this.#now()
    for (const [other, turn] of this.#turns) {
      if (turn > now) break
      this.#turns.delete(other)
    }
    const known = this.#turns.get(caller)
    if (known !== undefined) return known - now
    const next = Math.max(this.#lastTurn + this.#gapMs, now + FIRST_MS)
    this.#lastTurn = Math.min(next, now + WAIT_MS_MAX)
    this.#turns.set(caller, this.#lastTurn)
    return this.#lastTurn - now
  }
}
