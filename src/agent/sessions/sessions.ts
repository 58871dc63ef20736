/**
 * The sessions that the device keeps, also offline and over restarts, by the same state machine as in the cloud. Each
 * change is recorded with its entries in one transaction before the response is sent. Operations on one session run one
 * at a time, overdue timers first. The clock is the earlier bound of the known time, so changing the wall clock has no
 * effect.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { AccessRequest, Warning, ClockReading, Decision } from '../../core/rules/decision.ts'
import {
  type ReservedItem,
  type Session,
  type SessionEvent,
  type SessionItem,
  type Step,
  due,
  hasEnded,
  reservedItems,
  isLive,
  newSession,
  nextDue,
  step,
  unused,
} from '../../core/sessions/session.ts'
import { sumPostings } from '../../core/accounts/grant.ts'
import type { SessionCommand } from '../../protocol/edge/sessions.ts'
import { CodedError, type ErrorCode } from '../../protocol/errors.ts'
import { accessResponse } from '../../protocol/service/access-request.ts'
import { DENIED_STATUS } from '../../protocol/service/sessions.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'
import type { CallerQuota } from '../access/callers/callers.ts'
import { accessEntryText } from '../access/entry-text.ts'
import { decisionInputsText } from '../access/decision-inputs.ts'
import type { IdempotencyRecord, PendingEntry, StoredSession } from '../ledger/journal.ts'
import type { Claim, IdempotencyCache } from '../access/idempotency-cache.ts'
import type { Ledger } from '../ledger/ledger.ts'
import { type Attempt, type LocalDecisions, tokensOf } from '../access/local-decisions.ts'
import type { ActivePolicies } from '../policy/active-policies.ts'
import { type RulesDeps, requireRules, requireAttached } from '../access/require-rules.ts'
import { type KeptSession, keptSession, storedSession } from './kept-session.ts'
import { type SessionEntry, refundEntryText, refundPostings, refundable, sessionEntryText } from './session-entries.ts'

export interface SessionsDeps {
  readonly ledger: Pick<Ledger, 'status' | 'lastEntry' | 'epoch' | 'grant' | 'recordTogether'>
  readonly policies: Pick<ActivePolicies, 'get' | 'suspension' | 'isStale'>
  readonly topUps: RulesDeps['topUps']
  readonly decisions: Pick<LocalDecisions, 'decide'>
  readonly idempotencyCache: IdempotencyCache
  readonly clock: { reading(): ClockReading }
  /** Live sessions at a time; more are refused. */
  readonly liveMax: number
  readonly keepsInputs: boolean
  readonly timers: { after(ms: number, call: () => void): () => void }
  /** Called after an automatic charge in a session of this owner. */
  readonly onCharged: (owner: string | null, tokens: Micro) => void
  readonly newId: () => string
  readonly log: { warn(fields: Record<string, unknown>, message: string): void }
  /** A broken invariant, or a write with unknown outcome: the process must end. */
  readonly onFatal: (error: unknown) => void
}

/** Throws if the caller may not access the session. */
export type Belongs = (kept: KeptSession) => void

export interface SessionIdempotencyKey {
  readonly session: string
  readonly n: number
  /** SHA-256 of the request. */
  readonly requestHash: string
}

export interface OpenSessionRequest {
  /** In lower case. */
  readonly instanceId: string
  readonly owner: string | null
  readonly bound: boolean
  readonly idempotencyKey: SessionIdempotencyKey | null
  readonly quota?: CallerQuota
}

export interface SessionAccessRequest {
  readonly apiVersion: ApiVersion
  readonly sessionId: string
  readonly request: AccessRequest
  /** Per requested item. */
  readonly metaData: readonly (Readonly<Record<string, unknown>> | undefined)[]
  readonly rollbackOnDeny: boolean
  readonly belongs: Belongs
  readonly idempotencyKey: SessionIdempotencyKey | null
  readonly quota?: CallerQuota
}

/** `status` as in the service API; `body` JSON text or empty. */
export type SessionAnswer =
  | {
      readonly operable: true
      readonly status: number
      readonly body: string
      readonly policyRevision: number
      readonly warnings: readonly Warning[]
    }
  /** The session has ended or is locked. */
  | { readonly operable: false; readonly session: Session }

