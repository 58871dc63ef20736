/** What the stored records of a line item mean to the engine. */
import type { Micro } from '../../core/amount.ts'
import type { Action, ConsumptionLimit, LineItem } from '../../core/policy.ts'
import { limitPeriods, lineItemPeriods } from './calendar.ts'
import type { ConsumptionLimitRecord, LineItemRecord } from './records.ts'

/**
 * @param arrearsCap what devices may spend of it above their grants; 0n: nothing
 * @param at when the policy is issued: its calendars are listed from there
 */
export function lineItemOf(
  record: LineItemRecord,
  actions: readonly Action[],
  limit: ConsumptionLimitRecord | undefined,
  arrearsCap: Micro,
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
    ...(arrearsCap > 0n ? { offline: { policy: 'essential' as const, arrearsCap } } : {}),
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
