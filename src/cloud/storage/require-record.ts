import type { Session } from '../../core/sessions/session.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { Device } from './device-records.ts'
import type { Instance, LineItemRecord } from './records.ts'
import { requireTrusted } from './require-trusted.ts'
import type { Reader, Transaction } from './store.ts'

/** @throws CodedError NOT_FOUND */
export async function requireInstance(reader: Reader, instanceId: string): Promise<Instance> {
  return known(await reader.instances.get(instanceId), `instance ${instanceId}`)
}

export function noInstance(instanceId: string): CodedError {
  return new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
}

/** @throws CodedError NOT_FOUND */
export async function requireDevice(reader: Reader, deviceId: string): Promise<Device> {
  return known(await reader.edge.devices.get(deviceId), `device ${deviceId}`)
}

/** @throws CodedError NOT_FOUND */
export async function lockDevice(tx: Transaction, deviceId: string): Promise<Device> {
  return known(await tx.edge.devices.lock(deviceId), `device ${deviceId}`)
}

/** @throws CodedError NOT_FOUND, DEVICE_REVOKED */
export async function lockTrusted(tx: Transaction, deviceId: string): Promise<Device> {
  const device = await lockDevice(tx, deviceId)
  requireTrusted(device)
  return device
}

/** @throws CodedError NOT_FOUND, CONFLICT */
export async function lockUnrevoked(tx: Transaction, deviceId: string): Promise<Device> {
  const device = await lockDevice(tx, deviceId)
  if (device.revokedAt === null) return device
  throw new CodedError('CONFLICT', `The key of the device ${deviceId} is revoked: the device gets no more commands.`)
}

/** @throws CodedError NOT_FOUND */
export async function requireSession(reader: Reader, id: string): Promise<Session> {
  return known(await reader.sessions.get(id), `session ${id}`)
}

/** @throws CodedError NOT_FOUND */
export async function lockSession(tx: Transaction, id: string): Promise<Session> {
  return known(await tx.sessions.lock(id), `session ${id}`)
}

function known<T>(record: T | undefined, what: string): T {
  if (record === undefined) throw new CodedError('NOT_FOUND', `There is no ${what}.`)
  return record
}

/** @throws CodedError NOT_FOUND, also for a deleted line item */
export async function requireLineItem(reader: Reader, instanceId: string, id: string): Promise<LineItemRecord> {
  const record = await reader.lineItems.get(instanceId, id)
  if (record?.deleted !== null) {
    throw await notOn(reader, instanceId, `line item ${JSON.stringify(id)}`)
  }
  return record
}

/** @throws CodedError NOT_FOUND if there is no such instance */
export async function notOn(reader: Reader, instanceId: string, missing: string): Promise<CodedError> {
  const { shortName } = await requireInstance(reader, instanceId)
  return new CodedError('NOT_FOUND', `There is no ${missing} on instance ${shortName} (${instanceId}).`)
}
