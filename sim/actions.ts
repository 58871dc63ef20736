/** Which action of a line item decides on a requester. */
import { truthOf } from '../test/core/rules/naive-evaluator.ts'
import { CONDITIONS } from './conditions.ts'
import type { ActionPlan, LineItemPlan } from './plan.ts'

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
