/**
 * The pipeline of everything that is charged on the device. It waits for the network only for a top-up, until the
 * deadline. A charge is recorded before the response, a denial with the next commit. A request that cannot be recorded is
 * not granted.
 *
 * The checks in sequence; the first one that fails names the code:
 *
 *   1 BAD_REQUEST                         the body has the form of an access request
 *   2 IDEMPOTENCY_CONFLICT, CONFLICT      request numbers rise; a retry gets the first answer
 *   3 CALLER_NOT_ALLOWED, CALLER_LIMITED  the caller's quota allows the requester and the rate
 *   4 NOT_ENROLLED                        the device is enrolled
 *   5 NOT_FOUND                           ... and serves this instance
 *   6 POLICY_MISSING                      the rules of the instance have arrived
 *   7 POLICY_STALE                        ... and may still be used
 *   8 NOT_ATTACHED                        the device has an epoch that is not fenced
 *   9                                     the checks of core; refusals are answers, item by item
 *     REQUEST_TOO_LARGE                   one segment can carry the top-up request, and the entry
 *     REQUESTERS_LIMITED                  ... and open its accounts in the cloud
 *  10 CALLER_LIMITED                      the caller's token budget covers the charge
 *  11 NOT_RECORDED                        the ledger has taken the entry
 */
import { type Warning, allGranted, noneGranted, tokensOf } from '../../core/rules/decision.ts'
import type { Session } from '../../core/sessions/session.ts'
import { NEED_ACCOUNTS_MAX } from '../../protocol/edge/sync.ts'
import { flat } from '../../protocol/json-text.ts'
import { type ReadAccessRequest, readAccessRequest } from '../../protocol/service/access-request.ts'
import { accessResponseText } from '../../protocol/service/access-response-text.ts'
import { DENIED_STATUS } from '../../protocol/service/sessions.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'
import { sha256 } from '../../protocol/signing.ts'
import type { Durability } from '../ledger/commits.ts'
import type { IdempotencyRecord, PendingEntry } from '../ledger/journal.ts'
import type { Ledger } from '../ledger/ledger.ts'
import type { CallerQuota } from './callers/callers.ts'
import { type AccessEntry, accessEntryText, decisionInputsText } from './entry-text.ts'
import {
  type Claim,
  type IdempotencyCache,
  type IdempotencyKey,
  type NumberedRequest,
  recordOf,
} from './idempotency-cache.ts'
import { adviceAfter } from './offers.ts'
import { type Attempt, type LocalDecisions, type Question, requestTooLarge } from './local-decisions.ts'

export interface AccessCall {
  readonly apiVersion: ApiVersion
  /** In lower case. */
  readonly instanceId: string
  readonly text: string
  readonly body: unknown
  /** The same object comes again with the next equal body. */
  readonly isKept?: boolean
  /** Null: the application sends no idempotency key. */
  readonly idempotencyKey: IdempotencyKey | null
  readonly quota?: CallerQuota | undefined
}

export type MetaData = AccessEntry['metaData']

export interface ChargeRequest<T extends NotOperable> extends Question {
  /** Null: an automatic charge, without a waiting client. */
  readonly apiVersion: ApiVersion | null
  readonly metaData: MetaData
  readonly claim: Claim | null
  readonly quota: CallerQuota | undefined
  /** Null: outside a session. */
  readonly session: SessionCharge<T> | null
}

export interface SessionCharge<T extends NotOperable> {
  /** The result if the session takes no charge any more: it may have changed while waiting for the cloud. */
  readonly check: (attempt: Attempt) => T | null
  /** Records the entry together with the change of the session. Charges the accounts synchronously. */
  readonly record: (attempt: Attempt, entryOf: SessionEntryOf, answer: IdempotencyRecord | null) => Promise<Durability>
}

export type SessionEntryOf = (n: number, session: NonNullable<AccessEntry['session']>) => PendingEntry

export interface AccessAnswer {
  readonly operable: true
  readonly status: number
  readonly body: string
  readonly policyRevision: number
  readonly warnings: readonly Warning[]
  /** What to request instead of unknown items, in ASCII; absent: nothing. */
  readonly advice?: string | undefined
  readonly durability: Durability
}

