/**
 * How fast one account is spent: what was charged in the last day, in slots of one hour. It is an estimate for the size
 * of grants and decides nothing; it begins anew with the process.
 */
import type { Micro } from '../../core/pricing/amount.ts'
import { TimeSlots } from '../diagnostics/time-slots.ts'

const SLOT_MS = 3_600_000
const SLOTS = 24

export class BurnRate {
  readonly #charged: TimeSlots
  readonly #begunAt: number

  /** @param sinceBoot reading of the boot-time clock, ms, here and below */
  constructor(sinceBoot: number) {
    this.#charged = new TimeSlots(SLOT_MS, SLOTS, sinceBoot)
    this.#begunAt = sinceBoot
  }

  add(amount: Micro, sinceBoot: number): void {
    this.#charged.add(amount, sinceBoot)
  }

  /** What a time of this length would take at the average rate since the beginning, at least one hour, at most a day. */
  over(horizonMs: number, sinceBoot: number): Micro {
    const sum = this.#charged.sum(sinceBoot)
    const observed = Math.min(Math.max(sinceBoot - this.#begunAt, SLOT_MS), SLOTS * SLOT_MS)
    return (sum * BigInt(Math.ceil(horizonMs))) / BigInt(Math.ceil(observed))
  }

  /** Nothing was charged for a day. */
  isIdle(sinceBoot: number): boolean {
    return this.#charged.isEmpty(sinceBoot)
  }
}
