/**
 * One segment of a device, taken in: judged, merged, billed and answered with a grant, all in one transaction, and answered
 * only after its commit. Whatever a device sends, no token is granted that the pool does not have, nothing is billed twice,
 * and a repetition gets the bytes of the first answer.
 */
import { type Verdict, receive } from '../../../core/receive.ts'
import { namedKey } from '../../../protocol/signing.ts'
import type { Transaction } from '../store.ts'
import { fenceCurrent, newIncarnation } from './attach.ts'
import { lockSessions } from './device-sessions.ts'
import { fitOf } from './fit-of.ts'
import { keepFork } from './keep-fork.ts'
import { INCARNATIONS_FORGOTTEN_MAX } from './limits.ts'
import { mergeNext } from './merge-next.ts'
import { type OpenedSegment, openSegment } from './open-segment.ts'
import type { Device, Incarnation, MergedSegment, Moment } from './records.ts'
import { noticeRestore } from '../recovery/notice-restore.ts'
import { type Proof, type ShownRules, openProofs, openRules } from './open-proofs.ts'
import { takeProofs } from './take-proofs.ts'
import { type Sync, type Taken, type Taking, ownerOf, signAnswer } from './taking.ts'
import { requireTrusted } from './require-trusted.ts'

/** What became of a segment: how it was judged, or that it could not be opened, or did not add up. */
export type SyncVerdict = Verdict['kind'] | 'UNREADABLE' | 'REJECTED'

export interface WatchedSync extends Sync {
  /** Told after the commit. */
  readonly onVerdict?: (verdict: SyncVerdict) => void
  /** Told after the commit: the device has shown what the twin has signed and forgotten of these instances. */
  readonly onRestored?: (deviceId: string, instanceIds: readonly string[]) => void
}

/** @throws CodedError DEVICE_REVOKED */
export async function sync(
  deps: WatchedSync,
  device: Device,
  document: string,
  proofDocuments: readonly string[] = [],
): Promise<Taken> {
  const opening = await openSegment(device, await signerOf(deps, device, document), document)
  if (!opening.opened) {
    deps.onVerdict?.('UNREADABLE')
    return { taken: false, problem: opening.problem }
  }
  const proofs = await openProofs(deps.keys, device.id, proofDocuments)
  const rules = await openRules(deps.keys, device.instanceIds, proofDocuments)
  const moment = { now: deps.now(), present: deps.present() }
  const { verdict, taken, restored } = await deps.store.transaction(async (tx) => {
    const locked = await tx.edge.devices.lock(device.id)
    if (locked === undefined) throw new Error('invariant: devices are never deleted')
    requireTrusted(locked)
    return take(deps, tx, locked, opening.segment, { proofs, rules }, moment)
  })
  deps.onVerdict?.(verdict)
  if (restored.length > 0) deps.onRestored?.(device.id, restored)
  return taken
}

/**
 * A segment is sent byte for byte until it is acknowledged, so a key that was replaced since may have sealed it. Who brings
 * it has proven that he has a key in force.
 */
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
  readonly verdict: SyncVerdict
  readonly taken: Taken
  readonly restored: readonly string[]
}

async function take(
  deps: Sync,
  tx: Transaction,
  device: Device,
  segment: OpenedSegment,
  { proofs, rules }: { readonly proofs: readonly Proof[]; readonly rules: readonly ShownRules[] },
  moment: Moment,
): Promise<Judged> {
  const { now } = moment
  // Proofs of what was forgotten may lock rules and accounts: sessions stand before both in the order of locks.
  const sessions = await lockSessions(tx, device, segment)
  const known = await tx.edge.incarnations.get(device.id, segment.incarnation)
  const learned =
    known === undefined ? await learn(tx, device, segment.incarnation, moment) : { device, incarnation: known }
  if (learned === undefined) {
    const problem = 'The cloud never gave out this incarnation.'
    return { verdict: 'REJECTED', taken: { taken: false, problem }, restored: [] }
  }
  const restored =
    proofs.length + rules.length === 0
      ? []
      : await noticeRestore(tx, learned.device, learned.incarnation, proofs, rules, now)
  const incarnation =
    proofs.length === 0
      ? learned.incarnation
      : await takeProofs(deps, tx, learned.device, learned.incarnation, proofs, now)
  const taking: Taking = {
    deps,
    tx,
    segment,
    fit: await fitOf(tx, incarnation, segment.received),
    sessions,
    proof: proofOf(segment, proofs),
    ...moment,
    device: learned.device,
    incarnation,
  }
  const recorded = await tx.edge.segments.get(device.id, incarnation.number, segment.header.seq)
  const verdict = receive(incarnation, segment.header, recorded?.hash ?? null, taking.fit)
  const taken = await follow(taking, verdict, recorded)
  return { verdict: taken.taken ? verdict.kind : 'REJECTED', taken, restored }
}

async function follow(taking: Taking, verdict: Verdict, recorded: MergedSegment | undefined): Promise<Taken> {
  const { tx, incarnation } = taking
  switch (verdict.kind) {
    case 'MERGE':
      return mergeNext(taking, verdict.grants)
    case 'REPEAT':
      return { taken: true, answer: storedAnswer(recorded), unbilled: null }
    case 'KNOWN':
      return told(taking, 'KNOWN')
    case 'BEHIND':
      await tx.edge.incarnations.save({ ...incarnation, grantsForgotten: true, quietSince: taking.present })
      return told(taking, 'BEHIND')
    case 'FORK':
      return keepFork(taking, recorded)
  }
}

/** The answer that the twin gave to this very segment before it was restored. */
function proofOf({ header, incarnation }: OpenedSegment, proofs: readonly Proof[]): Proof | null {
  return (
    proofs.find(({ answer: { receipt } }) => receipt?.incarnation === incarnation && receipt.hash === header.hash) ??
    null
  )
}

function storedAnswer(last: MergedSegment | undefined): string {
  const answer = last?.answer ?? null
  if (answer === null) throw new Error('invariant: the answer to the last segment is stored')
  return answer
}

async function told({ deps, incarnation }: Taking, outcome: 'KNOWN' | 'BEHIND'): Promise<Taken> {
  const answer = await signAnswer(deps, { outcome, ...ownerOf(incarnation), seq: incarnation.lastSeq })
  return { taken: true, answer, unbilled: null }
}

/**
 * An incarnation that the device has and the twin has not: the twin was restored from a backup. It begins again from what
 * the device can show. Undefined when the number is beyond belief.
 */
async function learn(
  tx: Transaction,
  device: Device,
  number: number,
  moment: Moment,
): Promise<{ readonly device: Device; readonly incarnation: Incarnation } | undefined> {
  if (number > device.incarnation + INCARNATIONS_FORGOTTEN_MAX) return undefined
  const fresh = { ...newIncarnation(device.id, number, moment), grantsForgotten: true }
  if (number < device.incarnation) {
    const incarnation: Incarnation = { ...fresh, status: 'FENCED', fencedAt: moment.now, fenceReason: 'SUPERSEDED' }
    await tx.edge.incarnations.insert(incarnation)
    return { device, incarnation }
  }
  await fenceCurrent(tx, device, 'SUPERSEDED', moment)
  await tx.edge.incarnations.insert(fresh)
  const current = { ...device, incarnation: number }
  await tx.edge.devices.save(current)
  return { device: current, incarnation: fresh }
}
