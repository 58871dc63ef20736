/** Records signed grants that the cloud lost, whatever the pool has now, because the device may have spent them. */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { type AccountMove, movePools } from '../accounts/move-pools.ts'
import { type Proof, isForgotten } from './open-proofs.ts'
import { type Epoch, newDeviceAccount, settled } from '../storage/device-records.ts'
import { openPools } from '../policy/rules-in-force.ts'
import type { MergeContext } from './merge-context.ts'
import { saveMoves } from './save-moves.ts'

/** All that the proofs show of one account. */
interface ProvenGrant {
  readonly granted: Micro
  readonly last: { readonly term: number; readonly unlimited: boolean }
  readonly metered: boolean
}

export async function takeProofs(
  context: Pick<MergeContext, 'deps' | 'tx' | 'device' | 'epoch' | 'now'>,
  proofs: readonly Proof[],
): Promise<Epoch> {
  const { deps, tx, device, epoch, now } = context
  const shown = new Map<AccountId, ProvenGrant>()
  const forgotten = proofs.filter((proof) => isForgotten(epoch, proof))
  if (epoch.status === 'CLOSED' || forgotten.length === 0) return epoch
  let { term } = epoch
  for (const { answer } of forgotten) {
    if (answer.outcome !== 'MERGED' || answer.grant === null) continue
    if (answer.grant.term > term) term = answer.grant.term
    for (const { account, granted, unlimited } of answer.grant.accounts) {
      const before = shown.get(account)
      const last =
        before !== undefined && before.last.term > answer.grant.term
          ? before.last
          : { term: answer.grant.term, unlimited }
      shown.set(account, {
        granted: before !== undefined && before.granted > granted ? before.granted : granted,
        last,
        metered: unlimited || before?.metered === true,
      })
    }
  }
  const known = await tx.edge.deviceAccounts.get(device.id, epoch.number, [...shown.keys()])
  const moves = [...shown].flatMap(([account, proven]): AccountMove[] => {
    const before = known.get(account) ?? newDeviceAccount(device.id, epoch.number, account)
    // A grant of other accounts can be known before this one. The device learns of a limit with its next grant.
    const isLatest = proven.last.term > epoch.term
    const unlimited = isLatest ? proven.last.unlimited : before.unlimited || proven.last.unlimited
    const metered = before.metered || proven.metered
    if (proven.granted <= before.granted && unlimited === before.unlimited && metered === before.metered) return []
    const more = proven.granted > before.granted ? proven.granted : before.granted
    const after = settled(
      { ...before, granted: more, unlimited, metered, wasMetered: before.wasMetered || metered },
      epoch.settlement,
    )
    return [{ before, after, isProven: true }]
  })
  const rules = await deps.policies.lockSomeShared(tx, device.instanceIds, now)
  const pools = await openPools(
    tx,
    rules,
    moves.map(({ after }) => after.account),
  )
  const moved = movePools(pools, moves)
  if (moved === undefined) throw new Error('invariant: what was granted once fits a counter')
  // Grants of a settled epoch count as used until its segments prove otherwise.
  await saveMoves(context, moved)
  const next: Epoch = { ...epoch, term, grantsForgotten: true }
  await tx.edge.epochs.save(next)
  return next
}
