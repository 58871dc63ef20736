/** One error everywhere for devices that are revoked (since when, and by which administration key) or suspended. */
import { CodedError } from '../../protocol/errors.ts'
import type { Device } from '../storage/device-records.ts'
import { suspendedError } from '../../protocol/edge/device-suspension.ts'

/** @throws CodedError DEVICE_REVOKED */
export function requireTrusted({ revokedAt, revokedBy }: Pick<Device, 'revokedAt' | 'revokedBy'>): void {
  if (revokedAt === null) return
  const by = revokedBy === null ? '' : `, by ${revokedBy}`
  const message = `The key of this device was revoked at ${new Date(revokedAt).toISOString()}${by}.`
  throw new CodedError('DEVICE_REVOKED', message, { details: { since: revokedAt, by: revokedBy } })
}

/** @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED for a suspended device */
export function requireNotSuspended({ suspension }: Pick<Device, 'suspension'>): void {
  if (suspension !== null) throw suspendedError(suspension)
}
