import { nameOf, recordChange } from '../storage/audit.ts'
import { deviceEvent } from '../events/device-event.ts'
import type { AuditFilter, AuditRecord } from '../storage/audit-records.ts'
import type { GiveWay } from '../runtime/give-way.ts'
import {
  type AuditListWire,
  type DeviceEvidenceWire,
  type DeviceListWire,
  type DeviceStateWire,
  EVIDENCE_SHOWN_MAX,
} from '../../protocol/edge/administration.ts'
import type { Reader, Store } from '../storage/store.ts'
import { fenceCurrent } from './epochs.ts'
import { type EdgeTerms, isOverdue } from './terms.ts'
import { disconnectSessions } from '../sessions/device-sessions.ts'
import { type Device, type DeviceClock, type DeviceFilter, billedOn, reservedOn } from '../storage/device-records.ts'
import { lockDevice, lockUnrevoked, requireDevice, requireInstance } from '../storage/require-record.ts'
import type { SuspendDevice } from './suspend-device.ts'

interface DeviceView {
  readonly reader: Reader
  readonly presence: (deviceId: string) => DeviceStateWire['presence']
  readonly terms: Pick<EdgeTerms, 'syncEveryMs'>
  readonly now: number
}

export interface ViewDevices extends Pick<DeviceView, 'presence' | 'terms'> {
  readonly store: Pick<Store, 'read'>
  readonly now: () => number
}

/** @throws CodedError NOT_FOUND for an unknown instance */
export async function listDevices(
  { store, presence, terms, now }: ViewDevices,
  filter: Pick<DeviceFilter, 'instanceId' | 'labels' | 'scope'>,
  offset: number,
  limit: number,
): Promise<DeviceListWire> {
  return store.read(async (reader) => {
    const { instanceId } = filter
    if (instanceId !== undefined) await requireInstance(reader, instanceId)
    const found = await reader.edge.devices.find(filter, offset, limit + 1)
    const view = { reader, presence, terms, now: now() }
    const devices: DeviceStateWire[] = []
    for (const device of found.slice(0, limit)) devices.push(await stateOf(view, device))
    return { devices, next: found.length > limit ? offset + limit : 0 }
  })
}

/** @throws CodedError NOT_FOUND */
export async function showDevice(
  { store, presence, terms, now }: ViewDevices,
  deviceId: string,
): Promise<DeviceStateWire> {
  return store.read(async (reader) => {
    const device = await requireDevice(reader, deviceId)
    return stateOf({ reader, presence, terms, now: now() }, device)
  })
}

export interface DeviceCommands {
  readonly store: Pick<Store, 'transaction'>
  readonly now: () => number
}

/** Its tokens stay reserved, because it may still spend them. @throws CodedError NOT_FOUND */
export async function revokeDevice(
  { store, now, present }: DeviceCommands & Pick<SuspendDevice, 'present'>,
  deviceId: string,
): Promise<void> {
  const at = now()
  await store.transaction(async (tx) => {
    const device = await lockDevice(tx, deviceId)
    if (device.revokedAt === null) {
      const revoked = { ...device, revokedAt: at, revokedBy: nameOf(tx.actor), releaseRequested: false }
      await tx.edge.devices.save(revoked, device)
      await fenceCurrent(tx, revoked, 'REVOKED', { now: at, present: present() })
      await disconnectSessions(tx, deviceId, at)
      await tx.events.append(deviceEvent(revoked, { type: 'device.revoked', what: 'revoked', at }))
      // An external broker keeps the connection: notify the device so that it contacts the cloud.
      await tx.outbox.append([{ kind: 'device', deviceId, reason: 'session' }], at)
    }
    await recordChange(tx, at, { action: 'REVOKE_DEVICE', deviceId })
  })
}

/** Requested with each response until the device has done so. @throws CodedError NOT_FOUND, CONFLICT */
export async function releaseDevice({ store, now }: DeviceCommands, deviceId: string): Promise<void> {
  const at = now()
  await store.transaction(async (tx) => {
    const device = await lockUnrevoked(tx, deviceId)
    await tx.edge.devices.save({ ...device, releaseRequested: true })
    await recordChange(tx, at, { action: 'DRAIN_DEVICE', deviceId })
    await tx.outbox.append([{ kind: 'device', deviceId, reason: 'sync' }], at)
  })
}

/** Requested with each response until the device has done so. @throws CodedError NOT_FOUND, CONFLICT */
export async function rotateDeviceKey({ store, now }: DeviceCommands, deviceId: string): Promise<void> {
  const at = now()
  await store.transaction(async (tx) => {
    const device = await lockUnrevoked(tx, deviceId)
    await tx.edge.devices.save({ ...device, replaceKey: device.thumbprint })
    await recordChange(tx, at, { action: 'ROTATE_DEVICE_KEY', deviceId })
    await tx.outbox.append([{ kind: 'device', deviceId, reason: 'sync' }], at)
  })
}

