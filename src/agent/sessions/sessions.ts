/**
 * The sessions that the device keeps, by the same state machine as in the cloud. Each change is recorded in one
 * transaction before the response. Operations on one session run one at a time, overdue timers first. The clock is the
 * earlier bound of the known time, so changing the wall clock has no effect.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { type AccessRequest, type ClockReading, allGranted, tokensOf } from '../../core/rules/decision.ts'
import {
  type Due,
  type ReservedItem,
  type Session,
  type SessionEvent,
  due,
  hasEnded,
  isLive,
  newSession,
  nextDue,
  step,
  refundAtRenewal,
  refundsByAccount,
  unused,
} from '../../core/sessions/session.ts'
import type { SessionCommand } from '../../protocol/edge/sessions.ts'
import { CodedError, type ErrorCode } from '../../protocol/errors.ts'
import { accessResponseText } from '../../protocol/service/access-response-text.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'
import type { Access, AccessAnswer, ChargeRequest, MetaData, NotOperable } from '../access/access.ts'
import type { CallerQuota } from '../access/callers/callers.ts'
import { type Claim, type NumberedRequest, recordOf } from '../access/idempotency-cache.ts'
import { type Attempt, type RulesDeps, requireRules } from '../access/local-decisions.ts'
import type { IdempotencyRecord, StoredSession } from '../ledger/journal.ts'
import type { Ledger } from '../ledger/ledger.ts'
import type { ActivePolicies } from '../policy/active-policies.ts'
import { type KeptSession, keptSession, storedSession } from './kept-session.ts'
import { type Change, type Moment, changeBy, changeByCharge, chargedItems, openingOf } from './session-change.ts'
import type { Log } from '../../protocol/log.ts'

export interface SessionsDeps {
  readonly ledger: Pick<Ledger, 'requireAttached' | 'status' | 'lastEntry' | 'epoch' | 'grant' | 'recordTogether'>
  readonly policies: Pick<ActivePolicies, 'get' | 'suspension' | 'isStale'>
  readonly link: RulesDeps['link']
  readonly access: Pick<Access, 'once' | 'charge'>
  readonly clock: { reading(): ClockReading }
  readonly liveMax: number
  readonly timers: { after(ms: number, call: () => void): () => void }
  /** After an automatic charge. @param quota of the owner's last request in it; undefined: none since the start */
  readonly onCharged: (owner: string | null, tokens: Micro, quota: CallerQuota | undefined) => void
  readonly newId: () => string
  readonly newCorrelationId: () => string
  readonly engine: number
  readonly log: Pick<Log, 'warn'>
  /** A broken invariant, or a write with unknown outcome: the process must end. */
  readonly onFatal: (error: unknown) => void
}

/** Throws if the caller may not access the session. */
export type Belongs = (kept: KeptSession) => void

export interface OpenSessionRequest {
  /** In lower case. */
  readonly instanceId: string
  readonly owner: string | null
  readonly bound: boolean
  readonly idempotencyKey: NumberedRequest | null
  readonly quota?: CallerQuota | undefined
}

export interface SessionAccessRequest {
  readonly apiVersion: ApiVersion
  readonly sessionId: string
  readonly request: AccessRequest
  readonly metaData: MetaData
  readonly rollbackOnDeny: boolean
  readonly belongs: Belongs
  readonly idempotencyKey: NumberedRequest | null
  readonly quota?: CallerQuota | undefined
}

export type SessionAnswer = AccessAnswer | NotOperable

/** Longest time between two checks for due sessions, ms: the clock may turn out to have been behind. */
const CHECK_EVERY_MS = 30_000

/** Shortest time before a failed operation is tried again, ms. */
const TRY_AGAIN_MS = 1_000

const ENDED_MAX = 1_000

/** Errors after which an automatic charge is not retried: the session ends. */
const NOT_RENEWABLE: ReadonlySet<string> = new Set<ErrorCode>([
  'DEVICE_TERMINATED',
  'POLICY_STALE',
  'REQUEST_TOO_LARGE',
])

