/**
 * An allowance that fills up evenly with time: at most `capacity` at once, and `capacity` again in each `refillMs`. It keeps
 * whole numbers only, so that nothing is gained or lost by asking often.
 */
export class Bucket {
  readonly #capacity: bigint
  readonly #refillMs: bigint
  /** Held, times `refillMs`. */
  #level: bigint
  #at: number

  /** @param now reading of a clock that never goes back, ms */
  constructor(capacity: bigint, refillMs: number, now: number) {
    this.#capacity = capacity
    this.#refillMs = BigInt(refillMs)
    this.#level = capacity * this.#refillMs
    this.#at = Math.floor(now)
  }

  /** Takes all of it, or nothing. */
  take(amount: bigint, now: number): boolean {
    this.#fill(now)
    const cost = amount * this.#refillMs
    if (cost > this.#level) return false
    this.#level -= cost
    return true
  }

  /** Takes it whether it is there or not: what is owed must fill up first. */
  owe(amount: bigint, now: number): void {
    this.#fill(now)
    this.#level -= amount * this.#refillMs
  }

  /** Puts back what was taken for nothing. */
  give(amount: bigint): void {
    const full = this.#capacity * this.#refillMs
    const level = this.#level + amount * this.#refillMs
    this.#level = level < full ? level : full
  }

  /** How long until so much is there, ms; 0 when it is. */
  waitFor(amount: bigint, now: number): number {
    this.#fill(now)
    const lacking = amount * this.#refillMs - this.#level
    if (lacking <= 0n || this.#capacity === 0n) return 0
    return Number((lacking + this.#capacity - 1n) / this.#capacity)
  }

  #fill(now: number): void {
    const passed = Math.floor(now) - this.#at
    if (passed <= 0) return
    this.#at += passed
    this.#level += this.#capacity * BigInt(passed)
    const full = this.#capacity * this.#refillMs
    if (this.#level > full) this.#level = full
  }
}
