import type { Micro } from '../../core/pricing/amount.ts'
import type { Action, ConsumptionLimit, LineItem } from '../../core/rules/policy.ts'
import { limitPeriods, lineItemPeriods } from '../accounts/calendar.ts'
import type { ConsumptionLimitRecord, LineItemRecord } from '../storage/records.ts'

export interface LineItemRules {
  readonly actions: readonly Action[]
  readonly limit: ConsumptionLimitRecord | undefined
  /** Per device above its grants. Absent: none. */
  readonly overspendCap?: Micro | undefined
}

/** @param at the policy's issue time, from which calendars are listed */
export function lineItemOf(
  record: LineItemRecord,
  { actions, limit, overspendCap = 0n }: LineItemRules,
  at: number,
): LineItem {
  return {
    id: record.id,
    state: record.state,
    elastic: record.elastic,
    rateTableSeries: record.rateTableSeries ?? '',
    startsAt: record.start,
    endsAt: record.end,
    quantity: record.quantity,
    overdraft: overdraftOf(record),
    periods: lineItemPeriods(record.calendar, record.start, at).periods,
    actions,
    consumptionLimit: limitOf(limit, at),
    ...(overspendCap > 0n ? { offline: { policy: 'essential' as const, overspendCap } } : {}),
  }
}

function overdraftOf({ overdraftType, overdraftLimit }: LineItemRecord): LineItem['overdraft'] {
  if (overdraftType === 'Unlimited') return 'UNLIMITED'
  return overdraftType === 'Number' ? (overdraftLimit ?? 0n) : 0n
}

function limitOf(record: ConsumptionLimitRecord | undefined, at: number): ConsumptionLimit | null {
  if (record === undefined || record.limit === null) return null
  return { limit: record.limit, periods: limitPeriods(record, at).periods }
}
