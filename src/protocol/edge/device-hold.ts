/**
 * What an administrator has decided about a device as a whole. It travels with the signed time, fresh for each attempt: an
 * old one cannot be put in the place of the one in force.
 */
import { z } from 'zod'
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
