/**
 * A twin that was restored from a backup finds out by itself, also when nobody has said so: a device shows what the twin has
 * signed and does not know. From then on nothing is granted of the instance's accounts until all who can hold rights in them
 * have been heard of, and the rules go on with revisions above all that can have been forgotten.
 */
import { passForgottenRevisions } from '../raise-policy.ts'
import type { Transaction } from '../store.ts'
import { learnsFrom } from './learning.ts'
import type { Proof, ShownRules } from './open-proofs.ts'
import type { Device, Incarnation } from './records.ts'

/**
 * A segment of this incarnation that the twin has acknowledged and does not know, a grant, or rules: nothing but a restore can
 * be the reason, since what is signed leaves only after its commit. Nothing to do where everybody is heard of since a later
 * instant.
 *
 * @returns the instances of which the twin begins to learn what it has forgotten
 */
export async function noticeRestore(
  tx: Transaction,
  device: Device,
  { number, lastSeq, term }: Incarnation,
  proofs: readonly Proof[],
  rules: readonly ShownRules[],
  now: number,
): Promise<readonly string[]> {
  const forgotten = proofs.filter(
    ({ answer }) =>
      answer.incarnation === number &&
      ((answer.receipt?.incarnation === number && answer.receipt.seq > lastSeq) ||
        (answer.outcome === 'MERGED' && (answer.grant?.term ?? 0) > term)),
  )
  const shown = forgotten.map(({ answer }) => (answer.outcome === 'MERGED' ? answer.time : 0))
  const restored: string[] = []
  for (const instanceId of [...device.instanceIds].sort()) {
    const known = (await tx.policyRevisions.get(instanceId))?.revision ?? 0
    const newer = rules.filter((each) => each.instanceId === instanceId && each.revision > known)
    const signedAt = Math.max(-1, ...shown, ...newer.map(({ issuedAt }) => issuedAt))
    if (signedAt < 0) continue
    const since = await tx.edge.learning.since(instanceId)
    const isKnown = since !== undefined && since > signedAt
    // The clock of this host may be behind the one by which they were raised.
    if (!isKnown || newer.length > 0) {
      await passForgottenRevisions(tx, instanceId, now, Math.max(0, ...newer.map(({ revision }) => revision)))
    }
    if (isKnown) continue
    await tx.edge.learning.begin(instanceId, await learnsFrom(tx, now))
    restored.push(instanceId)
  }
  if (restored.length > 0) {
    await tx.edge.learning.restored(now)
    await tx.edge.audit.append({ at: now, by: 'twin', action: 'NOTICE_RESTORE', deviceId: device.id, sessionId: null })
  }
  return restored
}
