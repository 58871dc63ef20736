/** A segment of the right writer that does not add up: somebody has altered the device's database. */
import { fenced } from './attach.ts'
import { type Taken, type Taking, ownerOf } from './taking.ts'

/** Keeps the evidence and fences the incarnation; no balance changes. */
export async function reject(
  { tx, incarnation, segment, now }: Taking,
  problem: string,
  facts: Readonly<Record<string, unknown>>,
): Promise<Taken> {
  await tx.edge.evidence.keep({
    ...ownerOf(incarnation),
    kind: 'REJECTED',
    seq: segment.header.seq,
    hash: segment.header.hash,
    recordedHash: null,
    recordedDocument: null,
    problem,
    document: segment.document,
    receivedAt: now,
  })
  await tx.edge.incarnations.save({ ...fenced(incarnation, 'REJECTED', now), rejected: true })
  return { taken: false, problem: `The segment does not add up: ${problem}.`, facts: { problem, ...facts } }
}
