/** One round at a time, with jitter. After a failed one, only time, a sign that the network is back, or a need ends the wait. */
import { backoff } from './backoff.ts'
import {
  EARLY_PART,
  HASTENED_WAIT_MS,
  NOTIFICATION_BURST,
  NOTIFICATION_GAP_MS,
  REQUEST_BURST,
  REQUEST_GAP_MS,
  ROUND_GAP_MS,
} from './limits.ts'
import type { Randomness } from './ports.ts'
import { Alarm, type Timers } from '../runtime/timers.ts'

/** Starts a round. The work of a round does not depend on it. */
export type WakeReason = 'timer' | 'notification' | 'low-water' | 'request' | 'operator'

export type RoundResult =
  | { readonly ok: true; readonly nextMs: number }
  /** `retryAfterMs`: as the cloud requested; 0: not requested. */
  | { readonly ok: false; readonly retryAfterMs: number }

export interface RoundsOptions {
  readonly timers: Timers
  readonly sinceBoot: () => number
  readonly randomness: Pick<Randomness, 'fraction'>
  readonly backoffBaseMs: number
  readonly backoffCapMs: number
  /** Never rejects. `reasons`: wakes since the previous round. */
  readonly round: (reasons: ReadonlySet<WakeReason>, signal: AbortSignal) => Promise<RoundResult>
}

export class Rounds {
  readonly #options: RoundsOptions
  readonly #stopped = new AbortController()
  readonly #reasons = new Set<WakeReason>()
  #running: Promise<void> | null = null
  readonly #alarm: Alarm
  #nextAt = Infinity
  #startedAt = -Infinity
  /** Separate, so that a flood of notifications cannot delay waiting requests. */
  readonly #allowances = { request: new Allowance(REQUEST_BURST), notification: new Allowance(NOTIFICATION_BURST) }
  #failures = 0
  #waitUntil = -Infinity
  #hastenedUntil = -Infinity
  #mustWait = false
  #done = 0
  #failed = 0

  constructor(options: RoundsOptions) {
    this.#options = options
    this.#alarm = new Alarm({ timers: options.timers, now: options.sinceBoot }, () => {
      this.#running = this.#run()
    })
  }

  get counts(): { readonly done: number; readonly failed: number; readonly running: boolean } {
    return { done: this.#done, failed: this.#failed, running: this.#running !== null }
  }

  /** The last round failed, and its wait is not over. */
  get waiting(): boolean {
    return this.#options.sinceBoot() < this.#waitUntil
  }

  /** Until that wait is over, ms; null: no round waits. */
  get waitMs(): number | null {
    return this.waiting ? Math.ceil(this.#waitUntil - this.#options.sinceBoot()) : null
  }

  wake(reason: WakeReason): void {
    this.#reasons.add(reason)
    this.#schedule()
  }

  /** The network is back: ends the wait of a failed round, unless the cloud requested it. */
  endBackoff(): void {
    if (!this.waiting || this.#mustWait) return
    const { sinceBoot, randomness, backoffBaseMs } = this.#options
    this.#waitUntil = Math.min(this.#waitUntil, sinceBoot() + Math.floor(randomness.fraction() * backoffBaseMs))
    this.#nextAt = this.#waitUntil
    this.#schedule()
  }

  /** A request was refused that the cloud could have helped: shortens a long wait, unless the cloud requested it. */
  hasten(): void {
    if (!this.waiting || this.#mustWait) return
    this.#waitUntil = Math.min(this.#waitUntil, this.#hastenedUntil)
    this.#nextAt = this.#waitUntil
    this.#schedule()
  }

  /** Moves the next timer round to a random moment within `withinMs`, never before a wait ends. */
  bringForward(withinMs: number): void {
    const { sinceBoot, randomness } = this.#options
    const at = Math.max(this.#waitUntil, sinceBoot() + Math.floor(randomness.fraction() * withinMs))
    this.#nextAt = Math.min(this.#nextAt, at)
    this.#schedule()
  }

  async stop(): Promise<void> {
    this.#stopped.abort()
    this.#alarm.cancel()
    await this.#running
  }

  #schedule(): void {
    if (this.#stopped.signal.aborted || this.#running !== null) return
    const dueAt = Math.min(this.#nextAt, ...[...this.#reasons].map((reason) => this.#due(reason)))
    if (dueAt < Infinity) this.#alarm.within(dueAt - this.#options.sinceBoot())
  }

  #due(reason: WakeReason): number {
    switch (reason) {
      case 'operator':
        return -Infinity
      case 'request':
      case 'notification': {
        const gapMs = reason === 'notification' ? NOTIFICATION_GAP_MS : REQUEST_GAP_MS
        const allowedAt = this.#allowances[reason].at(this.#options.sinceBoot())
        return Math.max(this.#waitUntil, this.#startedAt + gapMs, allowedAt)
      }
      case 'timer':
      case 'low-water':
        return Math.max(this.#waitUntil, this.#startedAt + ROUND_GAP_MS)
    }
  }

  async #run(): Promise<void> {
    const { sinceBoot, randomness, round, backoffBaseMs, backoffCapMs } = this.#options
    const reasons = new Set(this.#reasons)
    this.#reasons.clear()
    this.#startedAt = sinceBoot()
    for (const reason of ['request', 'notification'] as const) {
      if (reasons.has(reason)) this.#allowances[reason].take(this.#startedAt)
    }
    const result = await round(reasons, this.#stopped.signal)
    const now = sinceBoot()
    if (result.ok) {
      this.#done += 1
      this.#failures = 0
      this.#waitUntil = -Infinity
      this.#nextAt = now + Math.floor(result.nextMs * (1 - randomness.fraction() * EARLY_PART))
    } else {
      this.#failed += 1
      this.#failures += 1
      this.#mustWait = result.retryAfterMs > 0
      const limits = { baseMs: backoffBaseMs, capMs: backoffCapMs }
      const fraction = randomness.fraction()
      this.#waitUntil = now + backoff(this.#failures, result.retryAfterMs, fraction, limits)
      this.#hastenedUntil = now + Math.floor((1 + fraction) * HASTENED_WAIT_MS)
      this.#nextAt = this.#waitUntil
    }
    this.#running = null
    this.#schedule()
  }
}

/** Rounds that may start at once; one more becomes available per {@link ROUND_GAP_MS}. */
class Allowance {
  readonly #most: number
  #left: number
  #takenAt = -Infinity

  constructor(most: number) {
    this.#most = most
    this.#left = most
  }

  at(now: number): number {
    return now + Math.ceil(Math.max(0, 1 - this.#now(now)) * ROUND_GAP_MS)
  }

  take(now: number): void {
    this.#left = Math.max(0, this.#now(now) - 1)
    this.#takenAt = now
  }

  #now(now: number): number {
    return Math.min(this.#most, this.#left + (now - this.#takenAt) / ROUND_GAP_MS)
  }
}
