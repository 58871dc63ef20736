/** A line item's rules in words, as an administrator has set them and as they were published. */
import type { Condition, LineItem, Policy } from '../../src/core/rules/policy.ts'
import { actionsOf } from '../actions.ts'
import { CONDITIONS } from '../conditions.ts'
import type { LineItemPlan } from '../plan.ts'
import { MICRO } from './rule-calls.ts'

const micro = (tokens: number | null): string => (tokens === null ? 'none' : String(BigInt(tokens) * MICRO))

export function wordsOfPlan(item: LineItemPlan): string {
  const { id, state, quantity, overdraft, startsAt, endsAt, series, limit, overspendCap } = item
  if (state === 'DELETED') return 'none'
  const actions = actionsOf(item).map(({ effect, condition, allocation }) => {
    return `${effect} ${condition === null ? 'others' : shapeOf(CONDITIONS[condition])} ${micro(allocation)}`
  })
  const pool = `${micro(quantity)} + ${overdraft === 'UNLIMITED' ? overdraft : micro(overdraft)}`
  const rules = [`limit ${micro(limit)}`, `overspend ${micro(overspendCap)}`, ...actions]
  return [id, state, pool, startsAt, endsAt, series ?? '', ...rules].join('; ')
}

export function wordsOfPublished(item: LineItem | undefined, { conditions }: Policy): string {
  if (item === undefined) return 'none'
  const { id, state, quantity, overdraft, startsAt, endsAt, rateTableSeries, consumptionLimit, offline } = item
  const actions = item.actions.map(({ effect, conditionId, allocation }) => {
    const condition = conditions.find((each) => each.id === conditionId)
    return `${effect} ${condition === undefined ? 'others' : shapeOf(condition)} ${allocation ?? 'none'}`
  })
  const overspend = offline?.policy === 'essential' ? offline.overspendCap : 0n
  const rules = [`limit ${consumptionLimit?.limit ?? 'none'}`, `overspend ${overspend}`, ...actions]
  return [id, state, `${quantity} + ${overdraft}`, startsAt, endsAt, rateTableSeries, ...rules].join('; ')
}

function shapeOf(condition: Condition): string {
  switch (condition.operator) {
    case 'IN':
      return `${condition.property} in ${condition.values.join()}`
    case 'NOT':
      return `not (${shapeOf(condition.condition)})`
    default:
      return `${condition.operator} (${condition.conditions.map(shapeOf).join('; ')})`
  }
}
