/**
 * A session: who is charged for what, and until when. It is paid in advance, interval by interval; what was paid and not
 * used goes back to where it came from. Every change of a session is a {@link step}; what a step takes or gives back is
 * said in its result, and the host applies both in one transaction.
 *
 * IDLE and ACTIVE pass through GRANTED and HALTED, ACTIVE stays so by RENEWED and HEARTBEAT, and LOCKED is left by UNLOCKED;
 * TERMINATED, FAILED and DISCONNECTED are left by nothing. The whole table, event by state, is in docs/decisions/sessions.md, and a
 * test holds it against this file.
 *
 * Source: interface, Sessions; documentation on states, intervals and heartbeats.
 */
import type { AccountId } from '../accounts/account.ts'
import { type Decimal, type Micro, ratio, roundHalfEven } from '../pricing/amount.ts'
import type { Decision, RequestedItem, Requester } from '../rules/decision.ts'
import { payingAccounts } from '../rules/needs.ts'

/**
 * IDLE and ACTIVE are live. LOCKED: an administrator has stopped it for now; FAILED: a charge met an internal error;
 * DISCONNECTED: the device that keeps it was revoked; TERMINATED: closed, denied, out of tokens, or not heard of in time.
 */
export type SessionState = 'IDLE' | 'ACTIVE' | 'LOCKED' | 'TERMINATED' | 'FAILED' | 'DISCONNECTED'

/** An item of a session, with what its usage records carry on. */
export interface SessionItem extends RequestedItem {
  /** JSON text. */
  readonly metaData: string | null
}

/** The share of a charge that one line item paid, with every account that it was taken from. */
export interface ReservedShare {
  readonly lineItemId: string
  readonly accounts: readonly AccountId[]
  readonly charged: Micro
  /** Tokens per unit of count, where the host keeps it. */
  readonly rate?: Decimal
}

export interface ReservedItem {
  readonly item: SessionItem
  readonly shares: readonly ReservedShare[]
}

/** What paid for the running interval: `from` inclusive, `until` exclusive, POSIX milliseconds. */
export interface IntervalCharge {
  readonly from: number
  readonly until: number
  readonly items: readonly ReservedItem[]
}

export interface Session {
  readonly id: string
  readonly instanceId: string
  /** The device whose agent opened it; null for one that somebody else opened. */
  readonly deviceId: string | null
  /** The device that charges it and ends it, and reports what became of it; null for one that this host keeps itself. */
  readonly keptBy: string | null
  readonly state: SessionState
  readonly created: number
  /** Of the last granted request; automatic charges are made in its name. */
  readonly requester: Requester | null
  /** Null unless ACTIVE. */
  readonly charge: IntervalCharge | null
  /** Length of the intervals of the running timeline, ms; 0 unless ACTIVE. */
  readonly intervalMs: number
  /** A heartbeat must arrive before; null while none is needed. */
  readonly heartbeatDue: number | null
  /** 0: never. */
  readonly lastHeartbeat: number
  /** 0: never. */
  readonly lastAccessRequest: number
  /** When it came into its state. */
  readonly since: number
}

export type SessionEvent =
  | {
      readonly kind: 'GRANTED'
      readonly requester: Requester
      readonly items: readonly ReservedItem[]
      readonly intervalMs: number
    }
  | { readonly kind: 'REFUSED'; readonly then: 'KEEP' | 'END' }
  | { readonly kind: 'RENEWED'; readonly items: readonly ReservedItem[] }
  | {
      readonly kind:
        | 'HALTED'
        | 'NOT_RENEWED'
        | 'HEARTBEAT'
        | 'HEARTBEAT_MISSED'
        | 'IDLED_OUT'
        | 'CLOSED'
        | 'FAILED'
        | 'LOCKED'
        | 'UNLOCKED'
        | 'SUSPENDED'
    }

export interface Step {
  readonly session: Session
  /** What goes back to the accounts; empty when nothing does. */
  readonly refund: readonly ReservedItem[]
}

/** An IDLE session ends after this time, and one that ended is forgotten after the same. Source: documentation on sessions. */
export const SESSION_REST_MS = 30 * 24 * 60 * 60 * 1000

