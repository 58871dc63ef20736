/**
 * What the twin has signed itself and does not remember: it was restored from a backup, whether anybody has said so or not.
 * Grants of such answers are entered again, whatever has become of the pool since, because the device may have spent them;
 * and from then on nothing more is granted of the instance's accounts until all who can hold rights in them have been heard
 * of, and the rules go on with revisions above all that can have been forgotten.
 */
import type { AccountId } from '../../../core/account.ts'
import { passForgottenRevisions } from '../raise-policy.ts'
import type { Transaction } from '../store.ts'
import { learnsFrom } from './learning.ts'
import { type AccountMove, movePools } from './move.ts'
import type { Proof } from './open-proofs.ts'
import { type Device, type Incarnation, newDeviceAccount, settled } from './records.ts'
import { holdRules, openPools } from './rules-in-force.ts'
import type { Sync } from './taking.ts'
import { writePresumptions } from './write-presumptions.ts'

export interface Shown {
  /** With what its proofs say that it was granted; the same one when they say nothing new. */
  readonly incarnation: Incarnation
  /** Instances of which the twin begins to learn what it has forgotten. */
  readonly restored: readonly string[]
}

export async function takeProofs(
  { policies }: Pick<Sync, 'policies'>,
  tx: Transaction,
  device: Device,
  incarnation: Incarnation,
  proofs: readonly Proof[],
  now: number,
): Promise<Shown> {
  const restored = await noticeRestore(tx, device, incarnation, proofs, now)
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
  if (incarnation.status === 'CLOSED' || term === incarnation.term) return { incarnation, restored }

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
  // What was granted to an incarnation that is settled counts as used until its segments say otherwise.
  await writePresumptions({ tx, incarnation, now }, moves, moved)
  const next: Incarnation = { ...incarnation, term, grantsForgotten: true }
  await tx.edge.incarnations.save(next)
  return { incarnation: next, restored }
}

/**
 * A segment of this incarnation that the twin has acknowledged and does not know, or a grant: nothing but a restore can be
 * the reason, since an answer leaves only after its commit. Nothing to do where everybody is heard of since a later instant.
 */
async function noticeRestore(
  tx: Transaction,
  device: Device,
  { number, lastSeq, term }: Incarnation,
  proofs: readonly Proof[],
  now: number,
): Promise<readonly string[]> {
  const forgotten = proofs.filter(
    ({ answer }) =>
      answer.incarnation === number &&
      ((answer.receipt?.incarnation === number && answer.receipt.seq > lastSeq) ||
        (answer.outcome === 'MERGED' && (answer.grant?.term ?? 0) > term)),
  )
  if (forgotten.length === 0) return []
  const signedAt = Math.max(...forgotten.map(({ answer }) => (answer.outcome === 'MERGED' ? answer.time : 0)))
  const restored: string[] = []
  for (const instanceId of [...device.instanceIds].sort()) {
    const since = await tx.edge.learning.since(instanceId)
    if (since !== undefined && since > signedAt) continue
    await passForgottenRevisions(tx, instanceId, now)
    await tx.edge.learning.begin(instanceId, await learnsFrom(tx, now))
    restored.push(instanceId)
  }
  if (restored.length > 0) {
    await tx.edge.audit.append({ at: now, by: 'twin', action: 'NOTICE_RESTORE', deviceId: device.id, sessionId: null })
  }
  return restored
}