/** Longest time between two checks for due sessions, ms: the clock may turn out to have been behind. */
const LOOK_EVERY_MS = 30_000

/** Shortest time before a failed operation is tried again, ms. */
const TRY_AGAIN_MS = 1_000

const ENDED_MAX = 1_000

/** Errors after which an automatic charge is not retried. */
const NOT_RENEWABLE: ReadonlySet<string> = new Set<ErrorCode>(['POLICY_STALE', 'REQUEST_TOO_LARGE'])

const NO_WARNINGS: readonly Warning[] = []
const NO_REFUND: ReadonlyMap<AccountId, Micro> = new Map()

interface Slot {
  /** As recorded in the journal. */
  durable: KeptSession | null
  /** Includes changes that are not yet recorded. */
  latest: KeptSession
  tail: Promise<unknown>
}

/** Entries without their numbers, and the session after them. */
interface Change {
  readonly next: KeptSession
  readonly entries: readonly ((
    n: number,
  ) => Pick<PendingEntry, 'body' | 'moves' | 'postings' | 'allowances' | 'inputs'>)[]
}

interface Asked {
  /** Null: an automatic charge. */
  readonly apiVersion: ApiVersion | null
  readonly request: AccessRequest
  readonly metaData: SessionAccessRequest['metaData']
  readonly attempt: Attempt
}

