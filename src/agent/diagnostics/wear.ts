/** Flash storage has limited write endurance: a device that exceeds its budget is reported long before it fails. */
import type { StorageWear } from '../../protocol/local/status.ts'
import { type Timers, repeat } from '../runtime/timers.ts'
import type { HealthCondition } from '../runtime/health.ts'

const SAMPLE_MS = 10 * 60_000

/** With fewer decisions, other writes (identity, rules, clock) dominate the figure. */
const DECISIONS_MIN = 100

const WINDOW_MS = 86_400_000

export interface WearDeps {
  readonly written: () => number | null
  /** Last entry of the ledger; restarts with each epoch. */
  readonly lastEntry: () => number
  readonly sinceBoot: () => number
  readonly now: () => number
  readonly timers: Timers
  /** Bytes per day; 0: no budget. */
  readonly budget: () => number
}

interface Sample {
  readonly at: number
  readonly written: number
  readonly decisions: number
}

export class Wear {
  readonly #deps: WearDeps
  #samples: Sample[] = []
  #lastEntry: number
  #decisions = 0
  #cancel: () => void = () => undefined

  constructor(deps: WearDeps) {
    this.#deps = deps
    this.#lastEntry = deps.lastEntry()
  }

  /** Starts measuring; earlier writes, such as those of a first start, are not projected. */
  start(): void {
    const sample = this.#sample()
    if (sample === null) return
    this.#samples = [sample]
    this.#cancel = repeat(this.#deps.timers, SAMPLE_MS, () => this.#keepSample())
  }

  stop(): void {
    this.#cancel()
  }

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
      // A shorter time allows no projection.
      perDay: measuredMs < SAMPLE_MS ? null : Math.round((bytes / measuredMs) * WINDOW_MS),
      budgetPerDay: budget === 0 ? null : budget,
    }
  }

  condition(): HealthCondition | null {
    const reading = this.reading()
    const perDay = reading?.perDay ?? null
    const budgetPerDay = reading?.budgetPerDay ?? null
    if (reading === null || perDay === null || budgetPerDay === null || perDay <= budgetPerDay) return null
    const message = `At the rate of the last ${hours(reading.measuredMs)}, ${mebibytes(perDay)} are written a day; the budget is ${mebibytes(budgetPerDay)}.`
    return { subject: 'storage', code: 'WRITE_BUDGET_EXCEEDED', message, since: this.#deps.now() }
  }

  #keepSample(): void {
    const sample = this.#sample()
    if (sample !== null) this.#samples.push(sample)
    const begin = this.#deps.sinceBoot() - WINDOW_MS
    while ((this.#samples[1]?.at ?? Infinity) <= begin) this.#samples.shift()
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
