/** One error for revoked devices everywhere: since when, and by which administration key. */
import { CodedError } from '../../protocol/errors.ts'
import type { Device } from '../storage/device-records.ts'

/** @throws CodedError DEVICE_REVOKED */
export function requireTrusted({ revokedAt, revokedBy }: Pick<Device, 'revokedAt' | 'revokedBy'>): void {
  if (revokedAt === null) return
  const by = revokedBy === null ? '' : `, by ${revokedBy}`
  const message = `The key of this device was revoked at ${new Date(revokedAt).toISOString()}${by}.`
  throw new CodedError('DEVICE_REVOKED', message, { details: { since: revokedAt, by: revokedBy } })
}
