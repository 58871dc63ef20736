/** A token bucket of integers, so frequent calls lose nothing to rounding. */
export class Bucket {
  readonly #capacity: bigint
  readonly #refillMs: bigint
  /** Contents, times `refillMs`. */
  #level: bigint
  #at: number

  /** @param now reading of the boot clock, ms */
  constructor(capacity: bigint, refillMs: number, now: number) {
    this.#capacity = capacity
    this.#refillMs = BigInt(refillMs)
    this.#level = capacity * this.#refillMs
    this.#at = Math.floor(now)
  }

  take(amount: bigint, now: number): boolean {
    this.#fill(now)
    const cost = amount * this.#refillMs
    if (cost > this.#level) return false
    this.#level -= cost
    return true
  }

  owe(amount: bigint, now: number): void {
    this.#fill(now)
    this.#level -= amount * this.#refillMs
  }

  give(amount: bigint): void {
    const full = this.#capacity * this.#refillMs
    const level = this.#level + amount * this.#refillMs
    this.#level = level < full ? level : full
  }

  /** Time until `amount` is available, ms; 0 if it is now. */
  waitFor(amount: bigint, now: number): number {
    this.#fill(now)
    const lacking = amount * this.#refillMs - this.#level
    if (lacking <= 0n || this.#capacity === 0n) return 0
    return Number((lacking + this.#capacity - 1n) / this.#capacity)
  }

  fullInMs(now: number): number {
    return this.waitFor(this.#capacity, now)
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
