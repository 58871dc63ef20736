/**
 * An administrator stops a session for now, lets it go on, or ends it. The twin does so at once with a session that it
 * keeps itself; of one that a device keeps it notes what is wanted, and hints that the device should come for it.
 */
import { type Session, hasEnded, isLive, step } from '../../core/session.ts'
import type { SessionOrder } from '../../protocol/edge/sessions.ts'
import { CodedError } from '../../protocol/errors.ts'
import { type SessionParts, applyStep, settledSession } from './session-life.ts'

/** `DONE`: it is so. `ORDERED`: its device will make it so with its next sync. */
export interface Held {
  readonly outcome: 'DONE' | 'ORDERED'
  readonly session: Session
}

const EVENT = { LOCK: 'LOCKED', UNLOCK: 'UNLOCKED', TERMINATE: 'CLOSED' } as const

/** As the audit has them. */
export const ORDER_ACTION = { LOCK: 'LOCK_SESSION', UNLOCK: 'UNLOCK_SESSION', TERMINATE: 'TERMINATE_SESSION' } as const

export interface HoldSession {
  readonly id: string
  readonly order: SessionOrder['order']
  /** Id of the administration key; null where the order is part of a larger one, which says who gave it. */
  readonly by: string | null
}

/** @throws CodedError NOT_FOUND, CONFLICT for a session that has ended */
export async function holdSession(parts: SessionParts, { id, order, by }: HoldSession, now: number): Promise<Held> {
  return parts.store.transaction(async (tx): Promise<Held> => {
    const session = await known(
      id,
      settledSession(parts, tx, id, () => undefined, now),
    )
    if (hasEnded(session)) throw new CodedError('CONFLICT', `The session is ${session.state}.`)
    if (by !== null) {
      const deviceId = session.keptBy ?? session.deviceId
      await tx.edge.audit.append({ at: now, by, action: ORDER_ACTION[order], deviceId, sessionId: id })
    }
    if (session.keptBy !== null) {
      // The last word counts: an order takes the place of the one before.
      await tx.sessions.want(session.id, order)
      await tx.outbox.append([{ kind: 'device', deviceId: session.keptBy, reason: 'session' }], now)
      return { outcome: 'ORDERED', session }
    }
    const isSo = order === 'LOCK' ? session.state === 'LOCKED' : order === 'UNLOCK' && isLive(session)
    if (isSo) return { outcome: 'DONE', session }
    const next = step(session, { kind: EVENT[order] }, now)
    return { outcome: 'DONE', session: await applyStep(parts, tx, next, session, now) }
  })
}

async function known(id: string, session: Promise<Session>): Promise<Session> {
  return session.catch((error: unknown) => {
    if (!(error instanceof CodedError) || error.code !== 'NOT_FOUND') throw error
    const message = `There is no session ${id} here. One that a device keeps is known from the next sync of the device on; name the device to order it before.`
    throw new CodedError('NOT_FOUND', message)
  })
}
