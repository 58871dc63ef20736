/** Judges an opened segment in a transaction: merges it, or keeps it as evidence. A resent one gets its first response. */
import { type MergeOutcome, classifySegment } from '../../core/sync/receive.ts'
import { noteContact, recreateForgotten } from '../devices/epochs.ts'
import { fitOf } from './merge/fit-of.ts'
import { keepFork } from './merge/keep-fork.ts'
import { EPOCHS_FORGOTTEN_MAX } from '../devices/limits.ts'
import { mergeNext } from './merge/merge-next.ts'
import type { SyncAnswerWire } from '../../protocol/edge/sync.ts'
import type { OpenedSegment } from './open-segment.ts'
import type { Device, Epoch, MergedSegment, Moment } from '../storage/device-records.ts'
import type { Transaction } from '../storage/store.ts'
import { noticeRestore } from './recovery/notice-restore.ts'
import type { Proof, Shown } from './open-proofs.ts'
import { takeProofs } from './take-proofs.ts'
import { type MergeContext, type MergeResult, type SyncDeps, ownerOf, signAnswer } from './merge-context.ts'
import { requireTrusted } from '../storage/require-trusted.ts'

export type SyncOutcome = MergeOutcome['kind'] | 'UNREADABLE' | 'REJECTED'

/** A sync whose segment and proofs were opened. */
export interface OpenedSync extends Moment {
  readonly deviceId: string
  readonly segment: OpenedSegment
  readonly shown: Shown
}

export interface SyncResult extends Pick<Device, 'suspension'> {
  readonly outcome: SyncOutcome
  readonly merge: MergeResult
  /** Instances whose documents the cloud has lost, as the device has proven. */
  readonly restored: readonly string[]
  /** New pools. */
  readonly opened: number
}

/** @throws CodedError DEVICE_REVOKED, GRANTS_FORGOTTEN */
export async function receiveSegment(deps: SyncDeps, tx: Transaction, opened: OpenedSync): Promise<SyncResult> {
  const { deviceId, segment, shown, now, present } = opened
  // Sent together and answered in this order: what follows the lock is read under it.
  const [device, { epoch: known, hasSessions }] = await Promise.all([
    tx.edge.devices.lock(deviceId),
    tx.edge.epochs.getWithSessionPresence(deviceId, segment.epoch),
  ])
  if (device === undefined) throw new Error('invariant: devices are never deleted')
  requireTrusted(device)
  // Handling proofs may lock rules and accounts, and sessions come first in the lock sequence.
  const touched = hasSessions ? await sessionsTouched(tx, device, known, segment) : []
  const reported = segment.sessions.map(({ id }) => id)
  // One opened meanwhile waits for the next segment.
  const sessions = new Set(await tx.sessions.lockSome([...touched, ...reported]))
  const context = { deps, tx, device, segment, hasSessions, now, present }
  const result = await receiveUnderLocks(context, known, sessions, shown)
  return { ...result, suspension: device.suspension }
}

/**
 * Only the first segment of the current epoch, until it is merged, changes sessions that the device keeps and does not report: a
 * device may keep many, and send an earlier segment again at any time.
 */
function sessionsTouched(
  tx: Transaction,
  device: Device,
  known: Epoch | undefined,
  { epoch, header }: OpenedSegment,
): Promise<readonly string[]> {
  const isFirst = epoch >= device.epoch && header.seq === 1 && (known === undefined || known.lastSeq === 0)
  return isFirst ? tx.sessions.notEnded(device.id) : tx.sessions.opened(device.id)
}

type ReceiveContext = Pick<MergeContext, 'deps' | 'tx' | 'device' | 'segment' | 'hasSessions' | keyof Moment>

async function receiveUnderLocks(
  context: ReceiveContext,
  known: Epoch | undefined,
  sessions: MergeContext['sessions'],
  { proofs, rules }: Shown,
): Promise<Omit<SyncResult, 'suspension'>> {
  const { tx, device, segment } = context
  const found = known === undefined ? await recreateEpoch(context) : { device, epoch: known }
  if (found === undefined) {
    const problem = 'The cloud never gave out this epoch.'
    return { outcome: 'REJECTED', merge: { accepted: false, problem }, restored: [], opened: 0 }
  }
  const current = { ...context, ...found }
  const restored = proofs.length + rules.length === 0 ? [] : await noticeRestore(current, { proofs, rules })
  const epoch = proofs.length === 0 ? found.epoch : await takeProofs(current, proofs)
  const fit = await fitOf(tx, epoch, segment.received)
  const opened = { pools: 0 }
  const mergeContext: MergeContext = { ...current, epoch, fit, sessions, proof: proofOf(segment, proofs), opened }
  const { seq } = segment.header
  const recorded = seq > epoch.lastSeq ? undefined : await tx.edge.segments.get(device.id, epoch.number, seq)
  const outcome = classifySegment(epoch, segment.header, recorded?.hash ?? null, fit)
  const merge = await carryOut(mergeContext, outcome, recorded)
  return { outcome: merge.accepted ? outcome.kind : 'REJECTED', merge, restored, opened: opened.pools }
}

async function carryOut(
  context: MergeContext,
  outcome: MergeOutcome,
  recorded: MergedSegment | undefined,
): Promise<MergeResult> {
  const { tx, epoch, present } = context
  switch (outcome.kind) {
    case 'MERGE':
      return mergeNext(context, outcome.mayGrant)
    case 'REPEAT':
      await noteContact(tx, epoch, present)
      return { accepted: true, answer: storedAnswer(recorded), unbilled: null }
    case 'KNOWN':
      await noteContact(tx, epoch, present)
      return respond(context, { outcome: 'KNOWN', ...ownerOf(epoch), seq: epoch.lastSeq, hash: epoch.lastHash })
    case 'BEHIND':
      await tx.edge.epochs.save({ ...epoch, grantsForgotten: true, quietSince: context.present })
      return respond(context, { outcome: 'BEHIND', ...ownerOf(epoch), seq: epoch.lastSeq })
    case 'FORK':
      return keepFork(context, recorded)
  }
}

function proofOf({ header, epoch }: OpenedSegment, proofs: readonly Proof[]): Proof | null {
  return proofs.find(({ answer: { receipt } }) => receipt?.epoch === epoch && receipt.hash === header.hash) ?? null
}

function storedAnswer(last: MergedSegment | undefined): string {
  const signed = last?.signed ?? null
  if (signed === null) throw new Error('invariant: the answer to the last segment is stored')
  return signed.answer
}

async function respond({ deps }: MergeContext, answer: SyncAnswerWire): Promise<MergeResult> {
  return { accepted: true, answer: await signAnswer(deps, answer), unbilled: null }
}

/** Of an epoch that a restored cloud lost. Undefined: the number is implausible. */
async function recreateEpoch(
  context: ReceiveContext,
): Promise<{ readonly device: Device; readonly epoch: Epoch } | undefined> {
  const { tx, device, segment } = context
  const number = segment.epoch
  if (number > device.epoch + EPOCHS_FORGOTTEN_MAX) return undefined
  const epoch = await recreateForgotten(tx, device, number, context)
  if (number < device.epoch) return { device, epoch }
  const current = { ...device, epoch: number }
  await tx.edge.devices.save(current)
  return { device: current, epoch }
}
