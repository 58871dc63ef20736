/**
 * Usage records without an entry, so that an account's records add up to its bill: presumed usage of an inactive epoch,
 * later corrections of it, and usage counted in entries that the cloud lost.
 */
import { type AccountId, parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import { used } from '../../accounts/pool.ts'
import type { Pool, UsageRecord } from '../../storage/records.ts'
import type { AccountMove } from '../../accounts/move-pools.ts'
import { spentOn } from '../../storage/device-records.ts'
import type { MergeContext } from '../merge-context.ts'

type Context = Pick<MergeContext, 'tx' | 'epoch' | 'now'>

/** @param pools after the moves */
export function writePresumptions(
  context: Context,
  moves: readonly AccountMove[],
  pools: ReadonlyMap<AccountId, Pool>,
): Promise<void> {
  return writeLines(context, 'PRESUMED', moves, pools, ({ before, after }) => after.presumed - before.presumed)
}

/** @param pools after the moves */
export function writeCounted(
  context: Context,
  moves: readonly AccountMove[],
  pools: ReadonlyMap<AccountId, Pool>,
): Promise<void> {
  return writeLines(context, 'COUNTED', moves, pools, ({ before, after }) => spentOn(after) - spentOn(before))
}

async function writeLines(
  { tx, epoch, now }: Context,
  status: 'PRESUMED' | 'COUNTED',
  moves: readonly AccountMove[],
  pools: ReadonlyMap<AccountId, Pool>,
  tokensOf: (move: AccountMove) => Micro,
): Promise<void> {
  const records: UsageRecord[] = []
  for (const move of moves) {
    const { account } = move.after
    const tokens = tokensOf(move)
    const parsed = parseAccount(account)
    const pool = pools.get(account)
    if (tokens === 0n || parsed?.kind !== 'line' || pool === undefined) continue
    const { instanceId, lineItemId } = parsed
    records.push({
      correlationId: epoch.deviceId,
      usageTime: now,
      writeTime: now,
      requesterType: 'device',
      requesterValue: epoch.deviceId,
      accountId: (await tx.instances.get(instanceId))?.accountId ?? '',
      instanceId,
      activationId: lineItemId,
      quantity: (await tx.lineItems.get(instanceId, lineItemId))?.quantity ?? null,
      used: used(pool),
      item: '',
      version: '',
      count: { digits: 0n, scale: 0 },
      operation: 'SETTLEMENT',
      status,
      tokens,
      source: { kind: 'device', deviceId: epoch.deviceId, epoch: epoch.number, entry: 0 },
      metaData: null,
    })
  }
  await tx.usage.append(records)
}
