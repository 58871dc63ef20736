/**
 * A segment of the right writer that does not add up: somebody has altered the device's database, or its software is faulty.
 * The refusal is signed, so that the device begins anew and delivers its entries as a remnant, where each counts for
 * itself: what does not add up once never will.
 */
import { fenced } from './attach.ts'
import { keepEvidence } from './keep-evidence.ts'
import { type Taken, type Taking, ownerOf, signAnswer } from './taking.ts'

/** Keeps the evidence and fences the incarnation; no balance changes. */
export async function reject(
  taking: Taking,
  problem: string,
  facts: Readonly<Record<string, unknown>>,
): Promise<Taken> {
  const { deps, tx, incarnation, segment, now, present } = taking
  const { hash } = segment.header
  await keepEvidence(taking, { incarnation: incarnation.number, kind: 'REJECTED', problem })
  await tx.edge.incarnations.save({ ...fenced(incarnation, 'REJECTED', { now, present }), rejected: true })
  const answer = await signAnswer(deps, { outcome: 'REJECTED', ...ownerOf(incarnation), hash, problem })
  return { taken: false, problem: `The segment does not add up: ${problem}.`, facts: { problem, ...facts }, answer }
}
