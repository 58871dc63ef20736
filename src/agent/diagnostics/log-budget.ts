/**
 * Keeps the log of a device within what a day may have, whatever goes on: logs are on the same flash as the ledger. Of
 * lines alike a few are written; more are counted, and told with their count every ten minutes. Beyond that a budget fills with time; half of it
 * is for warnings and errors alone, and what finds no room is counted. It never holds a line up, and never throws.
 */
import type { Timers } from '../sync/ports.ts'

/** Lines alike are counted over this time. */
const WINDOW_MS = 10 * 60_000

/** So many of them are written as they come. */
const BURST = 5

/** Kinds of lines that are watched at a time; what is beyond them is held to the budget alone. */
const KINDS_MAX = 500

const DAY_MS = 86_400_000

/** From this level on a line may have all of the budget: `warn` of pino. */
const WARNING = 40

export interface LogBudgetDeps {
  /** One line with its end. */
  readonly write: (line: string) => void
  /** Boot-time reading, ms. */
  readonly sinceBoot: () => number
  readonly timers: Timers
  /** Bytes that a day may have; 0: no limit, and every line is written. */
  readonly perDay: () => number
}

interface Kind {
  /** Written as they came. */
  written: number
  /** Counted since. */
  repeated: number
  line: string
}

export class LogBudget {
  readonly #deps: LogBudgetDeps
  readonly #kinds = new Map<string, Kind>()
  readonly #cancels = new Set<() => void>()
  /** Bytes that may be written at once. */
  #available: number
  #filledAt: number
  #leftOut = 0

  constructor(deps: LogBudgetDeps) {
    this.#deps = deps
    this.#available = availableMax(deps.perDay())
    this.#filledAt = deps.sinceBoot()
  }

  /** @param line one record as JSON, with its end */
  take(line: string): void {
    if (this.#deps.perDay() === 0) {
      this.#deps.write(line)
      return
    }
    const { level, kind } = kindOf(line)
    const known = this.#kinds.get(kind)
    if (known !== undefined) {
      if (known.written >= BURST) {
        known.repeated += 1
        known.line = line
        return
      }
      known.written += 1
    } else if (this.#kinds.size < KINDS_MAX) this.#watch(kind, { written: 1, repeated: 0, line })
    this.#write(line, level)
  }

  /** Tells what has been counted so far, at a stop. */
  flush(): void {
    for (const cancel of this.#cancels) cancel()
    this.#cancels.clear()
    for (const { repeated, line } of this.#kinds.values()) this.#tellRepeated(repeated, line)
    this.#kinds.clear()
    this.#tellLeftOut()
  }

  #watch(name: string, kind: Kind): void {
    this.#kinds.set(name, kind)
    const cancel = this.#deps.timers.after(WINDOW_MS, () => {
      this.#cancels.delete(cancel)
      this.#kinds.delete(name)
      if (kind.repeated === 0) return
      // It goes on: the next ones are counted from the first on.
      this.#watch(name, { written: BURST, repeated: 0, line: kind.line })
      this.#tellRepeated(kind.repeated, kind.line)
    })
    this.#cancels.add(cancel)
  }

  #tellRepeated(repeated: number, line: string): void {
    if (repeated === 0) return
    const { level } = kindOf(line)
    this.#write(`${line.trimEnd().replace(/\}$/, `,"repeated":${repeated}}`)}\n`, level)
  }

  #write(line: string, level: number): void {
    this.#fill()
    const most = availableMax(this.#deps.perDay())
    const bytes = Buffer.byteLength(line)
    if (bytes > this.#available - (level < WARNING ? most / 2 : 0)) {
      this.#leftOut += 1
      return
    }
    this.#available -= bytes
    this.#deps.write(line)
    this.#tellLeftOut()
  }

  /** Where there is room again: what was left out must not look as if it had not happened. */
  #tellLeftOut(): void {
    if (this.#leftOut === 0) return
    const line = `{"level":${WARNING},"lines":${this.#leftOut},"msg":"log lines were left out: the log had its share of the day"}\n`
    const bytes = Buffer.byteLength(line)
    if (bytes > this.#available) return
    this.#available -= bytes
    this.#leftOut = 0
    this.#deps.write(line)
  }

  #fill(): void {
    const now = this.#deps.sinceBoot()
    const perDay = this.#deps.perDay()
    const most = availableMax(perDay)
    const filled = ((now - this.#filledAt) / DAY_MS) * (perDay - most)
    this.#available = Math.min(most, this.#available + Math.max(0, filled))
    this.#filledAt = now
  }
}

/** What may be written at once: with what fills in a day it makes up the share of a day. */
function availableMax(perDay: number): number {
  return perDay / 4
}

/** Lines alike: the same message of the same level about the same thing. What cannot be read is a kind of its own. */
function kindOf(line: string): { readonly level: number; readonly kind: string } {
  try {
    const { level, msg, code, subject, reason } = JSON.parse(line) as Record<string, unknown>
    return { level: Number(level), kind: JSON.stringify([level, msg, code, subject, reason]) }
  } catch {
    return { level: 0, kind: line.slice(0, 200) }
  }
}
