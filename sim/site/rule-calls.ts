/** Administrators' calls: one use case per part of a line item's rules. */
import { replaceActions } from '../../src/cloud/service-api/change-actions.ts'
import { createRateTable } from '../../src/cloud/service-api/change-rate-tables.ts'
import { deleteLineItem } from '../../src/cloud/service-api/delete-line-item.ts'
import { mapLineItem } from '../../src/cloud/service-api/map-line-item.ts'
import { removeConsumptionLimit, setConsumptionLimit } from '../../src/cloud/service-api/set-consumption-limit.ts'
import { parseDecimal } from '../../src/core/pricing/amount.ts'
import type { RatedItem } from '../../src/core/rules/policy.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { LineItemBody } from '../../src/protocol/service/line-items.ts'
import { actionsOf } from '../actions.ts'
import type { ConditionName } from '../conditions.ts'
import { BEGIN, HOUR, type Happening, ITEMS, type LineItemPlan, RATES } from '../plan.ts'
import type { TwinProcess } from '../twin/twin-process.ts'

export const MICRO = 1_000_000n

const DAY = 24 * HOUR

export interface InstanceMade {
  readonly id: string
  readonly conditionIds: ReadonlyMap<ConditionName, string>
}

export async function map({ store, now }: TwinProcess, instance: InstanceMade, item: LineItemPlan): Promise<void> {
  const { id, state } = item
  if (state === 'DELETED') {
    await deleteLineItem(store, instance.id, id, now())
    return
  }
  const mapped = await mapLineItem(store, instance.id, lineItemBody({ ...item, state }), now())
  if (mapped.outcome === 'REFUSED')
    throw new Error(`the plan asks for what is refused: ${mapped.problems.map(({ text }) => text).join(', ')}`)
}

/** As administrators send it. */
export function lineItemBody(item: LineItemPlan & { readonly state: LineItemBody['state'] }): LineItemBody {
  const { id, state, quantity, startsAt, endsAt, overdraft, frequency, series } = item
  const attributes = {
    elastic: true,
    ...(overdraft === 0
      ? {}
      : { overdraftType: overdraft === 'UNLIMITED' ? ('Unlimited' as const) : ('Number' as const) }),
    ...(typeof overdraft === 'number' && overdraft > 0 ? { overdraftLimit: overdraft } : {}),
    ...(frequency === 'NONE' ? {} : { resetFrequency: frequency }),
    ...(series === null ? {} : { rateTableSeries: series }),
  }
  return { activationId: id, state, quantity, start: startsAt, end: endsAt, attributes }
}

/** @param known ids of the actions with allocations. Returns their new ids */
export async function setActions(
  { store, newId, now }: TwinProcess,
  { id: instanceId, conditionIds }: InstanceMade,
  item: LineItemPlan,
  known: readonly string[],
): Promise<readonly string[]> {
  const ids = [...known]
  const inputs = actionsOf(item).map(({ effect, condition, allocation }) => {
    const id = allocation === null ? undefined : ids.shift()
    return {
      ...(id === undefined ? {} : { id }),
      action: effect,
      ...(condition === null ? {} : { conditionId: conditionIds.get(condition) ?? '' }),
      ...(allocation === null ? {} : { allocation: BigInt(allocation) * MICRO }),
    }
  })
  const made = await replaceActions({ store, newId }, { instanceId, lineItemId: item.id }, inputs, now())
  return made.flatMap(({ action }) => (action.allocation === null ? [] : [action.id]))
}

/** Micro-tokens. */
export function allocationsOf(item: LineItemPlan): readonly bigint[] {
  return actionsOf(item).flatMap(({ allocation }) => (allocation === null ? [] : [BigInt(allocation) * MICRO]))
}

export async function setLimit(
  { store, now }: TwinProcess,
  instance: InstanceMade,
  { id, limit }: LineItemPlan,
): Promise<void> {
  const place = { instanceId: instance.id, lineItemId: id }
  if (limit === null) {
    await removeConsumptionLimit(store, place, now()).catch((error: unknown) => {
      if (!(error instanceof CodedError) || error.code !== 'NOT_FOUND') throw error
    })
    return
  }
  const firstReset = BEGIN + 2 * HOUR
  const days = Math.max(0, Math.ceil((now() + 1 - firstReset) / DAY))
  const nextReset = firstReset + days * DAY
  const terms = { limit: BigInt(limit) * MICRO, frequency: 'DAILY' as const, nextReset }
  await setConsumptionLimit(store, place, terms, now())
}

export type Rates = Pick<Extract<Happening, { kind: 'rates' }>, 'factor' | 'inMs' | 'series' | 'areFormulas'>

export async function setRates(
  { store, now }: Pick<TwinProcess, 'store' | 'now'>,
  version: string,
  { factor, inMs, series = null, areFormulas = false }: Rates,
): Promise<void> {
  const items = ITEMS.map((name): RatedItem => {
    if (areFormulas) return { name, version: '', formula: `ROUND(MAX(${RATES[name]} * ${factor}, 0.01) / 3, 3)` }
    const rate = parseDecimal(Number((RATES[name] * factor).toFixed(6)))
    if (rate === undefined) throw new Error('a rate is a decimal')
    return { name, version: '', rate }
  })
  await createRateTable(
    store,
    { version, effectiveFrom: now() + inMs, items, ...(series === null ? {} : { series }) },
    now(),
  )
}
