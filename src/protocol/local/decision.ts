/**
 * What a device has kept of one decision, as its agent tells it at the socket: enough for anybody to make the decision again
 * and see that it comes out the same. Instants are POSIX milliseconds.
 */
import { z } from 'zod'
import { instant, uuid } from '../wire.ts'

/** `GET` with the correlation id of the decision behind it, on the agent's socket. */
export const AGENT_DECISIONS_PATH = '/tallygate/v1/decisions/'

/** Header of a refusal that has no body of the service's form, and so no place for its correlation id. */
export const CORRELATION_HEADER = 'x-tallygate-correlation-id'

/** A request that was turned away before anything was decided or recorded; the agent remembers the last of them. */
const keptRefusal = z.strictObject({
  correlationId: uuid,
  at: instant,
  /** Method and path. */
  request: z.string(),
  /** User of the calling process; null where the kernel does not say. */
  caller: z.string().nullable(),
  code: z.string(),
  message: z.string(),
})
export type KeptRefusal = z.infer<typeof keptRefusal>

export const keptDecision = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('entry'),
    /** Text of the ledger entry, as it is hashed and sent. */
    body: z.string(),
    /** What it was decided by besides rules and entry; null where the device keeps none. */
    facts: z.string().nullable(),
    /** The signed rules that were in force, a compact JWS; null where they are kept no more. */
    rules: z.string().nullable(),
    /** Public keys of the cloud, JWK as text, as the device has pinned them. */
    trustedKeys: z.array(z.string()).readonly(),
  }),
  z.strictObject({ kind: z.literal('refusal'), refusal: keptRefusal }),
])
export type KeptDecision = z.infer<typeof keptDecision>
