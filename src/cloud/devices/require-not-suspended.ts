/** What a device that is held back may not do at the twin. */
import { suspendedError } from '../../protocol/edge/device-hold.ts'
import type { Device } from '../storage/device-records.ts'

/** @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED where the device is held back */
export function requireNotSuspended({ suspension }: Pick<Device, 'suspension'>): void {
  if (suspension !== null) throw suspendedError(suspension)
}
