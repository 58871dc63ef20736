/**
 * When the journal's thread keeps house: in small steps, in the moments in which nobody asks for anything. Where calls never
 * pause it takes one step between two of them now and then, so that it always gets there and is never what they wait for.
 */
import type { Timers } from '../../app/link/ports.ts'

/** So long without a call means that the next one is not just coming. */
export const IDLE_MS = 100

/** Where calls never pause, there is one step in this time. */
export const STEP_EVERY_MS = 10_000

/** It is tried again after so long without a call, for what was in its way. */
export const TRY_AGAIN_MS = 60_000

export interface HousekeepingParts {
  /** One step. False when there is nothing (more) to do. */
  readonly step: () => boolean
  /** A monotonic clock, ms. */
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

  /** A call has been answered. */
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
