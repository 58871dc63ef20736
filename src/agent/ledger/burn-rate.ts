/** How fast an account is spent, from hourly slots of the last day. */
import type { Micro } from '../../core/pricing/amount.ts'
import { TimeSlots } from './time-slots.ts'

const SLOT_MS = 3_600_000
const SLOTS = 24

export class BurnRate {
  readonly #charged: TimeSlots
  readonly #begunAt: number

  constructor(sinceBoot: number) {
    this.#charged = new TimeSlots(SLOT_MS, SLOTS, sinceBoot)
    this.#begunAt = sinceBoot
  }

  add(amount: Micro, sinceBoot: number): void {
    this.#charged.add(amount, sinceBoot)
  }

  /** Expected use over the horizon, at the average rate of 1 to 24 hours. */
  over(horizonMs: number, sinceBoot: number): Micro {
    const sum = this.#charged.sum(sinceBoot)
    const observed = Math.min(Math.max(sinceBoot - this.#begunAt, SLOT_MS), SLOTS * SLOT_MS)
    return (sum * BigInt(Math.ceil(horizonMs))) / BigInt(Math.ceil(observed))
  }

  /** How long the amount lasts at the average rate, ms; null: nothing was used, or the use of an hour is not known yet. */
  lasts(amount: Micro, sinceBoot: number): number | null {
    if (sinceBoot - this.#begunAt < SLOT_MS) return null
    const perDay = this.over(SLOTS * SLOT_MS, sinceBoot)
    return perDay === 0n ? null : Number((amount * BigInt(SLOTS * SLOT_MS)) / perDay)
  }

  isIdle(sinceBoot: number): boolean {
    return this.#charged.isEmpty(sinceBoot)
  }
}
