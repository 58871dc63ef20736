/**
 * A session that this device keeps, with what the service's own state machine does not know of it: who opened it, whether
 * it ends with its connection, and in which epoch its running interval was charged, because a refund can go nowhere
 * else. Its text in the journal is read by nobody but this file; its snapshot is what the cloud shows.
 */
import { formatDecimal } from '../../core/pricing/amount.ts'
import { type Session, hasEnded } from '../../core/sessions/session.ts'
import { type StoredCharge, chargeOf, storedCharge } from '../../core/sessions/stored-charge.ts'
import type { SessionSnapshot } from '../../protocol/edge/sessions.ts'
import type { StoredSession } from '../ledger/journal.ts'

export interface KeptSession {
  readonly session: Session
  /** Who opened it, in the words of whoever knows callers apart; null where nobody does. */
  readonly owner: string | null
  /** It ends when the connection that opened it closes, and needs no heartbeats. */
  readonly bound: boolean
  /** In which the running interval was charged; 0 when none was. */
  readonly epoch: number
  /** Of the rules that were in force at its last change. */
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