const NO_REFUND: ReadonlyMap<AccountId, Micro> = new Map()

interface Slot {
  durable: KeptSession | null
  /** Includes changes that are not yet recorded. */
  latest: KeptSession
  /** Settles after the last operation of the queue. */
  tail: Promise<unknown>
  quota?: CallerQuota | undefined
  /** Why its last change in the background failed, which is logged; undefined: it did not. */
  failure?: ErrorCode | undefined
}

export class Sessions {
  readonly #deps: SessionsDeps
  readonly #slots = new Map<string, Slot>()
  /** Oldest first. */
  readonly #ended: string[] = []
  #cancelCheck: () => void = () => undefined
  #isStopped = false
  /** Cancel the retries of background work. */
  readonly #cancelRetries = new Set<() => void>()

  constructor(deps: SessionsDeps, stored: readonly StoredSession[]) {
    this.#deps = deps
    for (const each of stored) {
      const kept = keptSession(each)
      this.#slots.set(kept.session.id, { durable: kept, latest: kept, tail: Promise.resolve() })
      if (each.ended) this.#remember(each.id)
    }
  }

  /** Closes the bound sessions of the previous process, whose connections are gone, and starts the timer. */
  start(): void {
    for (const [id, { latest }] of this.#slots) if (latest.bound && !hasEnded(latest.session)) this.connectionClosed(id)
    this.#checkDue()
  }

  stop(): void {
    this.#isStopped = true
    for (const cancel of this.#cancelRetries) cancel()
    this.#cancelRetries.clear()
    this.#cancelCheck()
  }

  async settled(): Promise<void> {
    await Promise.all([...this.#slots.values()].map(({ tail }) => tail))
  }

  list(belongs: (kept: KeptSession) => boolean): readonly Session[] {
    return [...this.#slots.values()]
      .flatMap(({ durable }) => (durable !== null && isLive(durable.session) && belongs(durable) ? [durable] : []))
      .map(({ session }) => session)
      .reverse()
      .toSorted((a, b) => b.created - a.created)
  }

  /** @throws CodedError NOT_FOUND, and what `belongs` throws */
  get(id: string, belongs: Belongs): Session {
    const { durable, latest } = this.#slotOf(id, belongs)
    return (durable ?? latest).session
  }

  isOpen(id: string): boolean {
    const slot = this.#slots.get(id)
    return slot !== undefined && !hasEnded(slot.latest.session)
  }

  /** @throws CodedError CALLER_LIMITED, SESSIONS_LIMITED, OVERLOADED, NOT_RECORDED, and those of requireRules and Access.once */
  open(call: OpenSessionRequest): Promise<SessionAnswer> {
    return this.#once(call.idempotencyKey, async (claim) => {
      const { clock, ledger, newId, liveMax } = this.#deps
      const reading = clock.reading()
      const { document } = requireRules(this.#deps, call.instanceId, reading)
      ledger.requireAttached()
      let live = 0
      let own = 0
      for (const { latest } of this.#slots.values()) {
        if (hasEnded(latest.session)) continue
        live += 1
        if (latest.owner === call.owner) own += 1
      }
      call.quota?.open(own)
      if (live >= liveMax) throw new CodedError('OVERLOADED', `${liveMax} sessions are live on this device`)
      const { instanceId, revision: policyRevision } = document
      const session = newSession({ id: newId(), instanceId, deviceId: null }, reading.earliest)
      const next: KeptSession = {
        session,
        owner: call.owner,
        bound: call.bound,
        epoch: 0,
        policyRevision,
      }
      const slot: Slot = { durable: null, latest: next, tail: Promise.resolve(), quota: call.quota }
      this.#slots.set(session.id, slot)
      const body = JSON.stringify({ sessionId: session.id })
      const answer = answered(200, body, policyRevision)
      try {
        await this.#commit(slot, openingOf(next, this.#moment(reading)), recordOf(claim, answer))
      } catch (error) {
        this.#slots.delete(session.id)
        throw error
      }
      this.#checkDue()
      return answer
    })
  }

  /**
   * Grants all items or none, instead of the session's current charge; no items make the session idle.
   * @throws CodedError NOT_FOUND, NOT_RECORDED, and of {@link requireRules} and the idempotency cache
   */
  request(call: SessionAccessRequest): Promise<SessionAnswer> {
    return this.#once(call.idempotencyKey, (claim) => {
      call.quota?.request(call.request.requester)
      return this.#operate(call.sessionId, call.belongs, async (slot) => {
        if (call.request.items.length > 0) return this.#request(slot, call, claim)
        const correlationId = this.#deps.newCorrelationId()
        const { session, policyRevision } = slot.latest
        const body = accessResponseText(call.apiVersion, correlationId, call.request, { items: [] })
        const change = this.#changeBy(slot.latest, { kind: 'HALTED' }, this.#deps.clock.reading(), correlationId)
        const answer = answered(200, body, policyRevision)
        await this.#commit(slot, change, recordOf(claim, answer))
        if (session.state === 'ACTIVE') this.#checkDue()
        return answer
      })
    })
  }

