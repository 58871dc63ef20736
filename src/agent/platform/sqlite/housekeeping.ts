/** Runs housekeeping in small steps while the journal is idle. Under constant load, one step runs now and then. */
import type { Timers } from '../../runtime/timers.ts'

export const IDLE_MS = 100

export const STEP_EVERY_MS = 10_000

/** Idle time before retrying a step that could not proceed. */
export const TRY_AGAIN_MS = 60_000

export interface HousekeepingDeps {
  /** Runs one step. False when there is nothing (more) to do. */
  readonly step: () => boolean
  /** Monotonic, ms. */
  readonly now: () => number
  readonly timers: Timers
}

export class Housekeeping {
  readonly #deps: HousekeepingDeps
  #cancel: () => void = () => undefined
  #steppedAt: number

  constructor(deps: HousekeepingDeps) {
    this.#deps = deps
    this.#steppedAt = deps.now()
  }

  answered(): void {
    if (this.#deps.now() - this.#steppedAt >= STEP_EVERY_MS) this.#step()
    this.#after(IDLE_MS)
  }

  stop(): void {
    this.#cancel()
  }

  #step(): boolean {
    const isMore = this.#deps.step()
    this.#steppedAt = this.#deps.now()
    return isMore
  }

  #after(ms: number): void {
    this.#cancel()
    this.#cancel = this.#deps.timers.after(ms, () => this.#after(this.#step() ? 0 : TRY_AGAIN_MS))
  }
}
