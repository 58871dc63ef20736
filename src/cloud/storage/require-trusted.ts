/** One error everywhere for devices that are revoked or suspended. It names no administrator: devices receive it. */
import { CodedError } from '../../protocol/errors.ts'
import type { Device } from './device-records.ts'
import { suspendedError } from '../../protocol/edge/device-suspension.ts'

/** @throws CodedError DEVICE_REVOKED */
export function requireTrusted({ revokedAt }: Pick<Device, 'revokedAt'>): void {
  if (revokedAt === null) return
  const message = `The key of this device was revoked at ${new Date(revokedAt).toISOString()} by an administrator.`
  throw new CodedError('DEVICE_REVOKED', message, { details: { since: revokedAt } })
}

/** @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED for a suspended device */
export function requireNotSuspended({ suspension }: Pick<Device, 'suspension'>): void {
  if (suspension !== null) throw suspendedError(suspension)
}
