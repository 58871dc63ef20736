/**
 * Life of a cloud session. Each operation locks the session and applies overdue timers first, so the moment of a sweep
 * does not change charges. Source: interface, Sessions; documentation on charges, refunds and heartbeats.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { AccessRequest, Decision } from '../../core/rules/decision.ts'
import {
  type ReservedItem,
  type Session,
  type SessionItem,
  type Step,
  due,
  hasEnded,
  reservedItems,
  isLive,
  newSession,
  step,
  unused,
} from '../../core/sessions/session.ts'
import { CodedError } from '../../protocol/errors.ts'
import { requireNotSuspended } from '../devices/require-trusted.ts'
import { chargeIntervalMs } from '../service-api/change-configuration.ts'
import type { CloudShortages } from '../sync/grants/cloud-shortages.ts'
import { decideOverPools, refundPools } from '../accounts/decide-over-pools.ts'
import type { LoadedPolicy, Policies } from '../policy/load-policy.ts'
import type { Pool } from '../storage/records.ts'
import { requireInstance } from '../service-api/show-line-items.ts'
import type { Store, Transaction } from '../storage/store.ts'
import { type ChargeHeader, usageOfDecision, usageOfRefund } from '../usage/usage-of-request.ts'

export interface SessionDeps {
  readonly store: Store
  readonly policies: Policies
  readonly shortages: CloudShortages
  readonly newId: () => string
  readonly sessionIntervalMs: number | null
  /** False while the clock is in doubt: no time-based charge, end or deletion of sessions. */
  readonly trustsClock: () => boolean
}

/** The session after the operation; `operable`: the operation was applied. */
export interface Touched {
  readonly operable: boolean
  /** A device keeps the session: the command was noted for it. */
  readonly ordered?: true
  readonly session: Session
}

export interface OpenSession extends Pick<Session, 'instanceId' | 'deviceId'> {
  /** A device's id for opening its agent's own session; null: another session, or idempotency is not needed. */
  readonly opening: string | null
}

/**
 * Opens a session. A device has one own session per instance: the same opening returns the same session in any state,
 * and another opening closes the previous one.
 * @throws CodedError NOT_FOUND for an unknown instance; DEVICE_LOCKED, DEVICE_TERMINATED for a suspended device
 */
export async function openSession(deps: SessionDeps, order: OpenSession, now: number): Promise<Session> {
  const { instanceId, deviceId, opening } = order
  const fresh = newSession({ id: deps.newId(), instanceId, deviceId }, now)
  return deps.store.transaction(async (tx) => {
    if (deviceId !== null) {
      const device = await tx.edge.devices.lock(deviceId)
      if (device !== undefined) requireNotSuspended(device)
    }
    await requireInstance(tx, instanceId)
    if (deviceId === null || opening === null) {
      await tx.sessions.insert(fresh)
      return fresh
    }
    const opened = await tx.sessions.openedAs(deviceId, instanceId, opening)
    const same = opened.find(({ isThis }) => isThis)
    if (same !== undefined) return same.session
    // Lock all of them before the rules: see the lock sequence in store.ts.
    for (const { session } of opened) await tx.sessions.lock(session.id)
    for (const { session } of opened) await endSession(deps, tx, session.id, now)
    await tx.sessions.insert(fresh, opening)
    return fresh
  })
}

async function endSession(deps: SessionDeps, tx: Transaction, id: string, now: number): Promise<void> {
  const session = await settledSession(deps, tx, id, () => undefined, now)
  if (!hasEnded(session)) await applyStep(deps, tx, step(session, { kind: 'CLOSED' }, now), session, now)
}

/** @throws CodedError NOT_FOUND */
export async function heartbeat(
  deps: SessionDeps,
  id: string,
  belongs: (session: Session) => void,
  now: number,
): Promise<Touched> {
  return deps.store.transaction(async (tx) => {
    const session = await settledSession(deps, tx, id, belongs, now)
    if (!isLive(session)) return { operable: false, session }
    // The device counts the heartbeats: the cloud only reads the state.
    if (session.keptBy !== null) return { operable: true, session }
    const next = step(session, { kind: 'HEARTBEAT' }, now)
    await tx.sessions.save(next.session)
    return { operable: true, session: next.session }
  })
}

/**
 * A device's sync is the heartbeat of all its sessions.
 * @param locked ids of the sessions locked by this transaction: only those are touched
 */
