/**
 * How fast one account is spent: what was charged in the last day, in slots of one hour. It is an estimate for the size
 * of grants and decides nothing; it begins anew with the process.
 */
import type { Micro } from '../../core/amount.ts'

const SLOT_MS = 3_600_000
const SLOTS = 24

export class BurnRate {
  readonly #slots: Micro[] = Array.from({ length: SLOTS }, () => 0n)
  readonly #begunAt: number
  #slot: number

  /** @param sinceBoot reading of the boot-time clock, ms, here and below */
  constructor(sinceBoot: number) {
    this.#begunAt = sinceBoot
    this.#slot = Math.floor(sinceBoot / SLOT_MS)
  }

  add(amount: Micro, sinceBoot: number): void {
    this.#turnTo(sinceBoot)
    const index = this.#slot % SLOTS
    this.#slots[index] = (this.#slots[index] ?? 0n) + amount
  }

  /** What a time of this length would take at the average rate since the beginning, at least one hour, at most a day. */
  over(horizonMs: number, sinceBoot: number): Micro {
    this.#turnTo(sinceBoot)
    const sum = this.#slots.reduce((total, amount) => total + amount, 0n)
    const observed = Math.min(Math.max(sinceBoot - this.#begunAt, SLOT_MS), SLOTS * SLOT_MS)
    return (sum * BigInt(Math.ceil(horizonMs))) / BigInt(Math.ceil(observed))
  }

  /** Nothing was charged for a day. */
  isIdle(sinceBoot: number): boolean {
    this.#turnTo(sinceBoot)
    return this.#slots.every((amount) => amount === 0n)
  }

  #turnTo(sinceBoot: number): void {
    const slot = Math.floor(sinceBoot / SLOT_MS)
    for (let next = this.#slot + 1; next <= slot && next <= this.#slot + SLOTS; next += 1)
      this.#slots[next % SLOTS] = 0n
    if (slot > this.#slot) this.#slot = slot
  }
}
