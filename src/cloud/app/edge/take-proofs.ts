/**
 * What the twin has signed itself and does not remember: it was restored from a backup. Grants of such answers are entered
 * again, whatever has become of the pool since, because the device may have spent them; and from then on nothing more is
 * granted of the instance's accounts until all who can hold rights in them have been heard of.
 */
import type { AccountId } from '../../../core/account.ts'
import type { Transaction } from '../store.ts'
import { type AccountMove, movePools } from './move.ts'
import type { Proof } from './open-proofs.ts'
import { type Device, type Incarnation, newDeviceAccount, settled } from './records.ts'
import { holdRules, openPools } from './rules-in-force.ts'
import type { Sync } from './taking.ts'

/** The incarnation with what its proofs say that it was granted; the same one when they say nothing new. */
export async function takeProofs(
  { policies }: Pick<Sync, 'policies'>,
  tx: Transaction,
  device: Device,
  incarnation: Incarnation,
  proofs: readonly Proof[],
  now: number,
): Promise<Incarnation> {
  const granted = new Map<AccountId, { granted: bigint; unlimited: boolean }>()
  let { term } = incarnation
  for (const { answer } of proofs) {
    if (answer.outcome !== 'MERGED' || answer.grant === null || answer.incarnation !== incarnation.number) continue
    if (answer.grant.term > term) term = answer.grant.term
    for (const account of answer.grant.accounts) {
      const before = granted.get(account.account)
      granted.set(account.account, {
        granted: before !== undefined && before.granted > account.granted ? before.granted : account.granted,
        unlimited: account.unlimited || before?.unlimited === true,
      })
    }
  }
  if (incarnation.status === 'CLOSED' || term === incarnation.term) return incarnation

  const known = await tx.edge.deviceAccounts.get(device.id, incarnation.number, [...granted.keys()])
  const moves = [...granted].flatMap(([account, proven]): AccountMove[] => {
    const before = known.get(account) ?? newDeviceAccount(device.id, incarnation.number, account)
    const unlimited = before.unlimited || proven.unlimited
    if (proven.granted <= before.granted && unlimited === before.unlimited) return []
    const more = proven.granted > before.granted ? proven.granted : before.granted
    return [{ before, after: settled({ ...before, granted: more, unlimited }, incarnation.settlement) }]
  })
  const rules = await holdRules(tx, policies, device.instanceIds, now)
  const pools = await openPools(
    tx,
    rules,
    moves.map(({ after }) => after.account),
  )
  const moved = movePools(pools, moves)
  if (moved === undefined) throw new Error('invariant: what was granted once fits a counter')
  await tx.accounts.save([...moved.values()])
  await tx.edge.deviceAccounts.save(moves.map(({ after }) => after))
  for (const instanceId of device.instanceIds) await tx.edge.learning.begin(instanceId, now)
  await tx.edge.learning.restored(now)
  const next: Incarnation = { ...incarnation, term, grantsForgotten: true }
  await tx.edge.incarnations.save(next)
  return next
}
