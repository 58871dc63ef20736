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

/** Fences the last epoch that a restored cloud knows: like the attach that ended it, grants of it may be lost. */
export async function fenceForgotten(tx: Transaction, device: Device, at: Moment): Promise<void> {
  const current = await tx.edge.epochs.get(device.id, device.epoch)
  if (current === undefined || current.status === 'CLOSED') return
  await tx.edge.epochs.save({ ...fenced(current, 'SUPERSEDED', at), grantsForgotten: true })
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
