/**
 * The actions of one line item. The first one whose condition is met decides, else the default action. Without actions
 * a line item is unrestricted; with actions it refuses requesters that no action allows.
 */
import { ALWAYS_ERROR, type Dictionary, type Evaluate, type ConditionResult } from './condition.ts'
import type { Action } from './policy.ts'

export type Ruling =
  | { readonly ruling: 'ALLOW'; readonly action: Action | null }
  | { readonly ruling: 'REFUSE'; readonly why: 'RULE_DENIES' | 'RULE_ERROR'; readonly action: Action }
  | { readonly ruling: 'REFUSE'; readonly why: 'NO_RULE_MATCHES'; readonly action: null }

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

export function compileRules(actions: readonly Action[], conditions: ReadonlyMap<string, Evaluate>): Rules {
  if (actions.length === 0) return ALWAYS_UNRESTRICTED
  const entries = defaultLast(actions).map((action): Entry => {
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

function defaultLast(actions: readonly Action[]): readonly Action[] {
  return [
    ...actions.filter(({ conditionId }) => conditionId !== null),
    ...actions.filter(({ conditionId }) => conditionId === null),
  ]
}

/** Evaluates the actions for one requester. Caches results, so that repetition in a request does not make it costly. */
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
