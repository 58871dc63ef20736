// Time that stands still until a test moves it: wall clock, boot-time clock and timers in one. Moving it runs every timer
// that comes due, in order.
import type { TimeSource } from '../../../src/agent/runtime/clock.ts'
import type { Timers } from '../../../src/agent/runtime/timers.ts'

/** POSIX ms at which a test begins unless it says otherwise. */
export const BEGIN = Date.UTC(2026, 0, 1)

interface Timer {
  readonly at: number
  readonly call: () => void
}

export class FakeTime implements TimeSource, Timers {
  bootId = 'boot-1'
  /** What the device's wall clock shows beyond the true time, ms. */
  wallErrorMs = 0
  readonly #begin: number
  #elapsed = 0
  #timers = new Set<Timer>()

  constructor(begin = BEGIN) {
    this.#begin = begin
  }

  /** The true time, which only the cloud knows. */
  truth(): number {
    return this.#begin + this.#elapsed
  }

  wall(): number {
    return this.truth() + this.wallErrorMs
  }

  sinceBoot(): number {
    return 10_000 + this.#elapsed
  }

  after(ms: number, call: () => void): () => void {
    const timer = { at: this.#elapsed + ms, call }
    this.#timers.add(timer)
    return () => this.#timers.delete(timer)
  }

  /** When the next timer comes due, in ms from this moment; Infinity for never. */
  get untilNext(): number {
    return Math.min(...[...this.#timers].map(({ at }) => at)) - this.#elapsed
  }

  /** Moves time on, and runs what comes due within it. */
  advance(ms: number): void {
    const end = this.#elapsed + ms
    for (;;) {
      const due = [...this.#timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0]
      if (due === undefined) break
      this.#timers.delete(due)
      this.#elapsed = Math.max(this.#elapsed, due.at)
      due.call()
    }
    this.#elapsed = end
  }

  /** The process is gone, and its timers with it. */
  forgetTimers(): void {
    this.#timers.clear()
  }
}
