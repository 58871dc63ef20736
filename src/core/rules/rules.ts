/**
 * The ordered actions of one line item. The first entry that is triggered decides; nothing falls through it. A line item
 * without actions is unrestricted; one with actions refuses whom none of them allows.
 */
import { ALWAYS_ERROR, type Dictionary, type Evaluate, type ConditionResult } from './condition.ts'
import type { Action } from './policy.ts'

export type Ruling =
  | { readonly ruling: 'ALLOW'; readonly action: Action | null }
  | { readonly ruling: 'REFUSE'; readonly why: 'RULE_DENIES' | 'RULE_ERROR'; readonly action: Action }
  | { readonly ruling: 'REFUSE'; readonly why: 'NO_RULE_MATCHES'; readonly action: null }

/** @param resultOf what a condition says of the requester */
export type Rules = (resultOf: (condition: Evaluate) => ConditionResult) => Ruling

const UNRESTRICTED: Ruling = { ruling: 'ALLOW', action: null }
const NO_RULE_MATCHES: Ruling = { ruling: 'REFUSE', why: 'NO_RULE_MATCHES', action: null }

interface Entry {
  readonly triggered: Evaluate
  readonly taken: Ruling
  readonly failed: Ruling
}

const ALWAYS: Evaluate = () => 'TRUE'
const ALWAYS_UNRESTRICTED: Rules = () => UNRESTRICTED

/** @param conditions compiled conditions of the instance by id; an id that is missing evaluates as an error */
export function compileRules(actions: readonly Action[], conditions: ReadonlyMap<string, Evaluate>): Rules {
  if (actions.length === 0) return ALWAYS_UNRESTRICTED
  const entries = actions.map((action): Entry => {
    const triggered = action.conditionId === null ? ALWAYS : (conditions.get(action.conditionId) ?? ALWAYS_ERROR)
    const taken: Ruling =
      action.effect === 'ALLOW' ? { ruling: 'ALLOW', action } : { ruling: 'REFUSE', why: 'RULE_DENIES', action }
    return { triggered, taken, failed: { ruling: 'REFUSE', why: 'RULE_ERROR', action } }
  })
  return (resultOf) => {
    for (const entry of entries) {
      const result = resultOf(entry.triggered)
      if (result === 'TRUE') return entry.taken
      if (result === 'ERROR') return entry.failed
    }
    return NO_RULE_MATCHES
  }
}

/**
 * What rules say of one requester. Each list and each condition is evaluated once, however many items, line items and actions
 * of a request ask for it: a requester cannot make a decision costly by repeating itself.
 */
export function rulingsFor(dictionary: Dictionary): (rules: Rules) => Ruling {
  const rulings = new Map<Rules, Ruling>()
  const results = new Map<Evaluate, ConditionResult>()
  const resultOf = (condition: Evaluate): ConditionResult => {
    let result = results.get(condition)
    if (result === undefined) results.set(condition, (result = condition(dictionary)))
    return result
  }
  return (rules) => {
    let ruling = rulings.get(rules)
    if (ruling === undefined) rulings.set(rules, (ruling = rules(resultOf)))
    return ruling
  }
}