  /** Longest time between two heartbeats of a live session, ms; null: it needs none. */
  heartbeatMs(id: string): number | null {
    const latest = this.#slots.get(id)?.latest
    if (latest === undefined || latest.bound || !isLive(latest.session)) return null
    const { intervalMs, instanceId } = latest.session
    const nextMs = intervalMs > 0 ? intervalMs : this.#deps.policies.get(instanceId)?.document.sessionIntervalMs
    return nextMs === undefined ? null : Math.floor(nextMs / 2)
  }

  /** @throws CodedError NOT_FOUND, NOT_ATTACHED, NOT_RECORDED */
  heartbeat(id: string, belongs: Belongs): Promise<SessionAnswer> {
    return this.#operate(id, belongs, async (slot) => {
      const { latest } = slot
      const reading = this.#deps.clock.reading()
      if (latest.session.heartbeatDue === null) {
        // Nothing depends on it, so it is recorded only with the next change.
        const { session } = step(latest.session, { kind: 'HEARTBEAT' }, reading.earliest)
        slot.latest = { ...latest, session }
        // The journal may still reject a refund at the end of the epoch.
        if (slot.durable === latest) slot.durable = slot.latest
      } else await this.#commit(slot, this.#changeBy(latest, { kind: 'HEARTBEAT' }, reading), null)
      return answered(204, '', latest.policyRevision)
    })
  }

  /** @throws CodedError NOT_FOUND, NOT_ATTACHED, NOT_RECORDED, and of the idempotency cache */
  close(id: string, belongs: Belongs, idempotencyKey: NumberedRequest | null): Promise<SessionAnswer> {
    return this.#once(idempotencyKey, (claim) => {
      const end = async (slot: Slot): Promise<SessionAnswer> => {
        const { latest } = slot
        const change = this.#changeBy(latest, { kind: 'CLOSED' })
        const answer = answered(204, '', latest.policyRevision)
        await this.#commit(slot, change, recordOf(claim, answer))
        return answer
      }
      return this.#operate(id, belongs, end, { mustBePaid: false })
    })
  }

  /** Ends a session whose connection closed, with its refund, as soon as that can be recorded. */
  connectionClosed(id: string): void {
    const end = async (slot: Slot): Promise<void> => {
      const { latest } = slot
      if (hasEnded(latest.session)) return
      await this.#commit(slot, this.#changeBy(latest, { kind: 'CLOSED' }), null)
    }
    this.#inBackground(id, end, () => this.connectionClosed(id))
  }

  applyCommands(commands: readonly SessionCommand[], onApplied: () => void): void {
    for (const { id, command } of commands) {
      // The cloud repeats the command in its next answer.
      this.#inBackground(id.toLowerCase(), async (slot) => {
        await this.#runOverdueTimers(slot)
        const event = eventOfCommand(command, slot.latest.session)
        if (event === null) return
        await this.#commit(slot, this.#changeBy(slot.latest, event), null)
        onApplied()
      })
    }
  }

  /**
   * Before the epoch ends, with its accounts: refunds unused tokens. The next epoch charges the sessions again. Those of a
   * terminated device end. Synchronous; does not wait for earlier records.
   */
  suspend(): void {
    const { clock, ledger, policies } = this.#deps
    const reading = clock.reading()
    const isTerminated = policies.suspension?.state === 'TERMINATED'
    for (const slot of this.#slots.values()) {
      const { latest } = slot
      // Without a charge, its epoch is 0.
      const isAffected = isTerminated ? !hasEnded(latest.session) : latest.epoch === ledger.epoch()
      if (!isAffected) continue
      const change = this.#changeBy(latest, { kind: isTerminated ? 'CLOSED' : 'SUSPENDED' }, reading)
      this.#commit(slot, change, null).catch((error: unknown) => this.#reportFailure(error, latest.session.id))
    }
    this.#checkDueIn(TRY_AGAIN_MS)
  }

  /** An operation of a caller: after earlier ones and overdue timers, if the session is still live. */
  async #operate(
    id: string,
    belongs: Belongs,
    work: (slot: Slot) => Promise<SessionAnswer>,
    { mustBePaid } = { mustBePaid: true },
  ): Promise<SessionAnswer> {
    const slot = this.#slotOf(id, belongs)
    return this.#enqueue(slot, async () => {
      await this.#runOverdueTimers(slot, { mustBePaid })
      const { session } = slot.latest
      return isLive(session) ? work(slot) : { operable: false, session }
    })
  }

  /** An operation without a waiting caller; calls `retry` later if it could not be recorded. */
  #inBackground(id: string, work: (slot: Slot) => Promise<void>, retry?: () => void): void {
    const slot = this.#slots.get(id)
    if (slot === undefined || this.#isStopped) return
    this.#enqueue(slot, () => work(slot)).catch((error: unknown) => {
      this.#reportFailure(error, id)
      if (this.#isStopped || retry === undefined) return
      const cancel = this.#deps.timers.after(TRY_AGAIN_MS, () => {
        this.#cancelRetries.delete(cancel)
        retry()
      })
      this.#cancelRetries.add(cancel)
    })
  }

  #enqueue<T>(slot: Slot, work: () => Promise<T>): Promise<T> {
    const done = slot.tail.then(work)
    slot.tail = done.catch(() => undefined)
    return done
  }

  #slotOf(id: string, belongs: Belongs): Slot {
    const slot = this.#slots.get(id)
    if (slot?.durable === null || slot === undefined) throw new CodedError('NOT_FOUND', `There is no session ${id}.`)
    belongs(slot.latest)
    return slot
  }

  #once(
    request: NumberedRequest | null,
    work: (claim: Claim | null) => Promise<SessionAnswer>,
  ): Promise<SessionAnswer> {
    return request === null ? work(null) : this.#deps.access.once<NotOperable>(request, work)
  }

  /** A granted request refunds the rest of the running interval, and may spend it. */
  async #request(slot: Slot, call: SessionAccessRequest, claim: Claim | null): Promise<SessionAnswer> {
    const { apiVersion, request, metaData, quota, rollbackOnDeny } = call
    const { requester } = request
    slot.quota = quota
    const answer = await this.#charge(
      slot,
      { apiVersion, request, metaData, claim, quota, refundAt: this.#refundAt(slot, unused) },
      {
        isWanted: () => isLive(slot.latest.session),
        eventOf: (items, { policy }) =>
          items === null
            ? { kind: 'REFUSED', then: rollbackOnDeny ? 'KEEP' : 'END' }
            : { kind: 'GRANTED', requester, items, intervalMs: policy.document.sessionIntervalMs },
      },
    )
    this.#checkDue()
    return answer
  }

  /** The refund that a charge may spend, at each attempt. A charge of an earlier epoch is not refunded. */
  #refundAt(slot: Slot, refundOf: typeof unused): NonNullable<ChargeRequest<NotOperable>['refundAt']> {
    return (reading) => {
      const { session, epoch } = slot.latest
      return epoch === this.#deps.ledger.epoch() ? refundsByAccount(refundOf(session, reading.earliest)) : NO_REFUND
    }
  }

  /** Charges all items or none. Records the charge together with the change of the session that follows from it. */
  #charge(
    slot: Slot,
    request: Omit<ChargeRequest<NotOperable>, 'instanceId' | 'mode' | 'session'>,
    by: {
      /** Checked again before the charge, because waiting for the cloud takes time. */
      readonly isWanted: (attempt: Attempt) => boolean
      /** The change of the session; null: not all items were granted. */
      readonly eventOf: (items: readonly ReservedItem[] | null, attempt: Attempt) => SessionEvent
    },
  ): Promise<SessionAnswer> {
    const { access, ledger, newCorrelationId, engine } = this.#deps
    const { items } = request.request
    return access.charge<NotOperable>({
      ...request,
      instanceId: slot.latest.session.instanceId,
      mode: 'ALL_OR_NOTHING',
      session: {
        check: (attempt) => (by.isWanted(attempt) ? null : { operable: false, session: slot.latest.session }),
        record: (attempt, entryOf, record) => {
          const { decision } = attempt
          const event = by.eventOf(chargedItems(items, request.metaData, decision), attempt)
          const change = changeByCharge(slot.latest, event, attempt, {
            epoch: ledger.epoch(),
            engine,
            newCorrelationId,
            entryOf,
          })
          return this.#commit(slot, change, record)
        },
      },
    })
  }

  /** @param terms.mustBePaid throws the reason if an automatic charge must wait; otherwise, it stays overdue */
  async #runOverdueTimers(slot: Slot, { mustBePaid } = { mustBePaid: false }): Promise<void> {
    for (;;) {
      const reading = this.#deps.clock.reading()
      const demand = due(slot.latest.session, reading.earliest)
      if (demand === null) return
      if (demand === 'FORGET') {
        this.#slots.delete(slot.latest.session.id)
        return
      }
      if (!mustBePaid && this.#mustWait(demand)) return
      if (demand === 'RENEWAL') await this.#renew(slot)
      else await this.#commit(slot, this.#changeBy(slot.latest, { kind: demand }, reading), null)
    }
  }

  /** Nothing is recorded between two epochs, and a locked device charges nothing. */
  #mustWait(demand: Due): boolean {
    const { ledger, policies } = this.#deps
    if (demand === 'FORGET') return false
    return ledger.status() !== 'ATTACHED' || (demand === 'RENEWAL' && policies.suspension?.state === 'LOCKED')
  }

  async #renew(slot: Slot): Promise<void> {
    try {
      await this.#chargeAgain(slot)
    } catch (error) {
      const isFinal = error instanceof CodedError && NOT_RENEWABLE.has(error.code)
      // Between two epochs, the end cannot be recorded.
      if (!isFinal || this.#deps.ledger.status() !== 'ATTACHED') throw error
      await this.#commit(slot, this.#changeBy(slot.latest, { kind: 'NOT_RENEWED' }), null)
    }
  }

  async #chargeAgain(slot: Slot): Promise<void> {
    const { ledger, onCharged } = this.#deps
    const { requester, charge } = slot.latest.session
    if (charge === null || requester === null) throw new Error('invariant: an ACTIVE session has items and a requester')
    const items = charge.items.map(({ item }) => item)
    const metaData = items.map(({ metaData: text }) => {
      return text === null ? undefined : (JSON.parse(text) as Readonly<Record<string, unknown>>)
    })
    const refundAt = this.#refundAt(slot, refundAtRenewal)
    let tokens = 0n
    const answer = await this.#charge(
      slot,
      { apiVersion: null, request: { requester, items }, metaData, claim: null, quota: undefined, refundAt },
      {
        isWanted: ({ reading, decision }) => {
          if (due(slot.latest.session, reading.earliest) !== 'RENEWAL') return false
          if (allGranted(decision) || ledger.grant() !== null) return true
          throw new CodedError('NOT_ATTACHED', 'the device has no grant yet')
        },
        eventOf: (again, { decision }) => {
          tokens = tokensOf(decision)
          return again === null ? { kind: 'NOT_RENEWED' } : { kind: 'RENEWED', items: again }
        },
      },
    )
    if (answer.operable) onCharged(slot.latest.owner, tokens, slot.quota)
  }

  #changeBy(
    kept: KeptSession,
    event: SessionEvent,
    reading: ClockReading = this.#deps.clock.reading(),
    correlationId?: string,
  ): Change {
    return changeBy(kept, event, this.#moment(reading), correlationId)
  }

  #moment(reading: ClockReading): Moment {
    const { ledger, newCorrelationId, engine } = this.#deps
    return { reading, epoch: ledger.epoch(), engine, newCorrelationId }
  }

  /** Records session and entries in one transaction. Rejects with NOT_RECORDED when nothing was recorded. */
  async #commit(slot: Slot, { next, entries }: Change, record: IdempotencyRecord | null): Promise<'durable'> {
    const { ledger } = this.#deps
    const first = ledger.lastEntry() + 1
    const stored = storedSession(next)
    const last = entries.length - 1
    const recording = ledger.recordTogether(
      entries.map((entryOf, index) => {
        const entry = entryOf(first + index)
        return index === last ? { ...entry, idempotencyRecord: record, session: stored } : entry
      }),
    )
    slot.latest = next
    try {
      await recording
    } catch (error) {
      // Later changes of the session are lost as well.
      if (slot.durable !== null) slot.latest = slot.durable
      throw error
    }
    slot.durable = next
    slot.failure = undefined
    if (hasEnded(next.session)) this.#remember(next.session.id)
    return 'durable'
  }

  #remember(ended: string): void {
    this.#ended.push(ended)
    const forgotten = this.#ended.length > ENDED_MAX ? this.#ended.shift() : undefined
    if (forgotten !== undefined) this.#slots.delete(forgotten)
  }

  #checkDue(): void {
    if (this.#isStopped) return
    const now = this.#deps.clock.reading().earliest
    let next = CHECK_EVERY_MS
    for (const [id, { latest }] of this.#slots) {
      const demand = due(latest.session, now)
      if (demand === null) next = Math.min(next, nextDue(latest.session) - now)
      else if (!this.#mustWait(demand)) {
        next = Math.min(next, TRY_AGAIN_MS)
        this.#inBackground(id, (slot) => this.#runOverdueTimers(slot))
      }
    }
    this.#checkDueIn(next)
  }

  #checkDueIn(ms: number): void {
    this.#cancelCheck()
    if (!this.#isStopped) this.#cancelCheck = this.#deps.timers.after(Math.ceil(ms), () => this.#checkDue())
  }

  /** Coded errors are retried, and logged once for each reason; any other error ends the process. */
  #reportFailure(error: unknown, sessionId: string): void {
    if (!(error instanceof CodedError)) {
      this.#deps.onFatal(error)
      return
    }
    const { code } = error
    const slot = this.#slots.get(sessionId)
    if (slot?.failure === code) return
    if (slot !== undefined) slot.failure = code
    this.#deps.log.warn({ sessionId, code }, 'a session could not be advanced')
  }
}

function eventOfCommand(command: SessionCommand['command'], session: Session): SessionEvent | null {
  if (hasEnded(session)) return null
  if (command === 'TERMINATE') return { kind: 'CLOSED' }
  if (command === 'LOCK') return isLive(session) ? { kind: 'LOCKED' } : null
  return isLive(session) ? null : { kind: 'UNLOCKED' }
}

function answered(status: number, body: string, policyRevision: number): AccessAnswer {
  return { operable: true, status, body, policyRevision, warnings: [], durability: 'durable' }
}
