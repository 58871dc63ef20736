/** The cloud's usage records. Source: documentation on usage data; docs/decisions/usage-records.md. */
import { type AccountId, isLineAccount, lineAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { periodAt } from '../../core/rules/compile.ts'
import type { Decision, RequestedItem, Requester } from '../../core/rules/decision.ts'
import type { ReservedItem, SessionItem } from '../../core/sessions/session.ts'
import type { LoadedPolicy } from '../policy/load-policy.ts'
import { used } from '../accounts/pool.ts'
import type { Pool, UsageOperation, UsageRecord, UsageSource } from '../storage/records.ts'

export interface UsageHeader {
  readonly correlationId: string
  readonly requester: Pick<Requester, 'type' | 'value'>
  readonly source: UsageSource
  readonly now: number
}

export interface ChargeHeader extends UsageHeader {
  readonly operation: Exclude<UsageOperation, 'REFUND'>
}

/** @param decided `before`: the pools before the charge */
export function usageOfDecision(
  header: ChargeHeader,
  loaded: LoadedPolicy,
  items: readonly SessionItem[],
  { decision, before }: { readonly decision: Decision; readonly before: ReadonlyMap<AccountId, Pool> },
): readonly UsageRecord[] {
  const { operation } = header
  const totals = new Map<string, Micro>()
  const count = (lineItemId: string, charged: Micro): Micro => {
    const total = (totals.get(lineItemId) ?? usedNow(loaded, before, lineItemId, header.now)) + charged
    totals.set(lineItemId, total)
    return total
  }
  return items.flatMap((item, index): UsageRecord[] => {
    const outcome = decision.items[index]
    if (outcome === undefined) throw new Error('invariant: one outcome per requested item')
    if (outcome.outcome !== 'GRANTED') {
      const status = outcome.outcome === 'REFUSED' ? outcome.reason : outcome.outcome
      return [{ ...common(header, loaded, item), operation, ...NO_LINE_ITEM, status, tokens: 0n }]
    }
    return outcome.shares.map(({ lineItemId, charged, rate }): UsageRecord => ({
      ...common(header, loaded, item),
      activationId: lineItemId,
      quantity: loaded.lineItems.get(lineItemId)?.quantity ?? null,
      used: count(lineItemId, charged),
      operation,
      rate,
      status: 'GRANTED',
      tokens: charged,
    }))
  })
}

export function withMetaData(
  items: readonly RequestedItem[],
  metaData: readonly (string | null)[],
): readonly SessionItem[] {
  return items.map((item, index) => ({ ...item, metaData: metaData[index] ?? null }))
}

function usedNow(loaded: LoadedPolicy, pools: ReadonlyMap<AccountId, Pool>, lineItemId: string, now: number): Micro {
  const period = periodAt(loaded.lineItems.get(lineItemId)?.periods ?? [], now)
  return used(period && pools.get(lineAccount(loaded.policy.instanceId, lineItemId, period.index)))
}

export function usageOfRefund(
  header: UsageHeader,
  loaded: LoadedPolicy,
  refunded: readonly ReservedItem[],
  after: ReadonlyMap<AccountId, Pool>,
): readonly UsageRecord[] {
  const totals = new Map<AccountId, Micro>()
  for (const [account, pool] of after) totals.set(account, used(pool))
  const records: UsageRecord[] = []
  for (const { item, shares } of [...refunded].reverse()) {
    for (const { lineItemId, accounts, charged, rate } of [...shares].reverse()) {
      if (charged === 0n) continue
      const pool = accounts.find(isLineAccount)
      const total = pool === undefined ? null : (totals.get(pool) ?? null)
      records.unshift({
        ...common(header, loaded, item),
        activationId: lineItemId,
        quantity: loaded.lineItems.get(lineItemId)?.quantity ?? null,
        used: total,
        ...(rate === undefined ? {} : { rate }),
        operation: 'REFUND',
        status: 'REFUNDED',
        tokens: -charged,
      })
      if (pool !== undefined && total !== null) totals.set(pool, total + charged)
    }
  }
  return records
}

const NO_LINE_ITEM = { activationId: null, quantity: null, used: null }

function common({ correlationId, requester, source, now }: UsageHeader, loaded: LoadedPolicy, item: SessionItem) {
  return {
    correlationId,
    usageTime: now,
    writeTime: now,
    requesterType: requester.type,
    requesterValue: requester.value,
    accountId: loaded.accountId,
    instanceId: loaded.policy.instanceId,
    item: item.name,
    version: item.version,
    count: item.count,
    source,
    metaData: item.metaData,
  }
}
