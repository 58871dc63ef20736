/** Two writers continue one chain: keeps both segments as evidence, and bills the other's charges as a branch. */
import { CHAIN_START } from '../../../protocol/signing.ts'
import { forkEvent } from '../../events/device-event.ts'
import { fenced } from '../../devices/epochs.ts'
import { billBranch } from './bill-branch.ts'
import { keepEvidence } from './keep-evidence.ts'
import type { Epoch, MergedSegment } from '../../storage/device-records.ts'
import { mergeUndelivered } from './merge-undelivered.ts'
import {
  type MergeContext,
  type MergeResult,
  type MergeUnderRules,
  type Unbilled,
  ownerOf,
  signAnswer,
} from '../merge-context.ts'
import { reportedOf, sumUnbilled, unbilledOf, withEntries } from './unbilled.ts'

export async function keepFork(context: MergeContext, recorded: MergedSegment | undefined): Promise<MergeResult> {
  const { deps, tx, device, epoch, segment, now } = context
  const last = recorded ?? (await tx.edge.segments.get(device.id, epoch.number, epoch.lastSeq))
  const { seq, previousHash } = segment.header
  const before = seq === 1 ? CHAIN_START : (await tx.edge.segments.get(device.id, epoch.number, seq - 1))?.hash
  const after: Epoch = {
    ...fenced(epoch, 'FORKED', context),
    forked: true,
    // Its writer had a response to the segment before it. The next attach requests the segments of that chain that the cloud has lost.
    grantsForgotten: epoch.grantsForgotten || before !== previousHash,
    quietSince: context.present,
  }
  await tx.edge.epochs.save(after)
  if (!epoch.forked) await tx.events.append(forkEvent(device, epoch.number, now))
  const rules = await deps.policies.lockSomeShared(tx, device.instanceIds, now)
  const unbilled = await billOthers({ ...context, rules }, after)
  await keepEvidence(context, {
    epoch: epoch.number,
    kind: 'FORK',
    recordedHash: last?.hash ?? null,
    recordedDocument: last?.signed?.document ?? null,
    problem: unbilled?.problem ?? null,
  })
  const all = sumUnbilled(withEntries(unbilled), await mergeUndelivered({ ...context, rules }))
  await tx.edge.devices.save({ ...device, lastSyncAt: now }, device)
  const answer = await signAnswer(deps, {
    outcome: 'FENCED',
    ...ownerOf(after),
    seq: after.lastSeq,
    hash: after.lastHash,
    forked: true,
    closed: segment.final,
    receipt: null,
    ...reportedOf(all),
  })
  return { accepted: true, answer, unbilled: all }
}

/** Bills the entries that are not in the chain. Some of those in it may be billed by the counters of the device only. */
async function billOthers(context: MergeUnderRules, epoch: Epoch): Promise<Unbilled | null> {
  const { fit } = context
  const { received, entries } = context.segment
  const isChained = received.entryHead === (received.entryHashes.at(-1) ?? received.entriesPreviousHash)
  if (!isChained) return unbilledOf({ broken: entries.length })
  if (fit.kind === 'LOST') return unbilledOf({ lost: entries.length })
  const others = fit.kind === 'CONTINUES' ? entries.slice(fit.known) : entries
  return unbilledOf({ branch: await billBranch(context, epoch, others) })
}
