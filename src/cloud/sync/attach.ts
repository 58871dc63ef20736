/** Gives a device its next epoch and fences the previous one, which keeps its tokens until its final segment. */
import type { z } from 'zod'
import type { attachAnswer, attachRequest } from '../../protocol/edge/attach.ts'
import { CodedError } from '../../protocol/errors.ts'
import { CHAIN_START, signDocument } from '../../protocol/signing.ts'
import type { Store, Transaction } from '../storage/store.ts'
import type { Keyring } from '../devices/keyring.ts'
import { lockTrusted } from '../storage/require-record.ts'
import { requireNotSuspended } from '../storage/require-trusted.ts'
import { EPOCHS_FORGOTTEN_MAX, EPOCHS_SKIPPED_MAX } from '../devices/limits.ts'
import type { Device, Epoch } from '../storage/device-records.ts'
import { fenceBeforeForgotten, fenceCurrent, fenced, noteContact, newEpoch } from '../devices/epochs.ts'
import { ATTACH_WINDOW_MS, type EdgeTerms } from '../devices/terms.ts'

export interface Attach {
  readonly store: Pick<Store, 'transaction'>
  readonly keys: Keyring
  readonly now: () => number
  readonly present: () => number
  readonly terms: Pick<EdgeTerms, 'attachesMax'>
}

/** The same response for the same nonce. @throws CodedError DEVICE_REVOKED, DEVICE_TERMINATED, ATTACH_TOO_OFTEN */
export async function attach(
  { store, keys, now, present, terms }: Attach,
  deviceId: string,
  request: z.infer<typeof attachRequest>,
): Promise<string> {
  const at = now()
  const moment = { now: at, present: present() }
  return store.transaction(async (tx) => {
    const device = await lockTrusted(tx, deviceId)
    const isOver = device.suspension?.state === 'TERMINATED'
    if (isOver) await refuseIfDelivered(tx, device, request)
    const known = request.above === 0 ? undefined : await tx.edge.epochs.get(deviceId, request.above)
    const left = known === undefined ? undefined : await noteContact(tx, known, moment.present)
    const answered = await tx.edge.epochs.byNonce(deviceId, request.nonce)
    if (answered !== undefined) {
      if (answered.attachAnswer === null) throw new Error('invariant: an attach stores its answer')
      return answered.attachAnswer
    }

    await refuseTooMany(tx, deviceId, terms.attachesMax, at)
    const restored = await restoredFrom(tx, left, request)
    if (left === undefined && isPlausible(device, request.above)) {
      await fenceBeforeForgotten(tx, deviceId, request.above, moment)
    }
    await fenceCurrent(tx, device, 'SUPERSEDED', moment)
    const number = nextNumber(device, request.above) + (await forgottenAtMost(tx, device, terms, at))
    const payload: z.input<typeof attachAnswer> = { deviceId, nonce: request.nonce, epoch: number, restored }
    // Signing has no side effects, so a rerun of the transaction is harmless.
    const answer = await signDocument('attach-answer', JSON.stringify(payload), keys.signer)
    const made: Epoch = {
      ...newEpoch(deviceId, number, moment),
      nonce: request.nonce,
      attachAnswer: answer,
      // The device may still use tokens by rules that the cloud has lost.
      grantsForgotten: await isRecovering(tx, device),
    }
    await tx.edge.epochs.insert(isOver ? fenced(made, 'TERMINATED', moment) : made)
    await tx.edge.devices.save({ ...device, epoch: number, software: request.software, backlog: 0 })
    return answer
  })
}

/** Null unless the device knows more of the epoch that it leaves than a restored cloud does, or did at some time. */
async function restoredFrom(
  tx: Transaction,
  left: Epoch | undefined,
  { above, acknowledged }: z.infer<typeof attachRequest>,
): Promise<z.input<typeof attachAnswer>['restored']> {
  if (above === 0) return null
  if (left === undefined) return { lastEntry: 0, entryHead: CHAIN_START }
  const { grantsForgotten, lastSeq, lastEntry, entryHead } = left
  if (!grantsForgotten && lastSeq >= acknowledged) return null
  await tx.edge.epochs.save({ ...left, grantsForgotten: true })
  return { lastEntry, entryHead }
}

/**
 * A terminated device may still deliver its entries, in another epoch without grants if its chain cannot. A closed epoch may have
 * been that of a copy.
 * @throws CodedError DEVICE_TERMINATED
 */
async function refuseIfDelivered(
  tx: Transaction,
  device: Device,
  { backlog }: Pick<z.infer<typeof attachRequest>, 'backlog'>,
): Promise<void> {
  if (backlog > 0) return
  const current = await tx.edge.epochs.get(device.id, device.epoch)
  if (current === undefined || current.status === 'CLOSED') requireNotSuspended(device)
}

/** Two live copies of a device attach in turns forever, adding a row each time: limit the rate. */
async function refuseTooMany(tx: Transaction, deviceId: string, most: number, now: number): Promise<void> {
  const since = await tx.edge.epochs.attachedSince(deviceId, now - ATTACH_WINDOW_MS)
  // Future instants come from a clock that was ahead: they must not block the device.
  const recent = since.filter((at) => at <= now)
  const next = recent.at(-most)
  if (next === undefined) return
  const retryAfterMs = Math.max(1, next + ATTACH_WINDOW_MS - now)
  const allowedAt = new Date(now + retryAfterMs).toISOString()
  const message = `This device has attached ${recent.length} times within an hour, and may attach again at ${allowedAt}.`
  throw new CodedError('ATTACH_TOO_OFTEN', message, { details: { deviceId, retryAfterMs } })
}

async function isRecovering(tx: Transaction, { instanceIds }: Device): Promise<boolean> {
  const underWay = await tx.edge.recoveries.underWay()
  return underWay.some(({ instanceId }) => instanceIds.includes(instanceId))
}

function nextNumber(device: Device, above: number): number {
  return Math.max(device.epoch, isPlausible(device, above) ? above : 0) + 1
}

function isPlausible(device: Device, above: number): boolean {
  return above <= device.epoch + EPOCHS_FORGOTTEN_MAX
}

/**
 * Epochs that a restored cloud may have forgotten, and a device with an older ledger or none. They must not return: entries are known by epoch
 * and number.
 */
async function forgottenAtMost(
  tx: Transaction,
  device: Device,
  { attachesMax }: Pick<EdgeTerms, 'attachesMax'>,
  now: number,
): Promise<number> {
  const restoredAt = await tx.edge.recoveries.lastRestore()
  if (restoredAt === null) return 0
  const lostMs = restoredAt - ((await tx.edge.epochs.lastAttached(device.id, now)) ?? device.enrolledAt)
  if (lostMs <= 0) return 0
  return Math.min((Math.floor(lostMs / ATTACH_WINDOW_MS) + 1) * attachesMax, EPOCHS_SKIPPED_MAX)
}