export function isLive(session: Pick<Session, 'state'>): boolean {
  return session.state === 'IDLE' || session.state === 'ACTIVE'
}

/** Ended for good; one that is locked has not. */
export function hasEnded(session: Pick<Session, 'state'>): boolean {
  return !isLive(session) && session.state !== 'LOCKED'
}

/** The events that each state takes; docs/decisions/sessions.md has where they lead. */
const TAKES: Readonly<Record<SessionState, readonly SessionEvent['kind'][]>> = {
  IDLE: ['GRANTED', 'REFUSED', 'HALTED', 'HEARTBEAT', 'IDLED_OUT', 'CLOSED', 'FAILED', 'LOCKED', 'SUSPENDED'],
  ACTIVE: [
    'GRANTED',
    'REFUSED',
    'HALTED',
    'RENEWED',
    'NOT_RENEWED',
    'HEARTBEAT',
    'HEARTBEAT_MISSED',
    'CLOSED',
    'FAILED',
    'LOCKED',
    'SUSPENDED',
  ],
  LOCKED: ['UNLOCKED', 'CLOSED', 'IDLED_OUT', 'SUSPENDED'],
  TERMINATED: [],
  FAILED: [],
  DISCONNECTED: [],
}

export function newSession(
  { id, instanceId, deviceId }: Pick<Session, 'id' | 'instanceId' | 'deviceId'>,
  now: number,
): Session {
  return {
    id,
    instanceId,
    deviceId,
    keptBy: null,
    state: 'IDLE',
    created: now,
    requester: null,
    charge: null,
    intervalMs: 0,
    heartbeatDue: null,
    lastHeartbeat: 0,
    lastAccessRequest: 0,
    since: now,
  }
}

/**
 * The one gate of every change. Throws when the state does not take the event: the caller asked {@link isLive} and
 * {@link due} before.
 */
export function step(session: Session, event: SessionEvent, now: number): Step {
  if (!TAKES[session.state].includes(event.kind))
    throw new Error(`invariant: a session that is ${session.state} takes no ${event.kind}`)
  switch (event.kind) {
    case 'GRANTED': {
      const charge = { from: now, until: now + event.intervalMs, items: event.items }
      const active: Session = {
        ...session,
        state: 'ACTIVE',
        requester: event.requester,
        charge,
        intervalMs: event.intervalMs,
        heartbeatDue: null,
        lastAccessRequest: now,
        since: session.state === 'ACTIVE' ? session.since : now,
      }
      return { session: active, refund: unused(session, now) }
    }
    case 'REFUSED': {
      const asked = { ...session, lastAccessRequest: now }
      return event.then === 'KEEP' ? { session: asked, refund: [] } : end(asked, unused(session, now), now)
    }
    case 'HALTED': {
      const asked = { ...session, lastAccessRequest: now }
      if (session.state === 'IDLE') return { session: asked, refund: [] }
      return { session: { ...asked, state: 'IDLE', ...NO_TIMELINE, since: now }, refund: unused(session, now) }
    }
    case 'RENEWED': {
      const [from, until] = nextInterval(session, now)
      const heartbeatDue = session.heartbeatDue ?? Math.max(now, from) + Math.floor(session.intervalMs / 2)
      return { session: { ...session, charge: { from, until, items: event.items }, heartbeatDue }, refund: [] }
    }
    case 'HEARTBEAT':
      return { session: { ...session, lastHeartbeat: now, heartbeatDue: null }, refund: [] }
    case 'HEARTBEAT_MISSED':
      return end(session, session.charge?.items ?? [], now)
    case 'CLOSED':
      return end(session, unused(session, now), now)
    case 'NOT_RENEWED':
    case 'IDLED_OUT':
      return end(session, [], now)
    case 'FAILED':
      return { session: { ...session, state: 'FAILED', ...NO_TIMELINE, since: now }, refund: [] }
    case 'LOCKED':
      return { session: { ...session, state: 'LOCKED', heartbeatDue: null, since: now }, refund: [] }
    case 'UNLOCKED':
      return session.charge !== null && now < session.charge.until
        ? { session: { ...session, state: 'ACTIVE', since: now }, refund: [] }
        : { session: { ...session, state: 'IDLE', ...NO_TIMELINE, since: now }, refund: [] }
    case 'SUSPENDED':
      return suspend(session, now)
  }
}