export interface NotOperable {
  readonly operable: false
  readonly session: Session
}

export interface AccessDeps {
  readonly ledger: Pick<Ledger, 'lastEntry' | 'record' | 'durability'>
  readonly decisions: LocalDecisions
  readonly idempotencyCache: IdempotencyCache
  readonly keepsInputs: boolean
  readonly newCorrelationId: () => string
  readonly engine: number
}

const NO_WARNINGS: readonly Warning[] = []

export class Access {
  readonly #deps: AccessDeps
  readonly #bodies = new RequestBodies()

  constructor(deps: AccessDeps) {
    this.#deps = deps
  }

  /**
   * Rejects with the codes above; any other error means that the process must end. Not async: each async function on
   * this path slows a decision noticeably.
   */
  request(call: AccessCall): Promise<AccessAnswer> {
    try {
      const read = this.#bodies.read(call.apiVersion, call.body, call.isKept)
      if (call.idempotencyKey === null) return this.#requestOutsideSession(call, read, null)
      const requestHash = sha256(`${call.apiVersion}\n${call.instanceId}\n${call.text}`)
      return this.once<never>({ ...call.idempotencyKey, requestHash }, (claim) =>
        this.#requestOutsideSession(call, read, claim),
      )
    } catch (error) {
      return Promise.reject(error instanceof Error ? error : new Error(String(error)))
    }
  }

  #requestOutsideSession(
    call: AccessCall,
    { request, metaData }: ReadAccessRequest,
    claim: Claim | null,
  ): Promise<AccessAnswer> {
    const { apiVersion, instanceId, quota } = call
    quota?.request(request.requester)
    return this.charge<never>({
      apiVersion,
      instanceId,
      request,
      metaData,
      mode: 'BEST_EFFORT',
      claim,
      quota,
      session: null,
    })
  }

  /** A retry gets the first answer. @throws CodedError IDEMPOTENCY_CONFLICT, CONFLICT, and what `work` throws */
  async once<T extends NotOperable>(
    request: NumberedRequest,
    work: (claim: Claim) => Promise<AccessAnswer | T>,
  ): Promise<AccessAnswer | T> {
    const { idempotencyCache, ledger } = this.#deps
    const begun = idempotencyCache.begin(request)
    if (begun.kind === 'REPEAT') {
      const answer = await Promise.resolve(begun.answer).catch(sessionOf)
      if ('operable' in answer) return answer as T
      const { answer: body, status = OK, policyRevision } = answer
      // The stored answer may still be only in the volatile log.
      return { operable: true, status, body, policyRevision, warnings: NO_WARNINGS, durability: ledger.durability }
    }
    const { claim } = begun
    try {
      const answer = await work(claim)
      if (answer.operable) idempotencyCache.settle(recordOf(claim, answer))
      else idempotencyCache.fail(claim, new SessionNotOperable(answer))
      return answer
    } catch (error) {
      idempotencyCache.fail(claim, error)
      throw error
    }
  }

  /** Decides, with a top-up or the offline policy if the balances fall short; then charges, records and responds. */
  charge<T extends NotOperable>(request: ChargeRequest<T>): Promise<AccessAnswer | T> {
    return this.#deps.decisions.decide(request, (attempt) => this.#chargeAndRecord(request, attempt))
  }

  /** Synchronous up to the charge; resolves when the entry is durable, of a denial at once. */
  #chargeAndRecord<T extends NotOperable>(request: ChargeRequest<T>, attempt: Attempt): Promise<AccessAnswer | T> {
    const { apiVersion, claim, quota, session } = request
    const notOperable = session?.check(attempt) ?? null
    if (notOperable !== null) return Promise.resolve(notOperable)
    const { ledger, newCorrelationId } = this.#deps
    const { policy, decision } = attempt
    const { length } = decision.postings
    // A larger entry would fit no segment.
    if (length > NEED_ACCOUNTS_MAX) throw requestTooLarge(length)
    const correlationId = newCorrelationId()
    const status = session === null || allGranted(decision) ? OK : DENIED_STATUS
    const body =
      apiVersion === null ? '' : flat(accessResponseText(apiVersion, correlationId, request.request, decision))
    const policyRevision = policy.document.revision
    const { warnings } = decision
    const advice = allGranted(decision)
      ? undefined
      : adviceAfter(policy.compiled.at(attempt.reading), request.request, decision)
    const answer = claim === null ? null : recordOf(claim, { status, body, policyRevision })
    const recording =
      session === null
        ? ledger.record(this.#entryOf(request, attempt, { n: ledger.lastEntry() + 1, correlationId }, answer))
        : session.record(
            attempt,
            (n, change) => this.#entryOf(request, attempt, { n, correlationId, session: change }, null),
            answer,
          )
    const answered = answerAfter(recording, { status, body, policyRevision, warnings, advice })
    return quota === undefined ? answered : spendQuota(answered, quota, tokensOf(decision))
  }

  #entryOf(
    { apiVersion, request, metaData }: ChargeRequest<NotOperable>,
    { policy, reading, seen, decision, above, allowances }: Attempt,
    place: Pick<AccessEntry, 'n' | 'correlationId' | 'session'>,
    idempotencyRecord: IdempotencyRecord | null,
  ): PendingEntry {
    const { engine, keepsInputs } = this.#deps
    const { instanceId, revision: policyRevision } = policy.document
    const { n, correlationId, session } = place
    // Without spreads, whose objects are slow to make.
    const entry = {
      n,
      reading,
      instanceId,
      policyRevision,
      engine,
      correlationId,
      request,
      metaData,
      decision,
      session,
    }
    const inputs = keepsInputs ? decisionInputsText(apiVersion, seen.balances(), request.requester.dictionary) : null
    const { postings } = decision
    const body = flat(accessEntryText(entry, above))
    // A retry of a numbered request finds its answer after a power cut, too.
    const isDenial = idempotencyRecord === null && session === undefined && noneGranted(decision)
    return { n, body, moves: 'used', postings, allowances, idempotencyRecord, isDenial, inputs }
  }
}

