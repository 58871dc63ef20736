/**
 * Two writers continue one chain: somebody copied the device, or restored it from a backup. Neither is locked out: the
 * incarnation is fenced, both segments are kept as evidence, and what the other writer has charged is billed as a branch
 * of its own. Its refunds are not: what they give back may have been given back already.
 */
import { fenced } from './attach.ts'
import { billBranch } from './bill-branch.ts'
import { keepEvidence } from './keep-evidence.ts'
import type { Incarnation, MergedSegment } from './records.ts'
import { holdRules } from './rules-in-force.ts'
import { takeRemnant } from './take-remnant.ts'
import { type Taken, type Taking, ownerOf, signAnswer } from './taking.ts'
import { together, toldOf, unbilledOf } from './unbilled.ts'

/** @param recorded the merged segment with the same seq, if there is one */
export async function keepFork(taking: Taking, recorded: MergedSegment | undefined): Promise<Taken> {
  const { deps, tx, device, incarnation, segment, now } = taking
  const last = recorded ?? (await tx.edge.segments.get(device.id, incarnation.number, incarnation.lastSeq))
  const after: Incarnation = {
    ...fenced(incarnation, 'FORKED', taking),
    forked: true,
    quietSince: taking.present,
  }
  await tx.edge.incarnations.save(after)
  const rules = await holdRules(tx, deps.policies, device.instanceIds, now)
  const { received, entries } = segment
  const isChained = received.entryHead === (received.entryHashes.at(-1) ?? received.entriesPreviousHash)
  const unbilled = isChained
    ? unbilledOf({ branch: await billBranch(taking, rules, after, entries) })
    : unbilledOf({ broken: entries.length })
  await keepEvidence(taking, {
    incarnation: incarnation.number,
    kind: 'FORK',
    recordedHash: last?.hash ?? null,
    recordedDocument: last?.document ?? null,
    problem: unbilled?.problem ?? null,
  })
  const all = together(unbilled, await takeRemnant(taking, rules))
  await tx.edge.devices.save({ ...device, lastSyncAt: now })
  const answer = await signAnswer(deps, {
    outcome: 'FENCED',
    ...ownerOf(after),
    seq: after.lastSeq,
    hash: after.lastHash,
    forked: true,
    closed: segment.final,
    receipt: null,
    ...toldOf(all),
  })
  return { taken: true, answer, unbilled: all }
}
