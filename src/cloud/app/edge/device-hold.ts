/** How a device that is held back is told so, in the words that a technician needs: what, since when, by whom. */
import type { DeviceHold } from '../../../protocol/edge/device-hold.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { Device } from './records.ts'

/** @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED where the device is held back */
export function requireNotHeld({ hold }: Pick<Device, 'hold'>): void {
  if (hold !== null) throw heldBack(hold)
}

/** The error that says so. */
function heldBack({ state, since, by }: DeviceHold): CodedError {
  const when = new Date(since).toISOString()
  return state === 'LOCKED'
    ? new CodedError('DEVICE_LOCKED', `The device is locked since ${when}, by ${by}.`)
    : new CodedError('DEVICE_TERMINATED', `The service of the device was ended at ${when}, by ${by}.`)
}
