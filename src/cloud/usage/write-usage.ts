/** Writes usage records of accepted entries. */
import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { used } from '../accounts/pool.ts'
import type { Pool } from '../storage/records.ts'
import type { OpenedEntry } from '../sync/open-segment.ts'
import type { MergeContext } from '../sync/merge-context.ts'
import { usageOfEntries } from './usage-of-entries.ts'

function lineItemsOf({ items, postings }: OpenedEntry['body']): readonly string[] {
  const charged = items.flatMap(({ parts }) => parts.map(({ lineItemId }) => lineItemId))
  const posted = postings.map(({ account }) => parseAccount(account)?.lineItemId)
  return [...charged, ...posted.filter((id): id is string => id !== undefined)]
}

/** @param pools before the entries */
export async function writeUsage(
  { tx, epoch, now }: Pick<MergeContext, 'tx' | 'epoch' | 'now'>,
  entries: readonly OpenedEntry[],
  pools: ReadonlyMap<AccountId, Pool>,
): Promise<void> {
  const accountIds = new Map<string, string>()
  const quantities = new Map<string, Micro>()
  const key = (instanceId: string, lineItemId: string): string => `${instanceId}/${lineItemId}`
  for (const { body } of entries) {
    const { instanceId } = body
    if (!accountIds.has(instanceId)) {
      accountIds.set(instanceId, (await tx.instances.get(instanceId))?.accountId ?? '')
    }
    for (const lineItemId of lineItemsOf(body)) {
      if (quantities.has(key(instanceId, lineItemId))) continue
      const lineItem = await tx.lineItems.get(instanceId, lineItemId)
      if (lineItem !== undefined) quantities.set(key(instanceId, lineItemId), lineItem.quantity)
    }
  }
  await tx.usage.append(
    usageOfEntries(entries, {
      deviceId: epoch.deviceId,
      epoch: epoch.number,
      writeTime: now,
      accountIdOf: (instanceId) => accountIds.get(instanceId) ?? '',
      quantityOf: (instanceId, lineItemId) => quantities.get(key(instanceId, lineItemId)) ?? null,
      usedBefore: (account) => {
        const pool = pools.get(account)
        return pool === undefined ? 0n : used(pool)
      },
    }),
  )
}
