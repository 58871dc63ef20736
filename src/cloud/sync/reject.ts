/**
 * Rejects an inconsistent segment of the right writer, which a retry cannot fix. The refusal is signed, so the device
 * starts a new epoch and delivers its entries as undelivered ones, judged separately.
 */
import { fenced } from './attach.ts'
import { keepEvidence } from './merge/keep-evidence.ts'
import { type MergeResult, type MergeContext, ownerOf, signAnswer } from './merge-context.ts'

/** Keeps the evidence and fences the epoch; no balance changes. */
export async function reject(
  context: MergeContext,
  problem: string,
  details: Readonly<Record<string, unknown>>,
): Promise<MergeResult> {
  const { deps, tx, epoch, segment, now, present } = context
  const { hash } = segment.header
  await keepEvidence(context, { epoch: epoch.number, kind: 'REJECTED', problem })
  await tx.edge.epochs.save({ ...fenced(epoch, 'REJECTED', { now, present }), rejected: true })
  const answer = await signAnswer(deps, { outcome: 'REJECTED', ...ownerOf(epoch), hash, problem })
  return { taken: false, problem: `The segment does not add up: ${problem}.`, details: { problem, ...details }, answer }
}
