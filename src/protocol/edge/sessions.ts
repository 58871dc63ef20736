/**
 * Sessions that a device keeps by itself, as they travel beside its ledger entries: the device says how each one stands,
 * the cloud says what its administrator wants of it. Both are absolute and may be repeated; neither changes a balance, as
 * every charge and refund of a session is an entry of its own.
 */
import { z } from 'zod'
import { SESSION_STATES } from '../service/sessions.ts'
import { instant, plainText, uuid } from '../wire.ts'

/** Most sessions that one segment, or one answer, may name; more follow with the next. */
export const SEGMENT_SESSIONS_MAX = 1_000

/** How one session stood when the segment was sealed: at the last entry in it, or later. */
export const sessionSnapshot = z.strictObject({
  /** Made by the device, and the session's id everywhere. */
  id: uuid,
  instanceId: uuid,
  state: z.enum(SESSION_STATES),
  created: instant,
  /** When it came into its state. */
  since: instant,
  /** 0: never. */
  lastHeartbeat: instant,
  /** 0: never. */
  lastAccessRequest: instant,
  requester: z.strictObject({ type: plainText(1024), value: plainText(1024) }).nullable(),
  /** What paid for the running interval; null when nothing does. */
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
            /** That paid for it. */
            lineItemIds: z.array(plainText(256)).max(1_000),
          }),
        )
        .max(500),
    })
    .nullable(),
})
export type SessionSnapshot = z.infer<typeof sessionSnapshot>

/** What an administrator wants of a session; sent with every answer until the device has reported that it is so. */
export const sessionOrder = z.strictObject({ id: uuid, order: z.enum(['LOCK', 'UNLOCK', 'TERMINATE']) })
export type SessionOrder = z.infer<typeof sessionOrder>

/** What happened to a session, in the ledger entry that says so. */
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
