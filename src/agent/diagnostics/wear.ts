/**
 * How fast the agent wears its storage out: bytes written over the last day, and what they come to for a decision and for a
 * day. Flash endures so many bytes and no more, so a device that writes faster than its budget should be seen years before
 * it fails. It only reads counters: a fault in it changes no decision.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { StorageWear } from '../../protocol/local/status.ts'
import type { HealthCondition } from '../sync/health.ts'
import type { Timers } from '../sync/ports.ts'

/** Between two samples. */
const SAMPLE_MS = 10 * 60_000

/** Of fewer decisions, what one takes is drowned in what is written without any: identity, rules, the clock. */
const DECISIONS_MIN = 100

/** What the projection looks back on. */
const WINDOW_MS = 86_400_000

export interface WearDeps {
  /** Bytes that this process has sent to storage since its start; null where the system does not tell. */
  readonly written: () => number | null
  /** Number of the last entry of the ledger; begins again with each epoch. */
  readonly lastEntry: () => number
  /** Boot-time reading, ms. */
  readonly sinceBoot: () => number
  /** Best estimate, POSIX ms. */
  readonly now: () => number
  readonly timers: Timers
  /** Bytes a day; 0: none is set. */
  readonly budget: () => number
}

interface Sample {
  readonly at: number
  readonly written: number
  readonly decisions: number
}

export class Wear {
  readonly #deps: WearDeps
  /** Oldest first; all within the window but the first. */
  #samples: Sample[] = []
  #lastEntry: number
  #decisions = 0
  #condition: HealthCondition | null = null
  #cancel: () => void = () => undefined

  constructor(deps: WearDeps) {
    this.#deps = deps
    this.#lastEntry = deps.lastEntry()
  }

  /** Begins to measure: what was written before, such as the files of a first start, is not projected. */
  start(): void {
    const sample = this.#sample()
    if (sample === null) return
    this.#samples = [sample]
    this.#next()
  }

  stop(): void {
    this.#cancel()
  }

  /** Null where the system does not tell what is written. */
  reading(): StorageWear | null {
    const [first] = this.#samples
    const now = first === undefined ? null : this.#sample()
    if (first === undefined || now === null) return null
    const [bytes, decisions, measuredMs] = [
      now.written - first.written,
      now.decisions - first.decisions,
      now.at - first.at,
    ]
    const budget = this.#deps.budget()
    return {
      written: now.written,
      measuredMs,
      perDecision: decisions < DECISIONS_MIN ? null : Math.round(bytes / decisions),
      // Of a shorter time a day would be a guess.
      perDay: measuredMs < SAMPLE_MS ? null : Math.round((bytes / measuredMs) * WINDOW_MS),
      budgetPerDay: budget === 0 ? null : budget,
    }
  }

  /** Stands while more is projected to be written than the budget allows. */
  condition(): HealthCondition | null {
    const reading = this.reading()
    const perDay = reading?.perDay ?? null
    const budgetPerDay = reading?.budgetPerDay ?? null
    if (reading === null || perDay === null || budgetPerDay === null || perDay <= budgetPerDay) {
      this.#condition = null
      return null
    }
    const { code, message, details } = new CodedError(
      'WRITE_BUDGET_EXCEEDED',
      `At the rate of the last ${hours(reading.measuredMs)}, ${mebibytes(perDay)} are written a day; the budget is ${mebibytes(budgetPerDay)}.`,
      { details: { perDay, budgetPerDay } },
    )
    const since = this.#condition?.since ?? this.#deps.now()
    this.#condition = { subject: 'storage', code, message, since, details }
    return this.#condition
  }

  #next(): void {
    this.#cancel = this.#deps.timers.after(SAMPLE_MS, () => {
      const sample = this.#sample()
      if (sample !== null) this.#samples.push(sample)
      const begin = this.#deps.sinceBoot() - WINDOW_MS
      while ((this.#samples[1]?.at ?? Infinity) <= begin) this.#samples.shift()
      this.#next()
    })
  }

  #sample(): Sample | null {
    const written = this.#deps.written()
    if (written === null) return null
    const lastEntry = this.#deps.lastEntry()
    this.#decisions += lastEntry < this.#lastEntry ? lastEntry : lastEntry - this.#lastEntry
    this.#lastEntry = lastEntry
    return { at: this.#deps.sinceBoot(), written, decisions: this.#decisions }
  }
}

function hours(ms: number): string {
  return ms < 2 * 3_600_000 ? `${Math.floor(ms / 60_000)} minutes` : `${Math.floor(ms / 3_600_000)} hours`
}

function mebibytes(bytes: number): string {
  return `${Math.ceil(bytes / 2 ** 20)} MiB`
}
