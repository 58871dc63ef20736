/** Conditions that follow from the state of the agent. They begin and end when this notices it. */
import type { HealthCondition } from '../runtime/health.ts'
import { type Timers, repeat } from '../runtime/timers.ts'
import type { AgentLog } from '../sync/ports.ts'

const LOOK_EVERY_MS = 10_000

/** A condition has ended when so many looks in a row do not find it. So one that is near its limit is logged once. */
const ABSENT_LOOKS = 6

interface Known {
  readonly condition: HealthCondition
  absentLooks: number
}

export interface DerivedConditionsDeps {
  readonly find: () => readonly HealthCondition[]
  readonly log: Pick<AgentLog, 'warn'>
  readonly timers: Timers
}

export class DerivedConditions {
  readonly #deps: DerivedConditionsDeps
  readonly #known = new Map<string, Known>()

  constructor(deps: DerivedConditionsDeps) {
    this.#deps = deps
  }

  /** Notices changes also while no caller lists the conditions. Returns a function that stops it. */
  watch(): () => void {
    return repeat(this.#deps.timers, LOOK_EVERY_MS, () => this.#look())
  }

  /** `since` stays while the code is the same. */
  list(): readonly HealthCondition[] {
    const { find, log } = this.#deps
    return find().map((found) => {
      const { subject, code, message } = found
      const key = keyOf(found)
      const before = this.#known.get(key)
      const condition = before === undefined ? found : { ...found, since: before.condition.since }
      this.#known.set(key, { condition, absentLooks: 0 })
      if (before === undefined) log.warn({ subject, code, since: condition.since }, message)
      return condition
    })
  }

  #look(): void {
    for (const each of this.#known.values()) each.absentLooks += 1
    this.list()
    for (const [key, { condition, absentLooks }] of this.#known) {
      if (absentLooks < ABSENT_LOOKS) continue
      this.#known.delete(key)
      const { subject, code, since } = condition
      this.#deps.log.warn({ subject, code, since }, 'a problem has ended')
    }
  }
}

function keyOf({ code, subject }: Pick<HealthCondition, 'code' | 'subject'>): string {
  return `${code} ${subject}`
}
