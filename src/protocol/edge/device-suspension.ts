/** Suspension of a device. It travels with the signed time, fresh for each attempt: an old one cannot be replayed. */
import { z } from 'zod'
import { CodedError } from '../errors.ts'
import { instant } from '../wire.ts'

/**
 * `LOCKED`: no grants until unlocked. `TERMINATED`: the epoch is over; the device needs an enrollment token that was
 * made later. In both states, the device still delivers its backlog.
 */
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
