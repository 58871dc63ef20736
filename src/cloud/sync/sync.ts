/**
 * Accepts a device's segment in one transaction: no token is granted that the pool does not have, nothing is billed
 * twice, and a retry gets the bytes of the first response.
 */
import { type MergeOutcome, receive } from '../../core/sync/receive.ts'
import { namedKey } from '../../protocol/signing.ts'
import { fenceCurrent, keepUnsettled, newEpoch } from './attach.ts'
import { lockSessions } from '../sessions/device-sessions.ts'
import { fitOf } from './merge/fit-of.ts'
import { keepFork } from './merge/keep-fork.ts'
import { EPOCHS_FORGOTTEN_MAX } from '../devices/limits.ts'
import { mergeNext } from './merge/merge-next.ts'
import { type OpenedSegment, openSegment } from './open-segment.ts'
import type { Device, Epoch, MergedSegment, Moment } from '../storage/device-records.ts'
import { noticeRestore } from './recovery/notice-restore.ts'
import { type Proof, type Shown, openProofs, openRules } from './open-proofs.ts'
import { takeProofs } from './take-proofs.ts'
import { type Sync, type MergeResult, type MergeContext, ownerOf, signAnswer } from './merge-context.ts'
import { requireTrusted } from '../devices/require-trusted.ts'

export type SyncOutcome = MergeOutcome['kind'] | 'UNREADABLE' | 'REJECTED'

export interface WatchedSync extends Sync {
  readonly onOutcome?: (outcome: SyncOutcome) => void
  /** Called after the commit: the device has proven that the cloud lost documents of these instances. */
  readonly onRestored?: (deviceId: string, instanceIds: readonly string[]) => void
}

/** @throws CodedError DEVICE_REVOKED */
export async function sync(
  deps: WatchedSync,
  device: Device,
  document: string,
  proofDocuments: readonly string[] = [],
): Promise<MergeResult & Pick<Device, 'suspension'>> {
  const opening = await openSegment(device, await signerOf(deps, device, document), document, deps.giveWay)
  if (!opening.opened) {
    deps.onOutcome?.('UNREADABLE')
    return { taken: false, problem: opening.problem, suspension: device.suspension }
  }
  const proofs = await openProofs(deps.keys, device.id, proofDocuments, deps.giveWay)
  const rules = await openRules(deps.keys, device.instanceIds, proofDocuments)
  const moment = { now: deps.now(), present: deps.present() }
  const { outcome, taken, restored, suspension } = await deps.store.transaction(async (tx) => {
    const { segment } = opening
    // Sent together and answered in this order: what follows the lock is read under it.
    const [locked, { epoch: known, hasSessions }] = await Promise.all([
      tx.edge.devices.lock(device.id),
      tx.edge.epochs.getWithSessions(device.id, segment.epoch),
    ])
    if (locked === undefined) throw new Error('invariant: devices are never deleted')
    requireTrusted(locked)
    // Handling proofs may lock rules and accounts, and sessions come first in the lock sequence.
    const notEnded = hasSessions ? await tx.sessions.notEnded(device.id) : []
    const sessions = await lockSessions(tx, notEnded, segment)
    const judged = await take({ deps, tx, device: locked, segment, ...moment }, known, sessions, { proofs, rules })
    return { ...judged, suspension: locked.suspension }
  })
  deps.onOutcome?.(outcome)
  if (restored.length > 0) deps.onRestored?.(device.id, restored)
  return { ...taken, suspension }
}

/** A resent segment may have been sealed by a key that was replaced since; its sender has authenticated. */
async function signerOf(
  { store }: Pick<Sync, 'store'>,
  device: Device,
  document: string,
): Promise<Device['publicKey']> {
  const named = namedKey(document)
  if (named === undefined || named === device.thumbprint) return device.publicKey
  const found = await store.read((reader) => reader.edge.devices.withKey(named))
  return found?.device.id === device.id ? found.publicKey : device.publicKey
}

interface Judged {
  readonly outcome: SyncOutcome
  readonly taken: MergeResult
  readonly restored: readonly string[]
}

type Received = Pick<MergeContext, 'deps' | 'tx' | 'device' | 'segment' | keyof Moment>

async function take(
  received: Received,
  known: Epoch | undefined,
  sessions: MergeContext['sessions'],
  { proofs, rules }: Shown,
): Promise<Judged> {
  const { tx, device, segment } = received
  const learned = known === undefined ? await learn(received) : { device, epoch: known }
  if (learned === undefined) {
    const problem = 'The cloud never gave out this epoch.'
    return { outcome: 'REJECTED', taken: { taken: false, problem }, restored: [] }
  }
  const shown = { ...received, ...learned }
  const restored = proofs.length + rules.length === 0 ? [] : await noticeRestore(shown, { proofs, rules })
  const epoch = proofs.length === 0 ? learned.epoch : await takeProofs(shown, proofs)
  const fit = await fitOf(tx, epoch, segment.received)
  const context: MergeContext = { ...shown, epoch, fit, sessions, proof: proofOf(segment, proofs) }
  const { seq } = segment.header
  const recorded = seq > epoch.lastSeq ? undefined : await tx.edge.segments.get(device.id, epoch.number, seq)
  const outcome = receive(epoch, segment.header, recorded?.hash ?? null, fit)
  const taken = await follow(context, outcome, recorded)
  return { outcome: taken.taken ? outcome.kind : 'REJECTED', taken, restored }
}

async function follow(
  context: MergeContext,
  outcome: MergeOutcome,
  recorded: MergedSegment | undefined,
): Promise<MergeResult> {
  const { tx, epoch, present } = context
  switch (outcome.kind) {
    case 'MERGE':
      return mergeNext(context, outcome.grants)
    case 'REPEAT':
      await keepUnsettled(tx, epoch, present)
      return { taken: true, answer: storedAnswer(recorded), unbilled: null }
    case 'KNOWN':
      await keepUnsettled(tx, epoch, present)
      return respond(context, 'KNOWN')
    case 'BEHIND':
      await tx.edge.epochs.save({ ...epoch, grantsForgotten: true, quietSince: context.present })
      return respond(context, 'BEHIND')
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

async function respond({ deps, epoch }: MergeContext, outcome: 'KNOWN' | 'BEHIND'): Promise<MergeResult> {
  const answer = await signAnswer(deps, { outcome, ...ownerOf(epoch), seq: epoch.lastSeq })
  return { taken: true, answer, unbilled: null }
}

/** Recreates an epoch that a restored cloud lost from the device's proofs. Undefined: implausible number. */
async function learn(received: Received): Promise<{ readonly device: Device; readonly epoch: Epoch } | undefined> {
  const { tx, device, segment, now } = received
  const number = segment.epoch
  if (number > device.epoch + EPOCHS_FORGOTTEN_MAX) return undefined
  const fresh = { ...newEpoch(device.id, number, received), grantsForgotten: true }
  if (number < device.epoch) {
    const epoch: Epoch = { ...fresh, status: 'FENCED', fencedAt: now, fenceReason: 'SUPERSEDED' }
    await tx.edge.epochs.insert(epoch)
    return { device, epoch }
  }
  await fenceCurrent(tx, device, 'SUPERSEDED', received)
  await tx.edge.epochs.insert(fresh)
  const current = { ...device, epoch: number }
  await tx.edge.devices.save(current)
  return { device: current, epoch: fresh }
}
