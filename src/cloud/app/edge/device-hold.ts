/** What a device that is held back may not do at the twin. */
import { heldBack } from '../../../protocol/edge/device-hold.ts'
import type { Device } from './records.ts'

/** @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED where the device is held back */
export function requireNotHeld({ hold }: Pick<Device, 'hold'>): void {
  if (hold !== null) throw heldBack(hold)
}
