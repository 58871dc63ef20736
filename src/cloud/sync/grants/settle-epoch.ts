import { parseAccount } from '../../../core/accounts/account.ts'
import { formatMicro } from '../../../core/pricing/amount.ts'
import { type AccountMove, movePools } from '../../accounts/move-pools.ts'
import { deviceEvent } from '../../events/device-event.ts'
import { openPools } from '../../policy/rules-in-force.ts'
import { type Settlement, settled } from '../../storage/device-records.ts'
import type { MergeUnderRules } from '../merge-context.ts'
import { saveMoves } from '../save-moves.ts'

/** Counts the outstanding tokens of a fenced epoch as used, or returns them to the pool. */
export async function settleEpoch(
  { tx, device, epoch, now, rules }: Pick<MergeUnderRules, 'tx' | 'device' | 'epoch' | 'now' | 'rules'>,
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
