/** Sessions on the wire. Source: contract, Sessions; facts on session operations. */
import { z } from 'zod'
import { instant, uuid } from '../wire.ts'

/** GET sessions answers at most as many. Source: contract, Limits. */
export const SESSIONS_SHOWN_MAX = 100

export const SESSION_STATES = ['IDLE', 'ACTIVE', 'LOCKED', 'TERMINATED', 'FAILED', 'DISCONNECTED'] as const

/** Body of POST. */
export const sessionBody = z.strictObject({ instanceId: uuid.toLowerCase() })

export const sessionsQuery = z.strictObject({ instanceId: uuid.toLowerCase().optional() })

/** An element of GET sessions; 0 where something never happened. */
export const listedSession = z.strictObject({
  sessionId: uuid,
  instanceId: uuid,
  state: z.enum(SESSION_STATES),
  chargedUntil: instant,
  lastHeartBeat: instant,
  lastAccessRequest: instant,
})
export type ListedSessionWire = z.infer<typeof listedSession>

export const session = z.strictObject({
  sessionId: uuid,
  instanceId: uuid,
  state: z.enum(SESSION_STATES),
  items: z.array(z.strictObject({ item: z.string(), version: z.string().optional(), count: z.number() })),
})
export type SessionWire = z.infer<typeof session>

export const instanceHeader = 'x-instance-id'
