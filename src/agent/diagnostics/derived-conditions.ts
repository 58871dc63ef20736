/** Conditions that follow from the state of the agent. They begin and end when this notices it. */
import type { HealthCondition } from '../runtime/health.ts'
import { type Timers, repeat } from '../runtime/timers.ts'
import type { AgentLog } from '../sync/ports.ts'

const LOOK_EVERY_MS = 10_000

export interface DerivedConditionsDeps {
  readonly find: () => readonly HealthCondition[]
  readonly log: Pick<AgentLog, 'warn'>
  readonly timers: Timers
}

export class DerivedConditions {
  readonly #deps: DerivedConditionsDeps
  #known: ReadonlyMap<string, HealthCondition> = new Map()

  constructor(deps: DerivedConditionsDeps) {
    this.#deps = deps
  }

  /** Notices changes also while no caller lists the conditions. Returns a function that stops it. */
  watch(): () => void {
    return repeat(this.#deps.timers, LOOK_EVERY_MS, () => void this.list())
  }

  /** `since` stays while the code is the same. */
  list(): readonly HealthCondition[] {
    const { find, log } = this.#deps
    const before = this.#known
    const found = find().map((condition) => ({
      ...condition,
      since: before.get(keyOf(condition))?.since ?? condition.since,
    }))
    this.#known = new Map(found.map((condition) => [keyOf(condition), condition]))
    for (const { subject, code, since, message } of found) {
      if (!before.has(keyOf({ subject, code }))) log.warn({ subject, code, since }, message)
    }
    for (const [key, { subject, code, since }] of before) {
      if (!this.#known.has(key)) log.warn({ subject, code, since }, 'a problem has ended')
    }
    return found
  }
}

function keyOf({ code, subject }: Pick<HealthCondition, 'code' | 'subject'>): string {
  return `${code} ${subject}`
}
