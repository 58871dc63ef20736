/** Usage records without an entry, so that an account's records add up to its bill. */
import { parseAccount } from '../../../core/accounts/account.ts'
import { type Micro, formatMicro } from '../../../core/pricing/amount.ts'
import { deviceEvent } from '../../events/device-event.ts'
import { used } from '../../accounts/pool.ts'
import type { UsageRecord } from '../../storage/records.ts'
import type { Transaction } from '../../storage/store.ts'
import { type AccountMove, type MovedPools, movePools } from '../../accounts/move-pools.ts'
import { openPools } from '../../policy/rules-in-force.ts'
import { type Settlement, settled, spentOn } from '../../storage/device-records.ts'
import type { MergeContext, MergeUnderRules } from '../merge-context.ts'

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
  return writeLines(context, 'PRESUMED', moved, ({ before, after }) => after.presumed - before.presumed)
}

/** Counts what is out on a fenced epoch as used, or returns it to the pool. */
export async function settleEpoch(
  { tx, epoch, now, rules }: Pick<MergeUnderRules, 'tx' | 'epoch' | 'now' | 'rules'>,
  as: Settlement,
): Promise<void> {
  const records = await tx.edge.deviceAccounts.ofEpoch(epoch.deviceId, epoch.number)
  const moves = [...records.values()]
    .map((before): AccountMove => ({ before, after: settled(before, as) }))
    .filter(({ before, after }) => before.presumed !== after.presumed || before.released !== after.released)
  const accounts = moves.map(({ after }) => after.account)
  const moved = movePools(await openPools(tx, rules, accounts), moves)
  if (moved === undefined) throw new Error('invariant: settled tokens were reserved before')
  await tx.edge.epochs.save({ ...epoch, settlement: as, settledAt: now })
  await saveMoves({ tx, epoch, now }, moved)
  const device = await tx.edge.devices.get(epoch.deviceId)
  if (device === undefined) throw new Error('invariant: devices are never deleted')
  const detail = { epoch: epoch.number, settlement: as, lineItems: settledTokens(moves) }
  await tx.events.append(
    deviceEvent(device, { type: 'device.settled', what: `${epoch.number}/settled`, at: now, detail }),
  )
}

function settledTokens(moves: readonly AccountMove[]) {
  return moves.flatMap(({ before, after }) => {
    const parsed = parseAccount(after.account)
    if (parsed?.kind !== 'line') return []
    const { instanceId, lineItemId, period } = parsed
    const tokens = after.presumed - before.presumed + after.released - before.released
    return [{ instanceId, lineItemId, period, tokens: formatMicro(tokens) }]
  })
}

export function writeCounted(context: Context, moved: MovedPools): Promise<void> {
  return writeLines(context, 'COUNTED', moved, ({ before, after }) => spentOn(after) - spentOn(before))
}

async function writeLines(
  { tx, epoch, now }: Context,
  status: 'PRESUMED' | 'COUNTED',
  { moves, after: pools }: MovedPools,
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
