/** Overdue timers apply first. Source: interface, Sessions; documentation on charges, refunds and heartbeats. */
import { recordChange } from '../storage/audit.ts'
import type { AccountId } from '../../core/accounts/account.ts'
import { type AccessRequest, type Decision, allGranted } from '../../core/rules/decision.ts'
import {
  NODES_DIFFER_MAX_MS,
  type ReservedItem,
  type Session,
  type SessionEvent,
  type SessionItem,
  due,
  hasEnded,
  reservedItems,
  isLive,
  nextDue,
  newSession,
  refundAtRenewal,
  type Step,
  step,
  unused,
} from '../../core/sessions/session.ts'
import { CodedError } from '../../protocol/errors.ts'
import { requireNotSuspended } from '../storage/require-trusted.ts'
import { chargeIntervalMs } from '../policy/configuration.ts'
import { type ShortageNotes, decideOverPools, refundPools } from '../policy/decide-over-pools.ts'
import type { LoadedPolicy, Policies } from '../policy/load-policy.ts'
import type { Pool, UsageRecord } from '../storage/records.ts'
import { lockSession, requireInstance } from '../storage/require-record.ts'
import type { Store, Transaction } from '../storage/store.ts'
import { type ChargeHeader, usageOfDecision, usageOfRefund, withMetaData } from '../usage/usage-of-request.ts'

/** Open sessions in the cloud that one device may have: its sync is a heartbeat of all of them. An agent has one per instance. */
export const SESSIONS_OPENED_MAX = 1_000

export interface SessionDeps {
  readonly store: Store
  readonly policies: Policies
  readonly shortages: ShortageNotes
  readonly newId: () => string
  readonly sessionIntervalMs: number | null
  /** False while the clock is in doubt: no time-based charge, end or deletion of sessions. */
  readonly trustsClock: () => boolean
}

/** The session has ended or is locked. */
interface NotOperable {
  readonly operable: false
  readonly session: Session
}

export type Touched =
  | NotOperable
  | {
      readonly operable: true
      /** A device keeps the session: the command was noted for it. */
      readonly pending?: true
      readonly session: Session
    }

export interface OpenSession extends Pick<Session, 'instanceId' | 'deviceId'> {
  /** A device's id for opening its agent's own session; null: another session, or idempotency is not needed. */
  readonly opening: string | null
}

/**
 * The same opening returns the same session.
 * @throws CodedError NOT_FOUND, DEVICE_LOCKED, DEVICE_TERMINATED, SESSIONS_LIMITED
 */
export async function openSession(deps: SessionDeps, command: OpenSession, now: number): Promise<Session> {
  const { instanceId, deviceId, opening } = command
  const fresh = newSession({ id: deps.newId(), instanceId, deviceId }, now)
  return deps.store.transaction(async (tx) => {
    if (deviceId !== null) {
      const device = await tx.edge.devices.lock(deviceId)
      if (device !== undefined) requireNotSuspended(device)
    }
    await requireInstance(tx, instanceId)
    if (deviceId !== null && opening !== null) {
      const opened = await tx.sessions.openedAs(deviceId, instanceId, opening)
      const same = opened.find(({ isThis }) => isThis)
      if (same !== undefined) return same.session
      // Lock all of them before the rules: see the lock sequence in store.ts.
      for (const { session } of opened) await tx.sessions.lock(session.id)
      const changes = new SessionChanges(deps, tx, now)
      for (const { session } of opened) {
        const settled = await changes.settled(session.id)
        if (hasEnded(settled)) continue
        await recordChange(tx, now, { action: 'CLOSE_SESSION', instanceId, deviceId, sessionId: session.id })
        await changes.apply(settled, { kind: 'CLOSED' })
      }
    }
    if (deviceId !== null) await requireFewOpened(tx, deviceId)
    await tx.sessions.insert(fresh, deviceId === null ? null : opening)
    await recordChange(tx, now, { action: 'OPEN_SESSION', instanceId, deviceId, sessionId: fresh.id })
    return fresh
  })
}

/** The device is locked. @throws CodedError SESSIONS_LIMITED */
async function requireFewOpened(tx: Transaction, deviceId: string): Promise<void> {
  const { length } = await tx.sessions.opened(deviceId)
  if (length < SESSIONS_OPENED_MAX) return
  throw new CodedError('SESSIONS_LIMITED', `The device ${deviceId} has ${length} open sessions, which is the maximum.`)
}

interface LiveSession {
  readonly tx: Transaction
  readonly changes: SessionChanges
  readonly session: Session
}