export async function heartbeatOfDevice(
  tx: Transaction,
  deviceId: string,
  now: number,
  locked: ReadonlySet<string>,
): Promise<void> {
  for (const session of await tx.sessions.ofDevice(deviceId)) {
    // An overdue session is for the sweep: a late sync does not undo a missed heartbeat.
    if (!locked.has(session.id) || due(session, now) !== null) continue
    await tx.sessions.save(step(session, { kind: 'HEARTBEAT' }, now).session)
  }
}

/** @throws CodedError NOT_FOUND */
export async function closeSession(
  deps: SessionDeps,
  id: string,
  belongs: (session: Session) => void,
  now: number,
): Promise<Touched> {
  return deps.store.transaction(async (tx) => {
    const session = await settledSession(deps, tx, id, belongs, now)
    if (!isLive(session)) return { operable: false, session }
    if (session.keptBy !== null) {
      await tx.sessions.want(session.id, 'TERMINATE')
      await tx.outbox.append([{ kind: 'device', deviceId: session.keptBy, reason: 'session' }], now)
      return { operable: true, ordered: true, session }
    }
    return { operable: true, session: await applyStep(deps, tx, step(session, { kind: 'CLOSED' }, now), session, now) }
  })
}

export interface SessionRequest {
  readonly sessionId: string
  readonly correlationId: string
  readonly request: AccessRequest
  readonly metaData: readonly (string | null)[]
  readonly rollbackOnDeny: boolean
}

export type SessionAnswer =
  | { readonly operable: true; readonly granted: boolean; readonly decision: Decision }
  | { readonly operable: false; readonly session: Session }

/**
 * Grants all items or none. A granted request replaces the previous charge; an empty one makes the session idle.
 * @throws CodedError NOT_FOUND
 */
export async function requestInSession(
  deps: SessionDeps,
  order: SessionRequest,
  belongs: (session: Session) => void,
  now: number,
): Promise<SessionAnswer> {
  return deps.store.transaction(async (tx): Promise<SessionAnswer> => {
    const session = await settledSession(deps, tx, order.sessionId, belongs, now)
    if (!isLive(session)) return { operable: false, session }
    if (session.keptBy !== null) {
      throw new CodedError('SESSION_ON_DEVICE', `The device ${session.keptBy} keeps this session.`)
    }
    const { request } = order
    if (request.items.length === 0) {
      await applyStep(deps, tx, step(session, { kind: 'HALTED' }, now), session, now)
      return { operable: true, granted: true, decision: { items: [], postings: [], warnings: [] } }
    }
    const loaded = await pinPolicy(deps, tx, session, now)
    const outcome = await decideOverPools(tx, loaded, request, 'ALL_OR_NOTHING', now, unused(session, now))
    const { decision } = outcome
    const decided = { request, mode: 'ALL_OR_NOTHING', decision } as const
    await deps.shortages.note(tx, loaded, [decided], outcome.after, now)
    const header = headerOf('REQUEST', order.correlationId, request, session, now)
    if (!decision.items.every((item) => item.outcome === 'GRANTED')) {
      const records = usageOfDecision(header, loaded, request, order.metaData, decision, new Map())
      await tx.usage.append(records)
      const then = order.rollbackOnDeny ? 'KEEP' : 'END'
      await applyStep(deps, tx, step(session, { kind: 'REFUSED', then }, now), session, now)
      return { operable: true, granted: false, decision }
    }
    const items = reservedItems(sessionItems(order), decision)
    const intervalMs = deps.sessionIntervalMs ?? (await chargeIntervalMs(tx))
    const next = step(session, { kind: 'GRANTED', requester: request.requester, items, intervalMs }, now)
    await tx.accounts.save(outcome.changed)
    await tx.usage.append([
      ...refundRecords(deps, loaded, next.refund, session, outcome.before, now),
      ...usageOfDecision(header, loaded, request, order.metaData, decision, outcome.before),
    ])
    await tx.sessions.save(next.session)
    return { operable: true, granted: true, decision }
  })
}

/** Applies overdue timers to the longest waiting session; false: none due. */
export async function sweepNextSession(deps: SessionDeps, now: number): Promise<boolean> {
  if (!deps.trustsClock()) return false
  const failed: { session?: Session } = {}
  try {
    return await deps.store.transaction(async (tx) => {
      const session = await tx.sessions.lockDue(now)
      if (session === undefined) return false
      failed.session = session
      await settle(deps, tx, session, now)
      return true
    })
  } catch (cause) {
    const { session } = failed
    // On a store failure the session stays due.
    if (session === undefined || cause instanceof CodedError) throw cause
    await deps.store.transaction(async (tx) => {
      const stored = await tx.sessions.lock(session.id)
      if (stored !== undefined && isLive(stored)) await tx.sessions.save(step(stored, { kind: 'FAILED' }, now).session)
    })
    throw cause
  }
}

