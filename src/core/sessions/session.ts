/**
 * The state machine of sessions. A session is charged in advance per interval; the unused part is refunded. The host
 * applies the charges and refunds of a {@link step} in one transaction. docs/decisions/sessions.md has the table of
 * events and states. Source: interface, Sessions; documentation on states, intervals and heartbeats.
 */
import type { AccountId } from '../accounts/account.ts'
import { type Decimal, type Micro, ratio, roundHalfEven } from '../pricing/amount.ts'
import type { Decision, RequestedItem, Requester } from '../rules/decision.ts'
import { payingAccounts } from '../rules/needs.ts'

/**
 * IDLE and ACTIVE are live. LOCKED: suspended by an administrator; FAILED: a charge met an internal error;
 * DISCONNECTED: its device was revoked; TERMINATED: closed, denied, out of tokens, or without heartbeat.
 */
export type SessionState = 'IDLE' | 'ACTIVE' | 'LOCKED' | 'TERMINATED' | 'FAILED' | 'DISCONNECTED'

export interface SessionItem extends RequestedItem {
  readonly metaData: string | null
}

export interface ReservedShare {
  readonly lineItemId: string
  readonly accounts: readonly AccountId[]
  readonly charged: Micro
  readonly rate?: Decimal
}

export interface ReservedItem {
  readonly item: SessionItem
  readonly shares: readonly ReservedShare[]
}

/** The charge of the running interval: `from` inclusive, `until` exclusive, POSIX ms. */
export interface IntervalCharge {
  readonly from: number
  readonly until: number
  readonly items: readonly ReservedItem[]
}

export interface Session {
  readonly id: string
  readonly instanceId: string
  /** The device whose agent opened it; null: another client. */
  readonly deviceId: string | null
  /** The device that charges, ends and reports it; null: this host. */
  readonly keptBy: string | null
  readonly state: SessionState
  readonly created: number
  /** Of the last granted request; automatic charges use it. */
  readonly requester: Requester | null
  readonly charge: IntervalCharge | null
  readonly intervalMs: number
  readonly heartbeatDue: number | null
  /** 0: never. */
  readonly lastHeartbeat: number
  readonly lastAccessRequest: number
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
  readonly refund: readonly ReservedItem[]
}

/** An IDLE session ends after this time, and an ended one is deleted after it. Source: documentation on sessions. */
export const SESSION_REST_MS = 30 * 24 * 60 * 60 * 1000

/** Between clocks of cloud nodes that are trusted. */
export const NODES_DIFFER_MAX_MS = 10 * 60 * 1000

export function isLive(session: Pick<Session, 'state'>): boolean {
  return session.state === 'IDLE' || session.state === 'ACTIVE'
}

export function hasEnded(session: Pick<Session, 'state'>): boolean {
  return !isLive(session) && session.state !== 'LOCKED'
}

/** The events that each state accepts. */
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

/** Applies an event. Throws if the state does not accept it: check {@link isLive} and {@link due} first. */
export function step(session: Session, event: SessionEvent, now: number): Step {
  if (!TAKES[session.state].includes(event.kind))
    throw new Error(`invariant: a session that is ${session.state} takes no ${event.kind}`)
  switch (event.kind) {
    case 'GRANTED':
      return grant(session, event, now)
    case 'REFUSED':
      return refuse(session, event.then, now)
    case 'HALTED':
      return halt(session, now)
    case 'RENEWED':
      return renew(session, event.items, now)
    case 'HEARTBEAT':
      return { session: { ...session, lastHeartbeat: now, heartbeatDue: null }, refund: [] }
    case 'HEARTBEAT_MISSED':
      return end(session, session.charge?.items ?? [], now)
    case 'CLOSED':
      return end(session, unused(session, now), now)
    case 'NOT_RENEWED':
      return end(session, refundAtRenewal(session, now), now)
    case 'IDLED_OUT':
      return end(session, [], now)
    case 'FAILED':
      return { session: { ...session, state: 'FAILED', ...NO_TIMELINE, since: now }, refund: [] }
    case 'LOCKED':
      return { session: { ...session, state: 'LOCKED', heartbeatDue: null, since: now }, refund: [] }
    case 'UNLOCKED':
      return unlock(session, now)
    case 'SUSPENDED':
      return suspend(session, now)
  }
}

export type Due = 'RENEWAL' | 'HEARTBEAT_MISSED' | 'IDLED_OUT' | 'FORGET'

/**
 * Null: nothing is due. Call again after each step.
 * @param hostsDifferMs see {@link renewalDueBefore}
 */
export function due(session: Session, now: number, hostsDifferMs = 0): Due | null {
  const next = nextDue(session)
  if (now < next) return now < (renewalDueBefore(session, hostsDifferMs) ?? now) ? 'RENEWAL' : null
  if (session.state === 'IDLE' || session.state === 'LOCKED') return 'IDLED_OUT'
  if (session.state !== 'ACTIVE') return 'FORGET'
  return next === session.heartbeatDue ? 'HEARTBEAT_MISSED' : 'RENEWAL'
}