/** What time alone demands of a session. `FORGET`: it ended long ago. */
export type Due = 'RENEWAL' | 'HEARTBEAT_MISSED' | 'IDLED_OUT' | 'FORGET'

/** What is due at this instant; null when nothing is. Ask again after each step: one may follow another. */
export function due(session: Session, now: number): Due | null {
  const next = nextDue(session)
  if (now < next) return null
  if (session.state === 'IDLE' || session.state === 'LOCKED') return 'IDLED_OUT'
  if (session.state !== 'ACTIVE') return 'FORGET'
  return next === session.heartbeatDue ? 'HEARTBEAT_MISSED' : 'RENEWAL'
}

/** The first instant at which {@link due} names something. A session that a device keeps is the device's until it ended. */
export function nextDue(session: Session): number {
  if (session.keptBy !== null && !hasEnded(session)) return Number.MAX_SAFE_INTEGER
  if (session.state !== 'ACTIVE') return session.since + SESSION_REST_MS
  const until = session.charge?.until ?? session.since
  return session.heartbeatDue === null ? until : Math.min(until, session.heartbeatDue)
}

/** End of what is paid, POSIX milliseconds; 0 when nothing is. */
export function chargedUntil(session: Session): number {
  return session.charge?.until ?? 0
}

/**
 * What comes back when the charge of the running interval ends now: of each item's charge the unused share of the time.
 * Each part gets its share of the item's rounded total, so that the parts sum to it and none exceeds what it paid.
 */
export function unused({ charge }: Session, now: number): readonly ReservedItem[] {
  if (charge === null || charge.from === charge.until) return []
  const unusedMs = BigInt(Math.max(0, charge.until - Math.max(now, charge.from)))
  const intervalMs = BigInt(charge.until - charge.from)
  const upTo = (amount: Micro): Micro => roundHalfEven(ratio(amount * unusedMs, intervalMs))
  return charge.items.map(({ item, shares }): ReservedItem => {
    let paid = 0n
    return {
      item,
      shares: shares.map((share) => {
        const before = upTo(paid)
        paid += share.charged
        return { ...share, charged: upTo(paid) - before }
      }),
    }
  })
}

/** What a granted decision took, item by item, with the accounts behind each part. */
export function reservedItems(items: readonly SessionItem[], decision: Decision): readonly ReservedItem[] {
  const accountsOf = payingAccounts(decision)
  return items.map((item, index): ReservedItem => {
    const outcome = decision.items[index]
    if (outcome?.outcome !== 'GRANTED') throw new Error('invariant: every item of a granted session request is granted')
    return {
      item,
      shares: outcome.shares
        .filter(({ charged }) => charged > 0n)
        .map((share) => ({ lineItemId: share.lineItemId, charged: share.charged, accounts: accountsOf(share) })),
    }
  })
}

const NO_TIMELINE = { charge: null, intervalMs: 0, heartbeatDue: null } as const

/** What comes back now cannot come back again: the items stay, without what they cost. */
function suspend(session: Session, now: number): Step {
  const { charge } = session
  if (charge === null) return { session, refund: [] }
  const at = Math.min(Math.max(now, charge.from), charge.until)
  const items = charge.items.map(({ item }): ReservedItem => ({ item, shares: [] }))
  return {
    session: { ...session, charge: { from: at, until: at, items }, heartbeatDue: null },
    refund: unused(session, now),
  }
}

function end(session: Session, refund: readonly ReservedItem[], now: number): Step {
  return { session: { ...session, state: 'TERMINATED', ...NO_TIMELINE, since: now }, refund }
}

/** The interval of the timeline that holds `now`: intervals that passed while no host was running are not charged. */
function nextInterval({ charge, intervalMs }: Session, now: number): [number, number] {
  if (charge === null) throw new Error('invariant: only an ACTIVE session is renewed')
  const missed = Math.max(0, Math.floor((now - charge.until) / intervalMs))
  const from = charge.until + missed * intervalMs
  return [from, from + intervalMs]
}