/** Works in a session that is live after its overdue timers. @throws CodedError NOT_FOUND, and the errors of `belongs` */
async function inLiveSession<T>(
  deps: SessionDeps,
  { id, belongs, now }: { id: string; belongs: (session: Session) => void; now: number },
  work: (live: LiveSession) => Promise<T>,
): Promise<T | NotOperable> {
  return deps.store.transaction(async (tx) => {
    const changes = new SessionChanges(deps, tx, now)
    const session = await changes.settled(id, belongs)
    return isLive(session) ? work({ tx, changes, session }) : { operable: false, session }
  })
}

/** @throws CodedError NOT_FOUND */
export async function heartbeat(
  deps: SessionDeps,
  id: string,
  belongs: (session: Session) => void,
  now: number,
): Promise<Touched> {
  return inLiveSession(deps, { id, belongs, now }, async ({ changes, session }): Promise<Touched> => {
    // The device counts the heartbeats: the cloud only reads the state.
    if (session.keptBy !== null) return { operable: true, session }
    return { operable: true, session: await changes.apply(session, { kind: 'HEARTBEAT' }) }
  })
}

/** A device's sync is the heartbeat of those of its sessions that this transaction has locked. */
export async function heartbeatOfDevice(
  tx: Transaction,
  deviceId: string,
  now: number,
  locked: ReadonlySet<string>,
): Promise<void> {
  if (locked.size === 0) return
  // An overdue session is for the sweep: a late sync does not undo a missed heartbeat.
  const alive = (await tx.sessions.ofDevice(deviceId)).filter(
    (session) => locked.has(session.id) && nextDue(session) > now,
  )
  await tx.sessions.saveSome(
    alive.map((stored) => ({ session: step(stored, { kind: 'HEARTBEAT' }, now).session, stored })),
  )
}