export class Sessions {
  readonly #deps: SessionsDeps
  readonly #slots = new Map<string, Slot>()
  /** Oldest first. */
  readonly #ended: string[] = []
  #cancelLook: () => void = () => undefined
  #isStopped = false

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
    this.#look()
  }

  stop(): void {
    this.#isStopped = true
    this.#cancelLook()
  }

  async settled(): Promise<void> {
    await Promise.all([...this.#slots.values()].map(({ tail }) => tail))
  }

  /** Live sessions, newest first. */
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

  /**
   * @throws CodedError of {@link requireRules}, CALLER_LIMITED, OVERLOADED, NOT_RECORDED, and of the idempotency cache
   */
  open(order: OpenSessionRequest): Promise<SessionAnswer> {
    return this.#once(order.idempotencyKey, async (claim) => {
      const { clock, newId, liveMax } = this.#deps
      const reading = clock.reading()
      const { document } = requireRules(this.#deps, order.instanceId, reading)
      let live = 0
      let own = 0
      for (const { latest } of this.#slots.values()) {
        if (hasEnded(latest.session)) continue
        live += 1
        if (latest.owner === order.owner) own += 1
      }
      order.quota?.open(own)
      if (live >= liveMax) throw new CodedError('OVERLOADED', `${liveMax} sessions are live on this device`)
      const { instanceId, revision: policyRevision } = document
      const session = newSession({ id: newId(), instanceId, deviceId: null }, reading.earliest)
      const next: KeptSession = {
        session,
        owner: order.owner,
        bound: order.bound,
        epoch: 0,
        policyRevision,
      }
      const slot: Slot = { durable: null, latest: next, tail: Promise.resolve() }
      this.#slots.set(session.id, slot)
      const body = JSON.stringify({ sessionId: session.id })
      const answer = answerOf(claim, 200, body, policyRevision)
      try {
        await this.#commit(slot, { next, entries: [this.#plain(next, 'OPENED', reading)] }, answer)
      } catch (error) {
        this.#slots.delete(session.id)
        throw error
      }
      this.#look()
      return { operable: true, status: 200, body, policyRevision, warnings: NO_WARNINGS }
    })
  }

  /**
   * Grants all items or none. A granted request replaces the session's current charge; an empty one makes the session
   * idle.
   *
   * @throws CodedError NOT_FOUND, NOT_RECORDED, and of {@link requireRules} and the idempotency cache
   */
  request(order: SessionAccessRequest): Promise<SessionAnswer> {
    return this.#once(order.idempotencyKey, (claim) => {
      order.quota?.request(order.request.requester)
      return this.#alone(order.sessionId, order.belongs, async (slot) => {
        const reading = this.#deps.clock.reading()
        const correlationId = this.#deps.newId()
        if (order.request.items.length > 0) return this.#ask(slot, order, correlationId, claim)
        const { session, policyRevision } = slot.latest
        const body = JSON.stringify(accessResponse(order.apiVersion, correlationId, order.request, { items: [] }))
        const change = this.#changeBy(slot.latest, { kind: 'HALTED' }, reading, correlationId)
        await this.#commit(slot, change, answerOf(claim, 200, body, policyRevision))
        if (session.state === 'ACTIVE') this.#look()
        return { operable: true, status: 200, body, policyRevision, warnings: NO_WARNINGS }
      })
    })
  }

  /** @throws CodedError NOT_FOUND, NOT_ATTACHED, NOT_RECORDED */
  heartbeat(id: string, belongs: Belongs): Promise<SessionAnswer> {
    return this.#alone(id, belongs, async (slot) => {
      const { latest } = slot
      const reading = this.#deps.clock.reading()
      if (latest.session.heartbeatDue === null) {
        // Nothing depends on it, so it is recorded only with the next change.
        const { session } = step(latest.session, { kind: 'HEARTBEAT' }, reading.earliest)
        slot.latest = { ...latest, session }
        slot.durable = slot.latest
      } else await this.#commit(slot, this.#changeBy(latest, { kind: 'HEARTBEAT' }, reading), null)
      return noContent(latest.policyRevision)
    })
  }

  /** @throws CodedError NOT_FOUND, NOT_ATTACHED, NOT_RECORDED, and of the idempotency cache */
  close(id: string, belongs: Belongs, idempotencyKey: SessionIdempotencyKey | null): Promise<SessionAnswer> {
    return this.#once(idempotencyKey, (claim) =>
      this.#alone(id, belongs, async (slot) => {
        const { latest } = slot
        const change = this.#changeBy(latest, { kind: 'CLOSED' }, this.#deps.clock.reading())
        await this.#commit(slot, change, answerOf(claim, 204, '', latest.policyRevision))
        return noContent(latest.policyRevision)
      }),
    )
  }

  /** Ends a session whose connection closed, with its refund, as soon as that can be recorded. */
  connectionClosed(id: string): void {
    const end = async (slot: Slot): Promise<void> => {
      const { latest } = slot
      if (hasEnded(latest.session)) return
      await this.#commit(slot, this.#changeBy(latest, { kind: 'CLOSED' }, this.#deps.clock.reading()), null)
    }
    this.#inTurn(id, end, () => this.connectionClosed(id))
  }

  applyCommands(commands: readonly SessionCommand[], onTaken: () => void): void {
    for (const { id, command } of commands) {
      this.#inTurn(
        id.toLowerCase(),
        async (slot) => {
          await this.#settle(slot)
          const event = eventOf(command, slot.latest.session)
          if (event === null) return
          await this.#commit(slot, this.#changeBy(slot.latest, event, this.#deps.clock.reading()), null)
          onTaken()
        },
        // The cloud repeats the command in its next answer.
        () => undefined,
      )
    }
  }

  /**
   * The epoch is about to end, and its accounts with it: refunds unused tokens now. The next epoch charges the sessions
   * again. Synchronous; does not wait for earlier records.
   */
  suspend(): void {
    const reading = this.#deps.clock.reading()
    for (const slot of this.#slots.values()) {
      const { latest } = slot
      if (latest.session.charge === null || hasEnded(latest.session) || !this.#isRefundable(latest)) continue
      const change = this.#changeBy(latest, { kind: 'SUSPENDED' }, reading)
      this.#commit(slot, change, null).catch((error: unknown) => this.#complain(error, latest.session.id))
    }
    this.#lookIn(TRY_AGAIN_MS)
  }

  /** Runs operations in the sequence of arrival, each after overdue timers. */
  async #alone(id: string, belongs: Belongs, work: (slot: Slot) => Promise<SessionAnswer>): Promise<SessionAnswer> {
    const slot = this.#slotOf(id, belongs)
    return this.#after(slot, async () => {
      await this.#settle(slot)
      const { session } = slot.latest
      return isLive(session) ? work(slot) : { operable: false, session }
    })
  }

  /** For operations without a waiting caller; calls `retry` if it could not be recorded. */
  #inTurn(id: string, work: (slot: Slot) => Promise<void>, retry: () => void): void {
    const slot = this.#slots.get(id)
    if (slot === undefined || this.#isStopped) return
    this.#after(slot, () => work(slot)).catch((error: unknown) => {
      this.#complain(error, id)
      if (!this.#isStopped) this.#deps.timers.after(TRY_AGAIN_MS, retry)
    })
  }

  #after<T>(slot: Slot, work: () => Promise<T>): Promise<T> {
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

  async #once(
    idempotencyKey: SessionIdempotencyKey | null,
    work: (claim: Claim | null) => Promise<SessionAnswer>,
  ): Promise<SessionAnswer> {
    if (idempotencyKey === null) return work(null)
    const { idempotencyCache } = this.#deps
    const begun = idempotencyCache.begin(idempotencyKey)
    if (begun.kind === 'REPEAT') {
      const { answer: body, status = 200, policyRevision } = await begun.answer
      return { operable: true, status, body, policyRevision, warnings: NO_WARNINGS }
    }
    try {
      const answer = await work(begun.claim)
      if (!answer.operable) idempotencyCache.fail(begun.claim, new CodedError('SESSION_NOT_OPERABLE', 'it has ended'))
      return answer
    } catch (error) {
      idempotencyCache.fail(begun.claim, error)
      throw error
    }
  }

  #ask(slot: Slot, order: SessionAccessRequest, correlationId: string, claim: Claim | null): Promise<SessionAnswer> {
    return this.#decide(slot, order.request, true, (attempt) => this.#take(slot, order, correlationId, claim, attempt))
  }

  /** Awaits nothing before the charge, because other requests use the same accounts. */
  async #take(
    slot: Slot,
    order: SessionAccessRequest,
    correlationId: string,
    claim: Claim | null,
    attempt: Attempt,
  ): Promise<SessionAnswer> {
    const { policy, reading, decision } = attempt
    const { apiVersion, request } = order
    const { latest } = slot
    if (!isLive(latest.session)) return { operable: false, session: latest.session }
    const granted = decision.items.every(({ outcome }) => outcome === 'GRANTED')
    const { revision: policyRevision, sessionIntervalMs: intervalMs } = policy.document
    const event: SessionEvent = granted
      ? { kind: 'GRANTED', requester: request.requester, items: held(order, decision), intervalMs }
      : { kind: 'REFUSED', then: order.rollbackOnDeny ? 'KEEP' : 'END' }
    const asked: Asked = { apiVersion, request, metaData: order.metaData, attempt }
    const change = this.#changeBy({ ...latest, policyRevision }, event, reading, correlationId, asked)
    const status = granted ? 200 : DENIED_STATUS
    const body = JSON.stringify(accessResponse(apiVersion, correlationId, request, decision))
    const tokens = tokensOf(decision)
    order.quota?.spend(tokens)
    try {
      await this.#commit(slot, change, answerOf(claim, status, body, policyRevision))
    } catch (error) {
      order.quota?.unspend(tokens)
      throw error
    }
    this.#look()
    return { operable: true, status, body, policyRevision, warnings: decision.warnings }
  }

  /** Runs overdue timers. */
  async #settle(slot: Slot): Promise<void> {
    for (;;) {
      const reading = this.#deps.clock.reading()
      const demand = due(slot.latest.session, reading.earliest)
      if (demand === null) return
      if (demand === 'FORGET') {
        this.#slots.delete(slot.latest.session.id)
        return
      }
      if (demand === 'RENEWAL') await this.#renew(slot)
      else await this.#commit(slot, this.#changeBy(slot.latest, { kind: demand }, reading), null)
    }
  }

  /** Charges the same items again, by the current rules and rates. */
  async #renew(slot: Slot): Promise<void> {
    const { requester, charge } = slot.latest.session
    if (charge === null || requester === null) throw new Error('invariant: an ACTIVE session has items and a requester')
    const items = charge.items.map(({ item }) => item)
    try {
      await this.#decide(slot, { requester, items }, false, (attempt) =>
        this.#takeRenewal(slot, requester, items, attempt),
      )
    } catch (error) {
      // Stale rules allow nothing, and too large a request never succeeds; other errors may pass.
      if (!(error instanceof CodedError) || !NOT_RENEWABLE.has(error.code)) throw error
      await this.#commit(slot, this.#changeBy(slot.latest, { kind: 'NOT_RENEWED' }, this.#deps.clock.reading()), null)
    }
  }

  /** Awaits nothing before the charge. */
  async #takeRenewal(
    slot: Slot,
    requester: AccessRequest['requester'],
    items: readonly SessionItem[],
    attempt: Attempt,
  ): Promise<void> {
    const { policy, reading, decision } = attempt
    const { latest } = slot
    if (due(latest.session, reading.earliest) !== 'RENEWAL') return
    const granted = decision.items.every(({ outcome }) => outcome === 'GRANTED')
    if (!granted && this.#deps.ledger.grant() === null) {
      throw new CodedError('NOT_ATTACHED', 'the device has no grant yet')
    }
    const metaData = items.map(({ metaData: text }) => {
      return text === null ? undefined : (JSON.parse(text) as Readonly<Record<string, unknown>>)
    })
    const asked: Asked = { apiVersion: null, request: { requester, items }, metaData, attempt }
    const event: SessionEvent = granted ? { kind: 'RENEWED', items: held(asked, decision) } : { kind: 'NOT_RENEWED' }
    const before = { ...latest, policyRevision: policy.document.revision }
    await this.#commit(slot, this.#changeBy(before, event, reading, this.#deps.newId(), asked), null)
    this.#deps.onCharged(latest.owner, tokensOf(decision))
  }

  /**
   * @param refunds a granted request refunds the rest of the running interval, and may spend it
   * @param take records the decision in the same synchronous block
   */
  #decide<T>(slot: Slot, request: AccessRequest, refunds: boolean, take: (attempt: Attempt) => Promise<T>): Promise<T> {
    const { instanceId } = slot.latest.session
    const refundAt = (reading: ClockReading): ReadonlyMap<AccountId, Micro> =>
      refunds ? this.#restOf(slot.latest, reading) : NO_REFUND
    return this.#deps.decisions.decide({ instanceId, request, mode: 'ALL_OR_NOTHING', refundAt }, take)
  }

  /** By account, the refund for the rest of the running interval. */
  #restOf(kept: KeptSession, { earliest }: ClockReading): ReadonlyMap<AccountId, Micro> {
    if (!this.#isRefundable(kept)) return NO_REFUND
    return sumPostings(refundPostings(refundable(unused(kept.session, earliest))))
  }

  /** Whether the charged accounts belong to the current epoch. */
  #isRefundable({ epoch }: KeptSession): boolean {
    return epoch === this.#deps.ledger.epoch()
  }

  #changeBy(
    kept: KeptSession,
    event: SessionEvent,
    reading: ClockReading,
    correlationId: string = this.#deps.newId(),
    asked?: Asked,
  ): Change {
    const now = reading.earliest
    let made: Step = step(kept.session, event, now)
    // The open connection counts as a heartbeat.
    if (event.kind === 'RENEWED' && kept.bound) made = step(made.session, { kind: 'HEARTBEAT' }, now)
    const isCharged = event.kind === 'GRANTED' || event.kind === 'RENEWED'
    const next: KeptSession = {
      ...kept,
      session: made.session,
      epoch: isCharged ? this.#deps.ledger.epoch() : made.session.charge === null ? 0 : kept.epoch,
    }
    const entries: Change['entries'][number][] = []
    const refund = this.#isRefundable(kept) ? refundable(made.refund) : []
    if (refund.length > 0) {
      const ownId = asked === undefined ? correlationId : this.#deps.newId()
      const postings = refundPostings(refund)
      entries.push((n) => ({
        body: refundEntryText(this.#entry(kept, event.kind, reading, ownId, n), refund),
        moves: 'refunded',
        postings,
      }))
    }
    if (asked !== undefined) {
      const { apiVersion, request, metaData } = asked
      const { seen, decision, above, allowances } = asked.attempt
      const { instanceId } = kept.session
      const { policyRevision } = kept
      const session = { id: kept.session.id, event: event.kind }
      entries.push((n) => ({
        body: accessEntryText(
          { n, reading, instanceId, policyRevision, correlationId, request, metaData, decision, session },
          above,
        ),
        moves: 'used',
        postings: decision.postings,
        allowances,
        ...(this.#deps.keepsInputs
          ? { inputs: decisionInputsText(apiVersion, seen, request.requester.dictionary) }
          : {}),
      }))
    }
    if (entries.length === 0) entries.push(this.#plain(kept, event.kind, reading, correlationId))
    return { next, entries }
  }

  #plain(
    kept: KeptSession,
    event: SessionEntry['session']['event'],
    reading: ClockReading,
    correlationId: string = this.#deps.newId(),
  ): Change['entries'][number] {
    return (n) => ({
      body: sessionEntryText(this.#entry(kept, event, reading, correlationId, n)),
      moves: 'used',
      postings: [],
    })
  }

  #entry(
    { session, policyRevision }: KeptSession,
    event: SessionEntry['session']['event'],
    reading: ClockReading,
    correlationId: string,
    n: number,
  ): SessionEntry {
    const { id, instanceId, requester } = session
    return { n, reading, instanceId, policyRevision, correlationId, session: { id, event }, requester }
  }

  /** Records session and entries in one transaction. Rejects with NOT_RECORDED when nothing was recorded. */
  async #commit(slot: Slot, { next, entries }: Change, answer: IdempotencyRecord | null): Promise<void> {
    const { ledger, idempotencyCache } = this.#deps
    requireAttached(ledger)
    const first = ledger.lastEntry() + 1
    const stored = storedSession(next)
    const last = entries.length - 1
    const recording = ledger.recordTogether(
      entries.map((make, index) => ({
        n: first + index,
        ...make(first + index),
        idempotencyRecord: index === last ? answer : null,
        ...(index === last ? { session: stored } : {}),
      })),
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
    if (hasEnded(next.session)) this.#remember(next.session.id)
    if (answer !== null) idempotencyCache.settle(answer)
  }

  /** Keeps only the newest ended sessions, for callers that query their state. */
  #remember(ended: string): void {
    this.#ended.push(ended)
    const forgotten = this.#ended.length > ENDED_MAX ? this.#ended.shift() : undefined
    if (forgotten !== undefined) this.#slots.delete(forgotten)
  }

  #look(): void {
    if (this.#isStopped) return
    const now = this.#deps.clock.reading().earliest
    let next = LOOK_EVERY_MS
    for (const [id, { latest }] of this.#slots) {
      const left = nextDue(latest.session) - now
      if (left <= 0)
        this.#inTurn(
          id,
          (slot) => this.#settle(slot),
          () => undefined,
        )
      next = Math.min(next, left <= 0 ? TRY_AGAIN_MS : left)
    }
    this.#lookIn(next)
  }

  #lookIn(ms: number): void {
    this.#cancelLook()
    if (!this.#isStopped) this.#cancelLook = this.#deps.timers.after(Math.ceil(ms), () => this.#look())
  }

  /** Coded errors are retried; any other error ends the process. */
  #complain(error: unknown, sessionId: string): void {
    if (!(error instanceof CodedError)) this.#deps.onFatal(error)
    else this.#deps.log.warn({ sessionId, code: error.code }, 'a session could not be advanced')
  }
}