export async function showAudit(
  { store, giveWay }: { readonly store: Pick<Store, 'read'>; readonly giveWay: GiveWay },
  filter: AuditFilter,
  limit: number,
): Promise<AuditListWire> {
  const records: AuditRecord[] = []
  for (let { before } = filter; ;) {
    const rest = { ...filter, before }
    const isFull = records.length === limit
    const step = await store.read((reader) => reader.edge.audit.list(rest, isFull ? 1 : limit - records.length))
    if (isFull && step.records.length > 0) return { records, next: String(before) }
    records.push(...step.records)
    if (step.next === null) return { records, next: null }
    before = step.next
    await giveWay()
  }
}

/** @throws CodedError NOT_FOUND */
export async function showEvidence(
  { store }: { readonly store: Pick<Store, 'read'> },
  deviceId: string,
): Promise<DeviceEvidenceWire> {
  return store.read(async (reader) => {
    await requireDevice(reader, deviceId)
    const found = await reader.edge.evidence.of(deviceId, EVIDENCE_SHOWN_MAX)
    return { evidence: found.map(({ deviceId: _, ...shown }) => shown) }
  })
}

async function stateOf(view: DeviceView, device: Device): Promise<DeviceStateWire> {
  const outstanding = await outstandingOf(view.reader, device.id)
  return { ...(await reportedState(view, device)), outstanding }
}

/** All but the accounts, whose number grows with the epochs. */
export async function reportedState(
  { reader, presence, terms, now }: DeviceView,
  device: Device,
): Promise<Omit<DeviceStateWire, 'outstanding'>> {
  const epoch = await reader.edge.epochs.get(device.id, device.epoch)
  const evidence = await reader.edge.evidence.kinds(device.id)
  const policies: DeviceStateWire['policies'] = []
  for (const instanceId of device.instanceIds) {
    const applied = device.appliedPolicies.find((policy) => policy.instanceId === instanceId)?.revision ?? 0
    const newest = (await reader.policyRevisions.get(instanceId))?.revision ?? 0
    const name = (await reader.instances.get(instanceId))?.shortName ?? ''
    policies.push({ instanceId, name: name === '' ? null : name, applied, newest })
  }
  return {
    id: device.id,
    name: device.name,
    instanceIds: [...device.instanceIds],
    enrolledAt: device.enrolledAt,
    revokedAt: device.revokedAt,
    revokedBy: device.revokedBy,
    key: {
      id: device.thumbprint,
      since: device.keySince,
      next: device.nextKey?.thumbprint ?? null,
      rotationRequested: device.replaceKey === device.thumbprint,
    },
    suspension: device.suspension,
    presence: presence(device.id),
    clock: device.clock === null ? null : clockState(device.clock),
    lastSyncAt: device.lastSyncAt,
    overdue: isOverdue(device, now, terms),
    software: device.software,
    epoch: device.epoch,
    status: epoch?.status ?? 'NONE',
    forked: evidence.has('FORK'),
    rejected: evidence.has('REJECTED'),
    seq: epoch?.lastSeq ?? 0,
    backlog: device.backlog,
    releaseRequested: device.releaseRequested,
    policies,
    labels: device.labels,
  }
}

/** Longest assumed delivery time of a segment, ms; below it the device's clock is not reported as behind. */
const ON_THE_WAY_MS = 5 * 60_000

const CLOCK_TOLERANCE_MS = 1_000

function clockState({ now, earliest, latest, takenAt }: DeviceClock): NonNullable<DeviceStateWire['clock']> {
  const offsetMs = now - takenAt
  if (earliest > takenAt + CLOCK_TOLERANCE_MS) return { comparison: 'AHEAD', offsetMs, takenAt }
  if (latest === null) return { comparison: 'OPEN', offsetMs, takenAt }
  return { comparison: latest < takenAt - ON_THE_WAY_MS ? 'BEHIND' : 'AGREES', offsetMs, takenAt }
}

async function outstandingOf(reader: Reader, deviceId: string): Promise<DeviceStateWire['outstanding']> {
  const byAccount = Map.groupBy(await reader.edge.deviceAccounts.ofDevice(deviceId), ({ account }) => account)
  return [...byAccount].map(([account, records]) => {
    let [unreported, billedSoFar] = [0n, 0n]
    for (const record of records) {
      unreported += reservedOn(record) - billedOn(record)
      billedSoFar += billedOn(record)
    }
    return { account, unreported: String(unreported), billed: String(billedSoFar) }
  })
}
