/** Sessions on the wire. Source: interface, Sessions; documentation on session operations. */
import { z } from 'zod'
import { type Session, chargedUntil } from '../../core/sessions/session.ts'
import { exactNumber, instant, readOnlyField, uuid, uuidInLowerCase } from '../wire.ts'
import type { ApiVersion } from './status.ts'

export const SESSIONS_SHOWN_MAX = 100

export const SESSION_STATES = ['IDLE', 'ACTIVE', 'LOCKED', 'TERMINATED', 'FAILED', 'DISCONNECTED'] as const

export const sessionBody = z
  .strictObject({
    instanceId: uuidInLowerCase,
    sessionId: readOnlyField,
    state: readOnlyField,
    items: readOnlyField,
    chargedUntil: readOnlyField,
    lastHeartBeat: readOnlyField,
    lastAccessRequest: readOnlyField,
  })
  .meta({ id: 'NewSession' })

export const sessionCreated = z.strictObject({ sessionId: uuid })

export const sessionsQuery = z.object({ instanceId: uuidInLowerCase.optional() })

const listedSession = z
  .strictObject({
    sessionId: uuid,
    instanceId: uuid,
    state: z.enum(SESSION_STATES).extract(['IDLE', 'ACTIVE']),
    chargedUntil: instant,
    lastHeartBeat: instant,
    lastAccessRequest: instant,
  })
  .meta({ id: 'LiveSession', description: 'Instants are 0 if the event never happened.' })
/** Not narrowed to live states: the caller lists only live sessions. */
export type ListedSessionWire = Omit<z.infer<typeof listedSession>, 'state'> & Pick<SessionWire, 'state'>

export const liveSessions = z.array(listedSession).max(SESSIONS_SHOWN_MAX)

export const session = z
  .strictObject({
    sessionId: uuid,
    instanceId: uuid,
    state: z.enum(SESSION_STATES),
    items: z.array(z.strictObject({ item: z.string(), version: z.string().optional(), count: z.number().gt(0) })),
  })
  .meta({ id: 'Session', description: '`items` lists the paid items; empty unless ACTIVE.' })
export type SessionWire = z.infer<typeof session>

/** The session accepts no more requests; the status differs by version. */
export const sessionNotOperable = z
  .strictObject({ message: z.string(), code: z.literal('SESSION_NOT_OPERABLE') })
  .meta({ id: 'SessionNotOperable' })

export const instanceHeader = 'x-instance-id'

/** Denied session requests are errors with the usual body. See docs/decisions/sessions.md. */
export const DENIED_STATUS = 403

export function listedToWire(from: Session): ListedSessionWire {
  return {
    sessionId: from.id,
    instanceId: from.instanceId,
    state: from.state,
    chargedUntil: chargedUntil(from),
    lastHeartBeat: from.lastHeartbeat,
    lastAccessRequest: from.lastAccessRequest,
  }
}

/** Numbers are exact decimal text (see `exactNumber`): serialize with JSON.stringify. */
export function sessionToWire({ id, instanceId, state, charge }: Session): SessionWire {
  return {
    sessionId: id,
    instanceId,
    state,
    items: (charge?.items ?? []).map(({ item }) => ({
      item: item.name,
      ...(item.version === '' ? {} : { version: item.version }),
      count: exactNumber(item.count),
    })),
  }
}

/** v1.0 does not distinguish how a session ended; v1.1 names the state. */
export function notOperable(
  version: ApiVersion,
  { state }: Pick<Session, 'state'>,
): { readonly status: number; readonly body: { readonly message: string; readonly code: string } } {
  const code = 'SESSION_NOT_OPERABLE'
  if (version === 'v1.1') return { status: 409, body: { message: `Session is ${state}`, code } }
  return state === 'LOCKED'
    ? { status: 409, body: { message: 'Session is locked', code } }
    : { status: 403, body: { message: 'Session was terminated', code } }
}
