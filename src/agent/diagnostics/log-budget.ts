/**
 * Limits the bytes that the log writes per day, because it shares the flash with the ledger. Repeated lines are
 * counted; half of the budget is reserved for warnings and errors. Never blocks or throws.
 */
import type { Timers } from '../runtime/timers.ts'

const WINDOW_MS = 10 * 60_000

const BURST = 5

/** Kinds of lines tracked at a time; for others only the budget applies. */
const KINDS_MAX = 500

const DAY_MS = 86_400_000

/** Level `warn` of pino; from here on lines may use the whole budget. */
const WARNING = 40

export interface LogBudgetDeps {
  readonly write: (line: string) => void
  readonly sinceBoot: () => number
  readonly timers: Timers
  /** Bytes; 0: no limit. */
  readonly perDay: () => number
}

interface Kind {
  written: number
  repeated: number
  line: string
}

export class LogBudget {
  readonly #deps: LogBudgetDeps
  readonly #kinds = new Map<string, Kind>()
  readonly #cancels = new Set<() => void>()
  #available: number
  #filledAt: number
  #leftOut = 0

  constructor(deps: LogBudgetDeps) {
    this.#deps = deps
    this.#available = availableMax(deps.perDay())
    this.#filledAt = deps.sinceBoot()
  }

  /** @param line one JSON record with its line break */
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
      // Still repeating: counts all further lines.
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

/** Together with a day's refill this is a day's share. */
function availableMax(perDay: number): number {
  return perDay / 4
}

function kindOf(line: string): { readonly level: number; readonly kind: string } {
  try {
    const { level, msg, code, subject, reason } = JSON.parse(line) as Record<string, unknown>
    return { level: Number(level), kind: JSON.stringify([level, msg, code, subject, reason]) }
  } catch {
    return { level: 0, kind: line.slice(0, 200) }
  }
}
