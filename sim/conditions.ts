/** Conditions of the site, by name, and which action of a line item decides on a requester. */
import type { Condition } from '../src/core/rules/policy.ts'
import { truthOf } from '../test/core/rules/naive-evaluator.ts'
import type { ActionPlan, LineItemPlan } from './plan.ts'

const isIn = (property: string, ...values: readonly string[]): Condition => ({ operator: 'IN', property, values })
const not = (condition: Condition): Condition => ({ operator: 'NOT', condition })
const all = (...conditions: readonly Condition[]): Condition => ({ operator: 'AND', conditions })
const any = (...conditions: readonly Condition[]): Condition => ({ operator: 'OR', conditions })

const gold = isIn('tier', 'gold')
const onTrial = isIn('trial', 'true')

const NESTED = {
  senior: any(gold, all(isIn('level', '3', '4.5'), not(onTrial))),
  printing: all(isIn('team', 'print', 'press'), not(any(gold, onTrial))),
  deep: not(not(not(not(any(all(isIn('team', 'scan')), not(not(isIn('tier', 'silver')))))))),
  anyone: any(gold, not(gold)),
} satisfies Record<string, Condition>

export const CONDITIONS = { gold, others: not(gold), ...NESTED }

export type ConditionName = keyof typeof CONDITIONS

/** Made only where a plan uses them. */
export const NESTED_NAMES = Object.keys(NESTED) as readonly (keyof typeof NESTED)[]

const ALLOW: ActionPlan = { effect: 'ALLOW', condition: null, allocation: null }
const DENY: ActionPlan = { ...ALLOW, effect: 'DENY' }

export function actionsOf({ actions, audience, goldAllocation }: LineItemPlan): readonly ActionPlan[] {
  if (actions !== undefined) return actions
  if (audience === 'NOT_GOLD') return [{ ...DENY, condition: 'gold' }, ALLOW]
  const first: readonly ActionPlan[] =
    goldAllocation === null ? [] : [{ ...ALLOW, condition: 'gold', allocation: goldAllocation }]
  if (audience === 'ALL') return [...first, ALLOW]
  return goldAllocation === null ? [{ ...DENY, condition: 'others' }, ALLOW] : [...first, DENY]
}

/** The action that allows the requester; undefined: none does. */
export function allowing(item: LineItemPlan, dictionary: Readonly<Record<string, unknown>>): ActionPlan | undefined {
  for (const action of actionsOf(item)) {
    const truth = action.condition === null ? 'TRUE' : truthOf(CONDITIONS[action.condition], dictionary)
    if (truth === 'FALSE') continue
    return truth === 'TRUE' && action.effect === 'ALLOW' ? action : undefined
  }
  return undefined
}
