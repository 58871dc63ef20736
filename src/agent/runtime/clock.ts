/**
 * An interval that contains the true time, from the cloud's signed time and the boot-time clock. Each rule uses the end
 * that cannot be abused. The wall clock, which can be changed, is only a best estimate within the interval.
 */
import type { ClockReading } from '../../core/rules/decision.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'

export interface TimeSource {
  wall(): number
  /** Suspend included, ms. */
  sinceBoot(): number
  readonly bootId: string
}

/** The known time at a boot-time reading, so that a restart in the same boot can continue it. */
export interface StoredClock {
  readonly bootId: string
  readonly sinceBoot: number
  /** POSIX ms, the true time is not earlier. Falls only by signed time. */
  readonly earliest: number
  readonly latest: number | null
}

/** Maximum error of the boot-time clock. */
const DRIFT_PPM = 200

/** Maximum lag of a boot-time reading, ms: the clock has steps of 10 ms, and a reading may be cached for one. */
const STEP_MS = 11

export class Clock {
  readonly #source: TimeSource
  #anchoredAt: number
  #earliest: number
  #latest: number | null

  /** Continues the stored interval: exactly within the same boot, otherwise from its earlier end. */
  constructor(source: TimeSource, stored: StoredClock | null) {
    this.#source = source
    const sinceBoot = source.sinceBoot()
    const sameBoot = stored?.bootId === source.bootId && stored.sinceBoot <= sinceBoot
    this.#anchoredAt = sameBoot ? stored.sinceBoot : 0
    this.#earliest = stored?.earliest ?? 0
    this.#latest = sameBoot ? stored.latest : null
  }

  get bootId(): string {
    return this.#source.bootId
  }

  sinceBoot(): number {
    return this.#source.sinceBoot()
  }

  /** POSIX ms; used for no decision. */
  wall(): number {
    return this.#source.wall()
  }

  reading(): ClockReading {
    return this.#readingAt(this.#source.sinceBoot())
  }

  /** The cloud signed `time` (POSIX ms) between these two readings of {@link Clock.sinceBoot}. */
  learn(evidence: { readonly time: number; readonly sentAt: number; readonly receivedAt: number }): void {
    const width = Math.max(0, evidence.receivedAt - evidence.sentAt) + STEP_MS
    const before = this.#readingAt(evidence.receivedAt)
    // Widened by the lag of later readings.
    const signed = {
      earliest: evidence.time - STEP_MS,
      latest: evidence.time + width + drift(width) + STEP_MS,
    }
    const both = {
      earliest: Math.max(signed.earliest, before.earliest),
      latest: before.latest === null ? signed.latest : Math.min(signed.latest, before.latest),
    }
    // Disjoint: the boot-time clock exceeds its error bound, so use the signed time.
    const { earliest, latest } = both.earliest <= both.latest ? both : signed
    this.#anchoredAt = evidence.receivedAt
    this.#earliest = earliest
    this.#latest = latest
  }

  stored(): StoredClock {
    const sinceBoot = this.#source.sinceBoot()
    const { earliest, latest } = this.#readingAt(sinceBoot)
    return { bootId: this.#source.bootId, sinceBoot, earliest, latest }
  }

  #readingAt(sinceBoot: number): ClockReading {
    const elapsed = Math.max(0, sinceBoot - this.#anchoredAt)
    const earliest = bounded(Math.floor(this.#earliest + elapsed - drift(elapsed)))
    if (this.#latest === null) {
      return { now: bounded(Math.max(earliest, Math.floor(this.#source.wall()))), earliest, latest: null }
    }
    const latest = bounded(Math.ceil(this.#latest + elapsed + drift(elapsed)))
    return { now: Math.floor((earliest + latest) / 2), earliest, latest }
  }
}

function drift(elapsed: number): number {
  return (elapsed * DRIFT_PPM) / 1_000_000
}

function bounded(instant: number): number {
  return Math.min(Math.max(0, instant), INSTANT_MAX)
}
