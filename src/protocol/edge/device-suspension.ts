/**
 * It travels with the signed time, so an old one cannot be replayed. `LOCKED`: no grants until unlocked. `TERMINATED`:
 * the epoch is over; the device needs a newer enrollment token. In both states, the device still delivers its backlog.
 */
import { z } from 'zod'
import { CodedError } from '../errors.ts'
import { instant } from '../wire.ts'
export const deviceSuspension = z.strictObject({
  state: z.enum(['LOCKED', 'TERMINATED']),
  since: instant,
})
export type DeviceSuspension = z.infer<typeof deviceSuspension>

export function suspendedError({ state, since }: DeviceSuspension): CodedError {
  const when = `at ${new Date(since).toISOString()} by an administrator`
  return state === 'LOCKED'
    ? new CodedError('DEVICE_LOCKED', `This device was locked ${when}.`, { details: { since } })
    : new CodedError('DEVICE_TERMINATED', `The service of this device was ended ${when}.`, { details: { since } })
}
