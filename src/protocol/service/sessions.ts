/** Sessions on the wire. Source: contract, Sessions; facts on session operations. */
import { z } from 'zod'
import { instant, uuid } from '../wire.ts'

/** GET sessions answers at most as many. Source: contract, Limits. */
export const SESSIONS_SHOWN_MAX = 100

export const SESSION_STATES = ['IDLE', 'ACTIVE', 'LOCKED', 'TERMINATED', 'FAILED', 'DISCONNECTED'] as const

/** Body of POST. */
export const sessionBody = z.strictObject({ instanceId: uuid.toLowerCase() }).meta({ id: 'NewSession' })

export const sessionCreated = z.strictObject({ sessionId: uuid })

export const sessionsQuery = z.strictObject({ instanceId: uuid.toLowerCase().optional() })

/** An element of GET sessions; 0 where something never happened. */
const listedSession = z
  .strictObject({
    sessionId: uuid,
    instanceId: uuid,
    state: z.enum(SESSION_STATES).extract(['IDLE', 'ACTIVE']),
    chargedUntil: instant,
    lastHeartBeat: instant,
    lastAccessRequest: instant,
  })
  .meta({ id: 'LiveSession', description: 'Instants are 0 where something never happened.' })
/** The state is not narrowed: whoever lists the live ones answers for it. */
export type ListedSessionWire = Omit<z.infer<typeof listedSession>, 'state'> & Pick<SessionWire, 'state'>

export const liveSessions = z.array(listedSession).max(SESSIONS_SHOWN_MAX)

export const session = z
  .strictObject({
    sessionId: uuid,
    instanceId: uuid,
    state: z.enum(SESSION_STATES),
    items: z.array(z.strictObject({ item: z.string(), version: z.string().optional(), count: z.number().gt(0) })),
  })
  .meta({ id: 'Session', description: '`items` are those that are paid for; none unless ACTIVE.' })
export type SessionWire = z.infer<typeof session>

/** A session that takes no more requests; the status differs by version. */
export const sessionNotOperable = z
  .strictObject({ message: z.string(), code: z.literal('SESSION_NOT_OPERABLE') })
  .meta({ id: 'SessionNotOperable' })

export const instanceHeader = 'x-instance-id'
