/** The first state of an epoch, its activity, and its end by fencing. */
import { CHAIN_START } from '../../protocol/signing.ts'
import type { Device, Epoch, FenceReason, Moment } from '../storage/device-records.ts'
import type { Transaction } from '../storage/store.ts'

export function newEpoch(deviceId: string, number: number, { now, present }: Moment): Epoch {
  return {
    deviceId,
    number,
    status: 'ACTIVE',
    createdAt: now,
    fencedAt: null,
    fenceReason: null,
    quietSince: present,
    settlement: null,
    settledAt: null,
    forked: false,
    rejected: false,
    grantsForgotten: false,
    carriedOn: false,
    lastSeq: 0,
    lastHash: CHAIN_START,
    lastEntry: 0,
    entryHead: CHAIN_START,
    term: 0,
    recovery: 0,
    nonce: null,
    attachAnswer: null,
  }
}

export async function fenceCurrent(tx: Transaction, device: Device, reason: FenceReason, at: Moment): Promise<void> {
  const current = await tx.edge.epochs.get(device.id, device.epoch)
  if (current?.status === 'ACTIVE') await tx.edge.epochs.save(fenced(current, reason, at))
}

/** An epoch that a restored cloud has forgotten. Like that of the epoch before it, its grants may be lost. */
export async function recreateForgotten(tx: Transaction, device: Device, number: number, at: Moment): Promise<Epoch> {
  await fenceBeforeForgotten(tx, device.id, number, at)
  const fresh = { ...newEpoch(device.id, number, at), grantsForgotten: true }
  const epoch = number < device.epoch ? fenced(fresh, 'SUPERSEDED', at) : fresh
  await tx.edge.epochs.insert(epoch)
  return epoch
}

/** A forgotten attach fenced the epoch before the forgotten one: grants of it may be lost. */
export async function fenceBeforeForgotten(
  tx: Transaction,
  deviceId: string,
  forgotten: number,
  at: Moment,
): Promise<void> {
  const before = await tx.edge.epochs.newestBelow(deviceId, forgotten)
  if (before === undefined || before.status === 'CLOSED') return
  await tx.edge.epochs.save({ ...fenced(before, 'SUPERSEDED', at), grantsForgotten: true })
}

export function fenced(epoch: Epoch, reason: FenceReason, { now, present }: Moment): Epoch {
  if (epoch.status !== 'ACTIVE') return epoch
  return { ...epoch, status: 'FENCED', fencedAt: now, fenceReason: reason, quietSince: present }
}

/** A device that never receives responses is still alive: its epoch is not inactive. */
export async function noteContact(tx: Transaction, epoch: Epoch, present: number): Promise<Epoch> {
  const heard = { ...epoch, quietSince: present }
  await tx.edge.epochs.save(heard)
  return heard
}
