/**
 * A session that this device keeps, with what the service's own state machine does not know of it: who opened it, whether
 * it ends with its connection, and in which incarnation its running interval was charged, because a refund can go nowhere
 * else. Its text in the journal is read by nobody but this file; its snapshot is what the cloud shows.
 */
import { type Decimal, decimal, formatDecimal } from '../../../core/amount.ts'
import type { Variables } from '../../../core/formula-rate.ts'
import {
  type HeldItem,
  type HeldPart,
  type IntervalCharge,
  type Session,
  type SessionItem,
  hasEnded,
} from '../../../core/session.ts'
import type { SessionSnapshot } from '../../../protocol/edge/sessions.ts'
import type { StoredSession } from '../journal.ts'

export interface KeptSession {
  readonly session: Session
  /** Who opened it, in the words of whoever knows callers apart; null where nobody does. */
  readonly owner: string | null
  /** It ends when the connection that opened it closes, and needs no heartbeats. */
  readonly bound: boolean
  /** In which the running interval was charged; 0 when none was. */
  readonly incarnation: number
  /** Of the rules that were in force at its last change. */
  readonly policyRevision: number
}

export function storedSession(kept: KeptSession): StoredSession {
  const { session } = kept
  return {
    id: session.id,
    ended: hasEnded(session),
    since: session.since,
    document: JSON.stringify({ ...kept, session: { ...session, charge: chargeText(session.charge) } }),
    snapshot: JSON.stringify(snapshotOf(session)),
  }
}

export function keptSession({ document }: Pick<StoredSession, 'document'>): KeptSession {
  const kept = JSON.parse(document) as Omit<KeptSession, 'session'> & {
    readonly session: Omit<Session, 'charge'> & { readonly charge: StoredCharge | null }
  }
  return { ...kept, session: { ...kept.session, charge: chargeOf(kept.session.charge) } }
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
            items: charge.items.map(({ item, parts }) => ({
              item: item.name,
              version: item.version,
              count: formatDecimal(item.count),
              lineItemIds: [...new Set(parts.map(({ lineItemId }) => lineItemId))],
            })),
          },
  }
}

interface StoredCharge {
  readonly from: number
  readonly until: number
  readonly items: readonly StoredItem[]
}

/** Decimals as text, micro-tokens as text. */
interface StoredItem {
  readonly name: string
  readonly version: string
  readonly count: string
  readonly variables?: Readonly<Record<string, string>>
  readonly metaData: string | null
  readonly parts: readonly {
    readonly lineItemId: string
    readonly accounts: readonly string[]
    readonly charged: string
    readonly rate?: string
  }[]
}

function chargeText(charge: IntervalCharge | null): StoredCharge | null {
  if (charge === null) return null
  return {
    from: charge.from,
    until: charge.until,
    items: charge.items.map(({ item, parts }): StoredItem => ({
      name: item.name,
      version: item.version,
      count: formatDecimal(item.count),
      ...(item.variables === undefined ? {} : { variables: textsOf(item.variables) }),
      metaData: item.metaData,
      parts: parts.map(({ lineItemId, accounts, charged, rate }) => ({
        lineItemId,
        accounts,
        charged: String(charged),
        ...(rate === undefined ? {} : { rate: formatDecimal(rate) }),
      })),
    })),
  }
}

function chargeOf(stored: StoredCharge | null): IntervalCharge | null {
  if (stored === null) return null
  return {
    from: stored.from,
    until: stored.until,
    items: stored.items.map(({ name, version, count, variables, metaData, parts }): HeldItem => {
      const item: SessionItem = {
        name,
        version,
        count: decimal(count),
        metaData,
        ...(variables === undefined ? {} : { variables: variablesOf(variables) }),
      }
      return {
        item,
        parts: parts.map(({ lineItemId, accounts, charged, rate }): HeldPart => ({
          lineItemId,
          accounts,
          charged: BigInt(charged),
          ...(rate === undefined ? {} : { rate: decimal(rate) }),
        })),
      }
    }),
  }
}

function textsOf(variables: Variables): Readonly<Record<string, string>> {
  return Object.fromEntries([...variables].map(([name, value]) => [name, formatDecimal(value)]))
}

function variablesOf(texts: Readonly<Record<string, string>>): Variables {
  return new Map(Object.entries(texts).map(([name, text]): [string, Decimal] => [name, decimal(text)]))
}