/** For a retry that waits: nothing is stored, so it gets the answer of the first request. */
class SessionNotOperable extends Error {
  readonly answer: NotOperable

  constructor(answer: NotOperable) {
    super(`the session is ${answer.session.state}`)
    this.answer = answer
  }
}

function sessionOf(error: unknown): NotOperable {
  if (error instanceof SessionNotOperable) return error.answer
  throw error
}

const OK = 200

/** A separate function: a closure in `#chargeAndRecord` would keep the request in memory until the commit. */
function answerAfter(
  recording: Promise<Durability>,
  { status, body, policyRevision, warnings, advice }: Omit<AccessAnswer, 'operable' | 'durability'>,
): Promise<AccessAnswer> {
  return recording.then((durability) => ({
    operable: true,
    status,
    body,
    policyRevision,
    warnings,
    advice,
    durability,
  }))
}

/** Once the entry is charged, and in the same synchronous block. A failure returns it. */
function spendQuota(answered: Promise<AccessAnswer>, quota: CallerQuota, tokens: bigint): Promise<AccessAnswer> {
  quota.spend(tokens)
  return answered.catch((error: unknown) => {
    quota.unspend(tokens)
    throw error
  })
}

/** The socket passes the same object for bytes that repeat, so such a body is validated once. */
export class RequestBodies {
  readonly #read: Readonly<Record<ApiVersion, WeakMap<object, ReadAccessRequest>>> = {
    'v1.0': new WeakMap(),
    'v1.1': new WeakMap(),
  }

  /** @param isKept the same object may come again. @throws CodedError BAD_REQUEST */
  read(version: ApiVersion, given: unknown, isKept = false): ReadAccessRequest {
    const isObject = isKept && typeof given === 'object' && given !== null
    const known = isObject ? this.#read[version].get(given) : undefined
    if (known !== undefined) return known
    const read = readAccessRequest(version, given)
    if (isObject) this.#read[version].set(given, read)
    return read
  }
}
