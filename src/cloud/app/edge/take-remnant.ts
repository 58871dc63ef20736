/**
 * The remnant of an earlier incarnation: entries that its own chain could not deliver. They are billed against that
 * incarnation and shown with the segment that brought them. They never refuse the segment: what cannot be billed is kept as
 * evidence, so that a device always gets rid of them.
 */
import { newIncarnation } from './attach.ts'
import { billBranch } from './bill-branch.ts'
import type { OpenedRemnant } from './open-segment.ts'
import type { Incarnation } from './records.ts'
import type { Taking } from './taking.ts'

export async function takeRemnant(taking: Taking): Promise<void> {
  const { remnant } = taking.segment
  if (remnant === null || remnant.incarnation >= taking.incarnation.number) return
  const old = await earlier(taking, remnant.incarnation)
  const billed = await billBranch(taking, old, remnant.isChained ? remnant.entries : [])
  await keepEvidence(taking, old, remnant, billed)
}

/** A twin that was restored from a backup may not know it. */
async function earlier({ tx, device, now }: Taking, number: number): Promise<Incarnation> {
  const known = await tx.edge.incarnations.get(device.id, number)
  if (known !== undefined) return known
  const learned: Incarnation = {
    ...newIncarnation(device.id, number, now),
    status: 'FENCED',
    fencedAt: now,
    fenceReason: 'SUPERSEDED',
    grantsForgotten: true,
  }
  await tx.edge.incarnations.insert(learned)
  return learned
}

async function keepEvidence(
  { tx, segment, now }: Taking,
  old: Incarnation,
  { isChained, entries, unreadable }: OpenedRemnant,
  billed: boolean,
): Promise<void> {
  if (entries.length + unreadable === 0) return
  const problem = !isChained
    ? 'the chain of these entries is broken: they are not billed'
    : unreadable > 0
      ? `${unreadable} entries cannot be read: they are not billed`
      : billed
        ? null
        : 'not all of these entries are billed: they do not add up, or are beyond belief'
  await tx.edge.evidence.keep({
    deviceId: old.deviceId,
    incarnation: old.number,
    kind: 'REMNANT',
    seq: segment.header.seq,
    hash: segment.header.hash,
    recordedHash: null,
    recordedDocument: null,
    problem,
    document: segment.document,
    receivedAt: now,
  })
}
