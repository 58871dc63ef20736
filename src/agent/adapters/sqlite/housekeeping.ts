/** Runs housekeeping in small steps while the journal's thread is idle. Under constant load, one step runs now and then. */
import type { Timers } from '../../app/link/ports.ts'

/** Time without a call after which the thread counts as idle. */
export const IDLE_MS = 100

/** Interval between steps under constant load. */
export const STEP_EVERY_MS = 10_000

/** Idle time before retrying a step that could not proceed. */
export const TRY_AGAIN_MS = 60_000

export interface HousekeepingParts {
  /** Runs one step. False when there is nothing (more) to do. */
  readonly step: () => boolean
  /** Monotonic, ms. */
  readonly now: () => number
  readonly timers: Timers
}

export class Housekeeping {
  readonly #parts: HousekeepingParts
  #cancel: () => void = () => undefined
  #steppedAt: number

  constructor(parts: HousekeepingParts) {
    this.#parts = parts
    this.#steppedAt = parts.now()
  }

  answered(): void {
    if (this.#parts.now() - this.#steppedAt >= STEP_EVERY_MS) this.#step()
    this.#after(IDLE_MS)
  }

  stop(): void {
    this.#cancel()
  }

  #step(): boolean {
    const isMore = this.#parts.step()
    this.#steppedAt = this.#parts.now()
    return isMore
  }

  #after(ms: number): void {
    this.#cancel()
    this.#cancel = this.#parts.timers.after(ms, () => this.#after(this.#step() ? 0 : TRY_AGAIN_MS))
  }
}
