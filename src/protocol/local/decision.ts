/** A recorded decision with everything needed to replay it. Instants are POSIX milliseconds. */
import { z } from 'zod'
import { instant, uuid } from '../wire.ts'

/** `GET` this path plus a correlation id, on the agent's socket. */
export const AGENT_DECISIONS_PATH = '/tallygate/v1/decisions/'

/** Carries the correlation id of refusals whose body has no place for it. */
export const CORRELATION_HEADER = 'x-tallygate-correlation-id'

const keptRefusal = z.strictObject({
  correlationId: uuid,
  at: instant,
  request: z.string(),
  caller: z.string().nullable(),
  code: z.string(),
  message: z.string(),
})
export type KeptRefusal = z.infer<typeof keptRefusal>

export const keptDecision = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('entry'),
    body: z.string(),
    /** Inputs of the decision besides rules and entry; null if not kept. */
    inputs: z.string().nullable(),
    rules: z.string().nullable(),
    trustedKeys: z.array(z.string()).readonly(),
  }),
  z.strictObject({ kind: z.literal('refusal'), refusal: keptRefusal }),
])
export type KeptDecision = z.infer<typeof keptDecision>
