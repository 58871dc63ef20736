/** Periods that are over or not in the line item's calendar keep their caps. */
import { parseAccount } from '../../core/accounts/account.ts'
import { periodAt } from '../../core/rules/compile.ts'
import { currentPeriod, isToCome, limitPeriods } from '../accounts/calendar.ts'
import { lineItemOf } from './line-item-of.ts'
import { capOf, retarget } from '../accounts/pool.ts'
import type { ConsumptionLimitRecord, LineItemRecord, Pool } from '../storage/records.ts'
import type { Transaction } from '../storage/store.ts'

export async function retargetAccounts(tx: Transaction, record: LineItemRecord, now: number): Promise<void> {
  const { instanceId, id, calendar, start } = record
  const actions = await tx.actions.of(instanceId, id)
  const limit = await tx.consumptionLimits.get(instanceId, id)
  const lineItem = lineItemOf(record, { actions, limit }, now)
  const period = currentPeriod(calendar, start, now)
  const pools = await tx.accounts.toRetarget(instanceId, id, {
    from: limitsFrom(limit, now),
    unlike: limit?.limit ?? 0n,
  })
  await retargetPools(tx, pools, ({ account }) => {
    const parsed = parseAccount(account)
    const keeps = parsed?.kind === 'line' && parsed.period !== period && !isToCome(calendar, start, parsed.period, now)
    return keeps ? 'KEEP' : capOf(account, lineItem)
  })
}

/** For a deleted line item: nothing more is charged or granted, and the caps shrink as tokens return. */
export async function closeAccounts(tx: Transaction, { instanceId, id }: LineItemRecord, now: number): Promise<void> {
  const from = limitsFrom(await tx.consumptionLimits.get(instanceId, id), now)
  await retargetPools(tx, await tx.accounts.toRetarget(instanceId, id, { from, unlike: 0n }), () => 0n)
}

/** The period in which requesters are limited now. */
function limitsFrom(limit: ConsumptionLimitRecord | undefined, now: number): number {
  return limit === undefined ? 0 : (periodAt(limitPeriods(limit, now).periods, now)?.index ?? limit.first)
}

async function retargetPools(
  tx: Transaction,
  pools: readonly Pool[],
  capFor: (pool: Pool) => Pool['capTarget'] | 'KEEP',
): Promise<void> {
  const changed = (pool: Pool): Pool | undefined => {
    const cap = capFor(pool)
    return cap === 'KEEP' || cap === pool.capTarget ? undefined : retarget(pool, cap)
  }
  const outdated = pools.filter((pool) => changed(pool) !== undefined).map(({ account }) => account)
  const locked = await tx.accounts.lock(outdated)
  await tx.accounts.save([...locked.values()].map(changed).filter((pool) => pool !== undefined))
}