/** The session, locked, with overdue timers applied. @throws CodedError NOT_FOUND, and the errors of `belongs` */
export async function settledSession(
  deps: SessionDeps,
  tx: Transaction,
  id: string,
  belongs: (session: Session) => void,
  now: number,
): Promise<Session> {
  const session = await tx.sessions.lock(id)
  if (session === undefined) throw new CodedError('NOT_FOUND', `There is no session ${id}.`)
  belongs(session)
  return (await settle(deps, tx, session, now)) ?? session
}

async function settle(deps: SessionDeps, tx: Transaction, before: Session, now: number): Promise<Session | undefined> {
  if (!deps.trustsClock()) return before
  let session = before
  for (;;) {
    const demand = due(session, now)
    if (demand === null) return session
    if (demand === 'FORGET') {
      await tx.sessions.remove(session.id)
      return undefined
    }
    session =
      demand === 'RENEWAL'
        ? await renew(deps, tx, session, now)
        : await applyStep(deps, tx, step(session, { kind: demand }, now), session, now)
  }
}

async function renew(deps: SessionDeps, tx: Transaction, session: Session, now: number): Promise<Session> {
  const { charge, requester } = session
  if (charge === null || requester === null) throw new Error('invariant: an ACTIVE session has items and a requester')
  const items = charge.items.map(({ item }) => item)
  const request: AccessRequest = { requester, items }
  const loaded = await pinPolicy(deps, tx, session, now)
  const outcome = await decideOverPools(tx, loaded, request, 'ALL_OR_NOTHING', now)
  const { decision } = outcome
  await deps.shortages.note(tx, loaded, [{ request, mode: 'ALL_OR_NOTHING', decision }], outcome.after, now)
  const granted = decision.items.every((item) => item.outcome === 'GRANTED')
  const next = step(
    session,
    granted ? { kind: 'RENEWED', items: reservedItems(items, decision) } : { kind: 'NOT_RENEWED' },
    now,
  )
  const header = headerOf('AUTOMATIC_CHARGE', deps.newId(), request, session, now)
  const metaData = items.map((item) => item.metaData)
  await tx.accounts.save(outcome.changed)
  await tx.usage.append(usageOfDecision(header, loaded, request, metaData, decision, outcome.before))
  await tx.sessions.save(next.session)
  return next.session
}

export async function applyStep(
  deps: SessionDeps,
  tx: Transaction,
  { session, refund }: Step,
  before: Session,
  now: number,
): Promise<Session> {
  if (refund.length > 0) {
    const loaded = await pinPolicy(deps, tx, before, now)
    const changed = await refundPools(tx, refund)
    const after = new Map(changed.map((pool) => [pool.account, pool]))
    await tx.accounts.save(changed)
    await tx.usage.append(refundRecords(deps, loaded, refund, before, after, now))
  }
  await tx.sessions.save(session)
  return session
}

function refundRecords(
  { newId }: SessionDeps,
  loaded: LoadedPolicy,
  refund: readonly ReservedItem[],
  { id, requester }: Session,
  after: ReadonlyMap<AccountId, Pool>,
  now: number,
) {
  if (refund.length === 0 || requester === null) return []
  const source = { kind: 'session', sessionId: id } as const
  return usageOfRefund({ correlationId: newId(), requester, source, now }, loaded, refund, after)
}

async function pinPolicy(
  { policies }: SessionDeps,
  tx: Transaction,
  { instanceId }: Session,
  now: number,
): Promise<LoadedPolicy> {
  const loaded = await policies.hold(tx, instanceId, now)
  if (loaded === undefined) throw new Error('invariant: the instance of a session exists')
  return loaded
}

function headerOf(
  operation: ChargeHeader['operation'],
  correlationId: string,
  { requester }: AccessRequest,
  { id }: Session,
  now: number,
): ChargeHeader {
  return { operation, correlationId, requester, source: { kind: 'session', sessionId: id }, now }
}

function sessionItems({ request, metaData }: SessionRequest): readonly SessionItem[] {
  return request.items.map((item, index) => ({ ...item, metaData: metaData[index] ?? null }))
}