function eventOf(command: SessionCommand['command'], session: Session): SessionEvent | null {
  if (hasEnded(session)) return null
  if (command === 'TERMINATE') return { kind: 'CLOSED' }
  if (command === 'LOCK') return isLive(session) ? { kind: 'LOCKED' } : null
  return isLive(session) ? null : { kind: 'UNLOCKED' }
}

/** The charged items with their rates, which a refund names again. */
function held(
  { request, metaData }: { readonly request: AccessRequest; readonly metaData: SessionAccessRequest['metaData'] },
  decision: Decision,
): readonly ReservedItem[] {
  const items = request.items.map((item, index): SessionItem => {
    const more = metaData[index]
    return { ...item, metaData: more === undefined ? null : JSON.stringify(more) }
  })
  return reservedItems(items, decision).map(({ item, shares }, index): ReservedItem => {
    const outcome = decision.items[index]
    const rates = new Map(
      outcome?.outcome === 'GRANTED' ? outcome.shares.map(({ lineItemId, rate }) => [lineItemId, rate]) : [],
    )
    return {
      item,
      shares: shares.map((share) => {
        const rate = rates.get(share.lineItemId)
        return rate === undefined ? share : { ...share, rate }
      }),
    }
  })
}

function noContent(policyRevision: number): SessionAnswer {
  return { operable: true, status: 204, body: '', policyRevision, warnings: NO_WARNINGS }
}

function answerOf(
  claim: Claim | null,
  status: number,
  answer: string,
  policyRevision: number,
): IdempotencyRecord | null {
  if (claim === null) return null
  const { session, n, requestHash } = claim
  return { session, n, requestHash, answer, status, policyRevision }
}
