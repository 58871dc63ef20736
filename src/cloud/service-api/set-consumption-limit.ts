/**
 * Consumption limits: tokens per requester until the next reset. Setting a limit starts its counts at zero; changing
 * only the amount keeps them. Source: docs/decisions/periods.md.
 */
import { recordChange } from '../storage/audit.ts'
import { type Micro, formatMicro } from '../../core/pricing/amount.ts'
import { periodAt } from '../../core/rules/compile.ts'
import { CodedError, bodyError } from '../../protocol/errors.ts'
import { limitPeriods, unlistedLimitPeriod } from '../accounts/calendar.ts'
import { changeRules } from '../policy/bump-policy-revision.ts'
import type { ConsumptionLimitRecord } from '../storage/records.ts'
import { refuseTooLarge } from '../policy/refuse-too-large.ts'
import { retargetAccounts } from '../policy/retarget-accounts.ts'
import { requireLineItem } from '../storage/require-record.ts'
import type { LineItemPlace } from './show-line-items.ts'
import type { Reader, Store } from '../storage/store.ts'

export interface ConsumptionLimitTerms {
  readonly limit: Micro
  readonly frequency: ConsumptionLimitRecord['frequency']
  readonly nextReset: number
}

/** The next reset is after `now`. @throws CodedError NOT_FOUND */
export async function showConsumptionLimit(
  reader: Reader,
  { instanceId, lineItemId }: LineItemPlace,
  now: number,
): Promise<ConsumptionLimitTerms> {
  await requireLineItem(reader, instanceId, lineItemId)
  const terms = termsOf(await reader.consumptionLimits.get(instanceId, lineItemId), now)
  if (terms === undefined) throw new CodedError('NOT_FOUND', 'The line item has no consumption limit.')
  return terms
}

/** The next reset is after `now`. Undefined: there is no limit, or it is removed. */
export function termsOf(record: ConsumptionLimitRecord | undefined, now: number): ConsumptionLimitTerms | undefined {
  if (record === undefined || record.limit === null) return undefined
  return { limit: record.limit, frequency: record.frequency, nextReset: nextReset(record, now) }
}

/** @throws CodedError NOT_FOUND, BAD_REQUEST */
export async function setConsumptionLimit(
  store: Store,
  { instanceId, lineItemId }: LineItemPlace,
  terms: ConsumptionLimitTerms,
  now: number,
): Promise<ConsumptionLimitTerms> {
  if (terms.nextReset <= now) throw bodyError('must be in the future', ['nextReset'])
  return changeRules(store, instanceId, now, async (tx, { listedAt }) => {
    const record = await requireLineItem(tx, instanceId, lineItemId)
    const stored = await tx.consumptionLimits.get(instanceId, lineItemId)
    const continues =
      stored !== undefined &&
      stored.limit !== null &&
      stored.frequency === terms.frequency &&
      nextReset(stored, now) === terms.nextReset
    await tx.consumptionLimits.save(
      continues
        ? { ...stored, limit: terms.limit }
        : {
            instanceId,
            lineItemId,
            ...terms,
            first: stored === undefined ? 0 : unlistedLimitPeriod(stored, listedAt),
          },
    )
    await refuseTooLarge(tx, instanceId, now)
    await retargetAccounts(tx, record, now)
    const detail = { ...terms, limit: formatMicro(terms.limit) }
    await recordChange(tx, now, { action: 'SET_CONSUMPTION_LIMIT', instanceId, lineItemId, detail })
    return terms
  })
}

/** @throws CodedError NOT_FOUND */
export async function removeConsumptionLimit(
  store: Store,
  { instanceId, lineItemId }: LineItemPlace,
  now: number,
): Promise<void> {
  await changeRules(store, instanceId, now, async (tx) => {
    const record = await requireLineItem(tx, instanceId, lineItemId)
    const stored = await tx.consumptionLimits.get(instanceId, lineItemId)
    if (stored === undefined || stored.limit === null) {
      throw new CodedError('NOT_FOUND', 'The line item has no consumption limit.')
    }
    await tx.consumptionLimits.save({ ...stored, limit: null })
    await retargetAccounts(tx, record, now)
    await recordChange(tx, now, { action: 'DELETE_CONSUMPTION_LIMIT', instanceId, lineItemId })
  })
}

function nextReset(record: ConsumptionLimitRecord, now: number): number {
  return periodAt(limitPeriods(record, now).periods, now)?.until ?? record.nextReset
}
