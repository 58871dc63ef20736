/**
 * Lines of the bill for what is presumed: one when a silent incarnation is settled as used, and one with the difference
 * whenever evidence comes in afterwards, so that the lines of an account add up to what is billed to it.
 */
import type { AccountId } from '../../../core/account.ts'
import { parseAccount } from '../../../core/account.ts'
import { used } from '../pool.ts'
import type { Pool, UsageRecord } from '../records.ts'
import type { AccountMove } from './move.ts'
import type { Taking } from './taking.ts'

/** @param pools as they are after the moves */
export async function writePresumptions(
  { tx, incarnation, now }: Pick<Taking, 'tx' | 'incarnation' | 'now'>,
  moves: readonly AccountMove[],
  pools: ReadonlyMap<AccountId, Pool>,
): Promise<void> {
  const records: UsageRecord[] = []
  for (const { before, after } of moves) {
    const tokens = after.presumed - before.presumed
    const parsed = parseAccount(after.account)
    const pool = pools.get(after.account)
    if (tokens === 0n || parsed?.kind !== 'line' || pool === undefined) continue
    const { instanceId, lineItemId } = parsed
    records.push({
      correlationId: incarnation.deviceId,
      usageTime: now,
      writeTime: now,
      requesterType: 'device',
      requesterValue: incarnation.deviceId,
      accountId: (await tx.instances.get(instanceId))?.accountId ?? '',
      instanceId,
      activationId: lineItemId,
      quantity: (await tx.lineItems.get(instanceId, lineItemId))?.quantity ?? null,
      used: used(pool),
      item: '',
      version: '',
      count: { digits: 0n, scale: 0 },
      operation: 'SETTLEMENT',
      status: 'PRESUMED',
      tokens,
      source: { kind: 'device', deviceId: incarnation.deviceId, incarnation: incarnation.number, entry: 0 },
      metaData: null,
    })
  }
  await tx.usage.append(records)
}