/** @throws CodedError NOT_FOUND */
export async function closeSession(
  deps: SessionDeps,
  id: string,
  belongs: (session: Session) => void,
  now: number,
): Promise<Touched> {
  return inLiveSession(deps, { id, belongs, now }, async ({ tx, changes, session }): Promise<Touched> => {
    const { instanceId } = session
    const deviceId = session.keptBy ?? session.deviceId
    await recordChange(tx, now, { action: 'CLOSE_SESSION', instanceId, deviceId, sessionId: id })
    if (session.keptBy !== null) {
      await tx.sessions.setWanted(session.id, 'TERMINATE')
      await tx.outbox.append([{ kind: 'device', deviceId: session.keptBy, reason: 'session' }], now)
      return { operable: true, pending: true, session }
    }
    return { operable: true, session: await changes.apply(session, { kind: 'CLOSED' }) }
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
  NotOperable | { readonly operable: true; readonly granted: boolean; readonly decision: Decision }

/** Grants all items or none; an empty request makes the session idle. @throws CodedError NOT_FOUND */
export async function requestInSession(
  deps: SessionDeps,
  command: SessionRequest,
  belongs: (session: Session) => void,
  now: number,
): Promise<SessionAnswer> {
  const called = { id: command.sessionId, belongs, now }
  return inLiveSession(deps, called, async ({ changes, session }): Promise<SessionAnswer> => {
    if (session.keptBy !== null) {
      throw new CodedError('SESSION_ON_DEVICE', `The device ${session.keptBy} keeps this session.`)
    }
    if (command.request.items.length === 0) {
      await changes.apply(session, { kind: 'HALTED' })
      return { operable: true, granted: true, decision: { items: [], postings: [], warnings: [] } }
    }
    return { operable: true, ...(await changes.request(session, command)) }
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
      await new SessionChanges(deps, tx, now).settle(session)
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

interface Charged {
  readonly granted: boolean
  readonly decision: Decision
  readonly usage: readonly UsageRecord[]
  readonly loaded: LoadedPolicy
  /** Pools after the refund and before the charge. */
  readonly before: ReadonlyMap<AccountId, Pool>
  readonly changed: readonly Pool[]
}

export class SessionChanges {
  readonly #deps: SessionDeps
  readonly #tx: Transaction
  readonly #now: number

  constructor(deps: SessionDeps, tx: Transaction, now: number) {
    this.#deps = deps
    this.#tx = tx
    this.#now = now
  }

  /** The session, locked, with overdue timers applied. @throws CodedError NOT_FOUND, and the errors of `belongs` */
  async settled(id: string, belongs: (session: Session) => void = () => undefined): Promise<Session> {
    const session = await lockSession(this.#tx, id)
    belongs(session)
    return (await this.settle(session)) ?? session
  }

  /** Applies overdue timers; undefined: the session is forgotten. */
  async settle(before: Session): Promise<Session | undefined> {
    if (!this.#deps.trustsClock()) return before
    let session = before
    for (;;) {
      const demand = due(session, this.#now, NODES_DIFFER_MAX_MS)
      if (demand === null) return session
      if (demand === 'FORGET') {
        await this.#tx.sessions.remove(session.id)
        return undefined
      }
      session = demand === 'RENEWAL' ? await this.#renew(session) : await this.apply(session, { kind: demand })
    }
  }

  async apply(before: Session, event: SessionEvent): Promise<Session> {
    const { session, refund } = step(before, event, this.#now)
    if (refund.length > 0) {
      const loaded = await this.#pinPolicy(before)
      const changed = await refundPools(this.#tx, refund)
      const after = new Map(changed.map((pool) => [pool.account, pool]))
      await this.#tx.accounts.save(changed)
      await this.#tx.usage.append(this.#usageOfRefund(before, loaded, refund, after))
    }
    await this.#tx.sessions.save(session)
    return session
  }

  async request(before: Session, command: SessionRequest): Promise<{ granted: boolean; decision: Decision }> {
    const { correlationId, request, metaData, rollbackOnDeny } = command
    const { requester } = request
    const items = withMetaData(request.items, metaData)
    const header = { operation: 'REQUEST', correlationId, requester } as const
    const refunded = unused(before, this.#now)
    const charged = await this.#decide(before, header, items, refunded)
    const { granted, decision } = charged
    if (!granted) {
      await this.#tx.usage.append(charged.usage)
      await this.apply(before, { kind: 'REFUSED', then: rollbackOnDeny ? 'KEEP' : 'END' })
      return { granted, decision }
    }
    const reserved = reservedItems(items, decision)
    const intervalMs = this.#deps.sessionIntervalMs ?? (await chargeIntervalMs(this.#tx))
    const next = step(before, { kind: 'GRANTED', requester, items: reserved, intervalMs }, this.#now)
    await this.#saveCharge(before, next, charged)
    return { granted, decision }
  }

  /** A charge whose decision includes the refund. */
  async #saveCharge(session: Session, next: Step, { changed, loaded, before, usage }: Charged): Promise<void> {
    await this.#tx.accounts.save(changed)
    const refunds = this.#usageOfRefund(session, loaded, next.refund, before)
    await this.#tx.usage.append([...refunds, ...usage])
    await this.#tx.sessions.save(next.session)
  }

  async #renew(before: Session): Promise<Session> {
    const { charge, requester } = before
    if (charge === null || requester === null) throw new Error('invariant: an ACTIVE session has items and a requester')
    const items = charge.items.map(({ item }) => item)
    const header = { operation: 'AUTOMATIC_CHARGE', correlationId: this.#deps.newId(), requester } as const
    const charged = await this.#decide(before, header, items, refundAtRenewal(before, this.#now))
    if (!charged.granted) {
      await this.#tx.usage.append(charged.usage)
      return this.apply(before, { kind: 'NOT_RENEWED' })
    }
    const next = step(before, { kind: 'RENEWED', items: reservedItems(items, charged.decision) }, this.#now)
    await this.#saveCharge(before, next, charged)
    return next.session
  }

  async #decide(
    session: Session,
    header: Pick<ChargeHeader, 'operation' | 'correlationId'> & Pick<AccessRequest, 'requester'>,
    items: readonly SessionItem[],
    refunded: readonly ReservedItem[],
  ): Promise<Charged> {
    const tx = this.#tx
    const now = this.#now
    const request: AccessRequest = { requester: header.requester, items }
    const mode = 'ALL_OR_NOTHING'
    const loaded = await this.#pinPolicy(session)
    const outcome = await decideOverPools(tx, loaded, { request, mode, now }, refunded)
    const { decision, after } = outcome
    await this.#deps.shortages.note(tx, loaded, { requests: [{ request, mode, decision }], pools: after }, now)
    const source = { kind: 'session', sessionId: session.id } as const
    const usage = usageOfDecision({ ...header, source, now }, loaded, items, outcome)
    return { ...outcome, loaded, usage, granted: allGranted(decision) }
  }

  #usageOfRefund(
    { id, requester }: Session,
    loaded: LoadedPolicy,
    refund: readonly ReservedItem[],
    after: ReadonlyMap<AccountId, Pool>,
  ): readonly UsageRecord[] {
    if (refund.length === 0 || requester === null) return []
    const source = { kind: 'session', sessionId: id } as const
    const header = { correlationId: this.#deps.newId(), requester, source, now: this.#now }
    return usageOfRefund(header, loaded, refund, after)
  }

  async #pinPolicy({ instanceId }: Session): Promise<LoadedPolicy> {
    const loaded = await this.#deps.policies.lockShared(this.#tx, instanceId, this.#now)
    if (loaded === undefined) throw new Error('invariant: the instance of a session exists')
    return loaded
  }
}
