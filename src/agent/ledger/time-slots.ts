/** Sums amounts in a fixed number of time slots; the oldest slot is reused. Memory is constant. */
import type { Micro } from '../../core/pricing/amount.ts'

export class TimeSlots {
  readonly #slotMs: number
  readonly #amounts: Micro[]
  #slot: number

  constructor(slotMs: number, count: number, sinceBoot: number) {
    this.#slotMs = slotMs
    this.#amounts = Array.from({ length: count }, () => 0n)
    this.#slot = this.#slotAt(sinceBoot)
  }

  add(amount: Micro, sinceBoot: number): void {
    const slot = this.#turnTo(sinceBoot)
    if (slot <= this.#slot - this.#amounts.length) return
    const index = this.#indexOf(slot)
    this.#amounts[index] = (this.#amounts[index] ?? 0n) + amount
  }

  /** Oldest slot first; the last one is incomplete. */
  read(sinceBoot: number): readonly Micro[] {
    this.#turnTo(sinceBoot)
    const oldest = this.#slot - this.#amounts.length + 1
    return this.#amounts.map((_, at) => this.#amounts[this.#indexOf(oldest + at)] ?? 0n)
  }

  sum(sinceBoot: number): Micro {
    this.#turnTo(sinceBoot)
    return this.#amounts.reduce((total, amount) => total + amount, 0n)
  }

  isEmpty(sinceBoot: number): boolean {
    this.#turnTo(sinceBoot)
    return this.#amounts.every((amount) => amount === 0n)
  }

  #turnTo(sinceBoot: number): number {
    const slot = this.#slotAt(sinceBoot)
    for (let next = this.#slot + 1; next <= slot && next <= this.#slot + this.#amounts.length; next += 1) {
      this.#amounts[this.#indexOf(next)] = 0n
    }
    if (slot > this.#slot) this.#slot = slot
    return slot
  }

  #slotAt(sinceBoot: number): number {
    return Math.floor(sinceBoot / this.#slotMs)
  }

  /** Slots before the boot are negative. */
  #indexOf(slot: number): number {
    const count = this.#amounts.length
    return ((slot % count) + count) % count
  }
}
