/**
 * Sessions of devices on the wire: the device reports states, the cloud sends commands. Both are absolute and can be
 * repeated. Neither changes a balance: charges and refunds are ledger entries.
 */
import { z } from 'zod'
import { SESSION_STATES } from '../service/sessions.ts'
import { instant, plainText, uuid, uuidInLowerCase } from '../wire.ts'

/** Maximum in one segment or one answer; more follow in the next. */
export const SEGMENT_SESSIONS_MAX = 1_000

/** State when the segment was sealed: at its last entry, or later. Times are 0 for never. */
export const sessionSnapshot = z.strictObject({
  id: uuidInLowerCase,
  instanceId: uuidInLowerCase,
  state: z.enum(SESSION_STATES),
  created: instant,
  /** Time of the last state change. */
  since: instant,
  lastHeartbeat: instant,
  lastAccessRequest: instant,
  requester: z.strictObject({ type: plainText(1024), value: plainText(1024) }).nullable(),
  /** Charge of the current interval; null if there is none. */
  charge: z
    .strictObject({
      from: instant,
      until: instant,
      items: z
        .array(
          z.strictObject({
            item: plainText(256),
            version: plainText(256),
            /** Decimal text. */
            count: z.string().max(100),
            lineItemIds: z.array(plainText(256)).max(1_000),
          }),
        )
        .max(500),
    })
    .nullable(),
})
export type SessionSnapshot = z.infer<typeof sessionSnapshot>

/** An administrator's command; sent with every answer until the device reports the state. */
export const sessionCommand = z.strictObject({ id: uuid, command: z.enum(['LOCK', 'UNLOCK', 'TERMINATE']) })
export type SessionCommand = z.infer<typeof sessionCommand>

export const SESSION_EVENTS = [
  'OPENED',
  'GRANTED',
  'REFUSED',
  'HALTED',
  'RENEWED',
  'NOT_RENEWED',
  'HEARTBEAT',
  'HEARTBEAT_MISSED',
  'IDLED_OUT',
  'CLOSED',
  'FAILED',
  'LOCKED',
  'UNLOCKED',
  'SUSPENDED',
] as const
