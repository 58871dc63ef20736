/** Saves moved accounts and pools, with usage records where no entry has them: an account's records add up to its bill. */
import { parseAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { used } from '../accounts/pool.ts'
import type { Pool, UsageRecord } from '../storage/records.ts'
import type { Transaction } from '../storage/store.ts'
import type { AccountMove, MovedPools } from '../accounts/move-pools.ts'
import { spentOn } from '../storage/device-records.ts'
import type { MergeContext } from './merge-context.ts'

type Context = Pick<MergeContext, 'tx' | 'epoch' | 'now'>

export async function saveMoves(context: Context, moved: MovedPools): Promise<void> {
  await saveAccounts(context.tx, moved)
  await writePresumed(context, moved)
}

export async function saveAccounts(
  tx: Transaction,
  { moves, after }: Pick<MovedPools, 'moves' | 'after'>,
): Promise<void> {
  await tx.accounts.save([...after.values()])
  await tx.edge.deviceAccounts.save(moves.map((move) => move.after))
}

export function writePresumed(context: Context, moved: MovedPools): Promise<void> {
  return writeSettlements(context, 'PRESUMED', moved, (move, pool) => ({
    tokens: presumedBy(move),
    used: used(pool),
  }))
}

/** Before the records of what the same moves presume. */
export function writeCounted(context: Context, moved: MovedPools): Promise<void> {
  return writeSettlements(context, 'COUNTED', moved, (move, pool) => ({
    tokens: spentOn(move.after) - spentOn(move.before),
    used: used(pool) - presumedBy(move),
  }))
}

function presumedBy({ before, after }: AccountMove): Micro {
  return after.presumed - before.presumed
}

async function writeSettlements(
  { tx, epoch, now }: Context,
  status: 'PRESUMED' | 'COUNTED',
  { moves, after: pools }: MovedPools,
  settlementOf: (move: AccountMove, after: Pool) => Pick<UsageRecord, 'tokens' | 'used'>,
): Promise<void> {
  const records: UsageRecord[] = []
  for (const move of moves) {
    const { account } = move.after
    const parsed = parseAccount(account)
    const pool = pools.get(account)
    if (parsed?.kind !== 'line' || pool === undefined) continue
    const settlement = settlementOf(move, pool)
    if (settlement.tokens === 0n) continue
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
      ...settlement,
      item: '',
      version: '',
      count: { digits: 0n, scale: 0 },
      operation: 'SETTLEMENT',
      status,
      source: { kind: 'device', deviceId: epoch.deviceId, epoch: epoch.number, entry: 0 },
      metaData: null,
    })
  }
  await tx.usage.append(records)
}
