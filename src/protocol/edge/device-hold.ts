/**
 * What an administrator has decided about a device as a whole. It travels with the signed time, fresh for each attempt: an
 * old one cannot be put in the place of the one in force.
 */
import { z } from 'zod'
import { CodedError } from '../errors.ts'
import { instant, plainText } from '../wire.ts'

/**
 * `LOCKED`: the device grants nothing until it is unlocked. `TERMINATED`: its incarnation is over, and it gets no other one
 * until it enrolls again with a token that was made since. Both go on delivering what they owe.
 */
export const deviceHold = z.strictObject({
  state: z.enum(['LOCKED', 'TERMINATED']),
  since: instant,
  /** Id of the administration key. */
  by: plainText(256),
})
export type DeviceHold = z.infer<typeof deviceHold>

/** What a device that is held back answers, and is answered: what, since when, by whom. */
export function heldBack({ state, since, by }: DeviceHold): CodedError {
  const when = new Date(since).toISOString()
  return state === 'LOCKED'
    ? new CodedError('DEVICE_LOCKED', `This device is locked since ${when}, by ${by}.`, { facts: { since, by } })
    : new CodedError('DEVICE_TERMINATED', `The service of this device was ended at ${when}, by ${by}.`, {
        facts: { since, by },
      })
}
