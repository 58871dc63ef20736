/**
 * What a device knows of the time: an interval that surely holds the true time, made of the cloud's signed time and of
 * the boot-time clock, never of the wall clock. Each rule uses the end of it that cannot be abused. The wall clock, which
 * anybody can set, is at most the best estimate while nothing better bounds it, and never outside of the interval.
 */
import type { ClockReading } from '../../core/rules/decision.ts'
import type { StoredClock } from '../ledger/journal.ts'

/** What the machine shows; the one place where time enters. */
export interface TimeSource {
  /** The wall clock, POSIX ms. */
  wall(): number
  /** Time since boot, suspend included, ms. */
  sinceBoot(): number
  /** Another text after each boot. */
  readonly bootId: string
}

/** How wrong the boot-time clock may be: 200 ppm. */
const DRIFT_PPM = 200

/** A reading of the boot-time clock may be so much behind, ms: it comes in steps of 10, and may be kept for one. */
const STEP_MS = 11

/** The last millisecond of the year 9999: no reading is above it. */
const LAST_INSTANT = 253_402_300_799_999

export class Clock {
  readonly #source: TimeSource
  #anchoredAt: number
  #earliest: number
  #latest: number | null

  /** Goes on from what was stored: exactly within the same boot, from its earlier end after another one. */
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

  /** Time since boot, suspend included, in ms. Only differences mean something. */
  sinceBoot(): number {
    return this.#source.sinceBoot()
  }

  /** What the wall clock shows, POSIX ms; it decides nothing. */
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
    // Both ends make room for the step in which the time since then will be read.
    const told = {
      earliest: evidence.time - STEP_MS,
      latest: evidence.time + width + drift(width) + STEP_MS,
    }
    const both = {
      earliest: Math.max(told.earliest, before.earliest),
      latest: before.latest === null ? told.latest : Math.min(told.latest, before.latest),
    }
    // Where the two do not meet, the boot-time clock is worse than its bound: the signed time is what counts.
    const { earliest, latest } = both.earliest <= both.latest ? both : told
    this.#anchoredAt = evidence.receivedAt
    this.#earliest = earliest
    this.#latest = latest
  }

  /** What goes into the journal. */
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
  return Math.min(Math.max(0, instant), LAST_INSTANT)
}
