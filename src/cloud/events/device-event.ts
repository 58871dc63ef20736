import type { Device } from '../storage/device-records.ts'
import type { EventType } from '../../protocol/edge/events.ts'
import type { EventRecord } from '../storage/records.ts'

interface DeviceChange {
  readonly type: Extract<EventType, `device.${string}`>
  /** Distinguishes it from other changes of the device, also after a restore. */
  readonly what: string
  readonly at: number
  readonly detail?: Readonly<Record<string, unknown>>
}

type EventDevice = Pick<Device, 'id' | 'name' | 'instanceIds'>

/** Once for each epoch: two writers have continued its chain. */
export function forkEvent(device: EventDevice, epoch: number, at: number): EventRecord {
  return deviceEvent(device, { type: 'device.forked', what: `${epoch}/forked`, at, detail: { epoch } })
}

/** @param device after the change */
export function deviceEvent(
  { id: deviceId, name, instanceIds }: EventDevice,
  { type, what, at, detail }: DeviceChange,
): EventRecord {
  return {
    id: `${deviceId}/${what}`,
    type,
    at,
    instanceId: instanceIds.length === 1 ? (instanceIds[0] ?? null) : null,
    deviceId,
    data: { deviceId, name, instanceIds, ...detail },
  }
}