/** The next instant at which {@link due} returns an event. A session kept by a device has none until it ended. */
export function nextDue(session: Session): number {
  if (session.keptBy !== null && !hasEnded(session)) return Number.MAX_SAFE_INTEGER
  if (session.state !== 'ACTIVE') return session.since + SESSION_REST_MS
  const until = session.charge?.until ?? session.since
  return session.heartbeatDue === null ? until : Math.min(until, session.heartbeatDue)
}

export function chargedUntil(session: Session): number {
  return session.charge?.until ?? 0
}

/** The refund if the interval ended now. Shares are parts of the item's rounded total, so none exceeds its charge. */
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

/** The whole charge if the clock was ahead when it was made, otherwise nothing. */
export function refundAtRenewal(session: Session, now: number): readonly ReservedItem[] {
  return isAhead(session, now) ? unused(session, now) : []
}

/** Tokens to return to each account, without amounts that round to zero. */
export function refundsByAccount(refund: readonly ReservedItem[]): ReadonlyMap<AccountId, Micro> {
  const back = new Map<AccountId, Micro>()
  for (const { accounts, charged } of refund.flatMap(({ shares }) => shares)) {
    if (charged === 0n) continue
    for (const account of accounts) back.set(account, (back.get(account) ?? 0n) + charged)
  }
  return back
}

export function reservedItems(items: readonly SessionItem[], decision: Decision): readonly ReservedItem[] {
  const accountsOf = payingAccounts(decision)
  return items.map((item, index): ReservedItem => {
    const outcome = decision.items[index]
    if (outcome?.outcome !== 'GRANTED') throw new Error('invariant: every item of a granted session request is granted')
    return {
      item,
      shares: outcome.shares
        .filter(({ charged }) => charged > 0n)
        .map((share) => ({
          lineItemId: share.lineItemId,
          charged: share.charged,
          accounts: accountsOf(share),
          rate: share.rate,
        })),
    }
  })
}

const NO_TIMELINE = { charge: null, intervalMs: 0, heartbeatDue: null } as const

function grant(
  session: Session,
  { requester, items, intervalMs }: Extract<SessionEvent, { kind: 'GRANTED' }>,
  now: number,
): Step {
  const active: Session = {
    ...session,
    state: 'ACTIVE',
    requester,
    charge: { from: now, until: now + intervalMs, items },
    intervalMs,
    heartbeatDue: null,
    lastAccessRequest: now,
    since: session.state === 'ACTIVE' ? session.since : now,
  }
  return { session: active, refund: unused(session, now) }
}

function refuse(session: Session, then: 'KEEP' | 'END', now: number): Step {
  const updated = { ...session, lastAccessRequest: now }
  return then === 'KEEP' ? { session: updated, refund: [] } : end(updated, unused(session, now), now)
}

function halt(session: Session, now: number): Step {
  const updated = { ...session, lastAccessRequest: now }
  if (session.state === 'IDLE') return { session: updated, refund: [] }
  return { session: { ...updated, state: 'IDLE', ...NO_TIMELINE, since: now }, refund: unused(session, now) }
}

/** A heartbeat is due by the middle of the next interval, or earlier if one is due already. */
function renew(session: Session, items: readonly ReservedItem[], now: number): Step {
  const [from, until] = nextInterval(session, now)
  const pending = isAhead(session, now) ? null : session.heartbeatDue
  const heartbeatDue = pending ?? Math.max(now, from) + Math.floor(session.intervalMs / 2)
  const charge = { from, until, items }
  return { session: { ...session, charge, heartbeatDue }, refund: refundAtRenewal(session, now) }
}

/** ACTIVE only within the interval that is paid. */
function unlock(session: Session, now: number): Step {
  return session.charge !== null && now < session.charge.until
    ? { session: { ...session, state: 'ACTIVE', since: now }, refund: [] }
    : { session: { ...session, state: 'IDLE', ...NO_TIMELINE, since: now }, refund: [] }
}

/** Keeps the items without their cost, so that they cannot be refunded twice. */
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

/**
 * Before this instant, a clock that was ahead has made the charge: without a renewal, nothing would be charged until
 * then. Null: never.
 * @param hostsDifferMs between the clocks of the hosts that charge the session. Within it, a renewal would let them
 *   charge short intervals in turns
 */
export function renewalDueBefore({ state, keptBy, charge, intervalMs }: Session, hostsDifferMs: number): number | null {
  if (state !== 'ACTIVE' || keptBy !== null || charge === null) return null
  return charge.from - Math.max(intervalMs, hostsDifferMs)
}

function isAhead({ charge }: Session, now: number): boolean {
  return charge !== null && now < charge.from
}

/** The interval that contains `now`. Intervals that passed while no host was running are not charged. */
function nextInterval(session: Session, now: number): [number, number] {
  const { charge, intervalMs } = session
  if (charge === null) throw new Error('invariant: only an ACTIVE session is renewed')
  if (isAhead(session, now)) return [now, now + intervalMs]
  const missed = Math.max(0, Math.floor((now - charge.until) / intervalMs))
  const from = charge.until + missed * intervalMs
  return [from, from + intervalMs]
}
