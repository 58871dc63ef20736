import { suspendedError } from '../../protocol/edge/device-suspension.ts'
import type { Device } from '../storage/device-records.ts'

/** @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED for a suspended device */
export function requireNotSuspended({ suspension }: Pick<Device, 'suspension'>): void {
  if (suspension !== null) throw suspendedError(suspension)
}
