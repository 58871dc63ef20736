/**
 * Suspension of a device. It travels with the signed time, fresh for each attempt, so an old one cannot be replayed.
 */
import { z } from 'zod'
import { CodedError } from '../errors.ts'
import { instant, plainText } from '../wire.ts'

/**
 * `LOCKED`: no grants until unlocked. `TERMINATED`: the epoch is over; the device needs an enrollment token that was
 * made later. In both states, the device still delivers its backlog.
 */
export const deviceSuspension = z.strictObject({
  state: z.enum(['LOCKED', 'TERMINATED']),
  since: instant,
  /** Name of the administration key, or its id. */
  by: plainText(256),
})
export type DeviceSuspension = z.infer<typeof deviceSuspension>

/** The error for requests to, and from, a suspended device. */
export function suspendedError({ state, since, by }: DeviceSuspension): CodedError {
  const when = new Date(since).toISOString()
  return state === 'LOCKED'
    ? new CodedError('DEVICE_LOCKED', `This device was locked at ${when} by ${by}.`, { details: { since, by } })
    : new CodedError('DEVICE_TERMINATED', `The service of this device was ended at ${when} by ${by}.`, {
        details: { since, by },
      })
}
