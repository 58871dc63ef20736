/** Writes accepted entries, whose usage records are made when they are read. */
import { type AccountId, parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { used } from '../../accounts/pool.ts'
import type { Delivery } from '../../storage/device-records.ts'
import type { Pool } from '../../storage/records.ts'
import type { OpenedEntry } from '../open-segment.ts'
import { type MergeUnderRules, ownerOf } from '../merge-context.ts'
import { sumUsage } from '../../usage/usage-of-entries.ts'

export interface BilledEntries extends Pick<Delivery, 'branch' | 'previousHash' | 'billedBefore'> {
  readonly entries: readonly OpenedEntry[]
}

export async function writeUsage(
  { tx, epoch, segment, now, rules }: Pick<MergeUnderRules, 'tx' | 'epoch' | 'segment' | 'now' | 'rules'>,
  { entries, ...chain }: BilledEntries,
  pools: ReadonlyMap<AccountId, Pool>,
): Promise<void> {
  if (entries.length === 0) return
  const accountIds = new Map<string, string>()
  const quantities = new Map<string, Micro>()
  const totals = new Map<AccountId, Micro>()
  const nameLineItem = async (instanceId: string, lineItemId: string): Promise<void> => {
    const key = `${instanceId}/${lineItemId}`
    if (quantities.has(key)) return
    // The rules have no deleted ones.
    const listed = rules.get(instanceId)?.lineItems.get(lineItemId)
    const lineItem = listed ?? (await tx.lineItems.get(instanceId, lineItemId))
    if (lineItem !== undefined) quantities.set(key, lineItem.quantity)
  }
  for (const { instanceId, lineItemIds, accounts } of namesIn(entries)) {
    const instance = rules.get(instanceId) ?? (await tx.instances.get(instanceId))
    accountIds.set(instanceId, instance?.accountId ?? '')
    for (const lineItemId of lineItemIds) await nameLineItem(instanceId, lineItemId)
    for (const account of accounts) {
      const pool = pools.get(account)
      if (pool !== undefined) totals.set(account, used(pool))
    }
  }
  const before = new Set(chain.billedBefore)
  await tx.usage.deliver({
    ...ownerOf(epoch),
    segment: segment.header.seq,
    ...chain,
    entries,
    inputs: { writeTime: now, accountIds, quantities, used: totals },
    sums: sumUsage(before.size === 0 ? entries : entries.filter(({ n }) => !before.has(n))),
  })
}

function namesIn(entries: readonly OpenedEntry[]) {
  const found = new Map<string, { lineItemIds: Set<string>; accounts: Set<AccountId> }>()
  for (const { body } of entries) {
    const names = found.get(body.instanceId) ?? { lineItemIds: new Set(), accounts: new Set() }
    found.set(body.instanceId, names)
    for (const { parts } of body.items) for (const { lineItemId } of parts) names.lineItemIds.add(lineItemId)
    for (const { account } of body.postings) {
      const parsed = parseAccount(account)
      if (parsed === undefined) continue
      names.lineItemIds.add(parsed.lineItemId)
      if (parsed.kind === 'line') names.accounts.add(account)
    }
  }
  return [...found].map(([instanceId, names]) => ({ instanceId, ...names }))
}
