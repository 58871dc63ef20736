/**
 * A session with what the service's state machine does not have: the owner, the binding to a connection and the epoch
 * of the running charge, the only one that a refund can go to.
 */
import { formatDecimal } from '../../core/pricing/amount.ts'
import { type Session, hasEnded } from '../../core/sessions/session.ts'
import { type StoredCharge, chargeOf, storedCharge } from '../../core/sessions/stored-charge.ts'
import type { SessionSnapshot } from '../../protocol/edge/sessions.ts'
import type { StoredSession } from '../ledger/journal.ts'

export interface KeptSession {
  readonly session: Session
  /** Null where callers are not distinguished. */
  readonly owner: string | null
  /** Ends when the connection that opened it closes; needs no heartbeats. */
  readonly bound: boolean
  readonly epoch: number
  readonly policyRevision: number
}

export function storedSession(kept: KeptSession): StoredSession {
  const { session } = kept
  const charge = session.charge === null ? null : storedCharge(session.charge)
  return {
    id: session.id,
    ended: hasEnded(session),
    since: session.since,
    document: JSON.stringify({ ...kept, session: { ...session, charge } }),
    snapshot: JSON.stringify(snapshotOf(session)),
  }
}

export function keptSession({ document }: Pick<StoredSession, 'document'>): KeptSession {
  const kept = JSON.parse(document) as Omit<KeptSession, 'session'> & {
    readonly session: Omit<Session, 'charge'> & { readonly charge: StoredCharge | null }
  }
  const { charge } = kept.session
  return { ...kept, session: { ...kept.session, charge: charge === null ? null : chargeOf(charge) } }
}

function snapshotOf(session: Session): SessionSnapshot {
  const { id, instanceId, state, created, since, lastHeartbeat, lastAccessRequest, requester, charge } = session
  return {
    id,
    instanceId,
    state,
    created,
    since,
    lastHeartbeat,
    lastAccessRequest,
    requester: requester === null ? null : { type: requester.type, value: requester.value },
    charge:
      charge === null
        ? null
        : {
            from: charge.from,
            until: charge.until,
            items: charge.items.map(({ item, shares }) => ({
              item: item.name,
              version: item.version,
              count: formatDecimal(item.count),
              lineItemIds: [...new Set(shares.map(({ lineItemId }) => lineItemId))],
            })),
          },
  }
}
