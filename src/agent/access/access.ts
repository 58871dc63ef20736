/**
 * Decides one access request on the device. It waits for the network only for a top-up, until the deadline. Decisions
 * and refusals are recorded before the response is sent; a request that cannot be recorded is not granted.
 *
 * The checks in sequence; the first one that fails names the code:
 *
 *   1 BAD_REQUEST                         the body has the form of an access request
 *     CALLER_NOT_ALLOWED, CALLER_LIMITED  the caller's quota allows the requester and the rate
 *   2 IDEMPOTENCY_CONFLICT, CONFLICT      request numbers rise; a retry gets the first answer
 *   3 NOT_ENROLLED                        the device is enrolled
 *   4 INSTANCE_UNKNOWN                    ... and serves this instance
 *   5 POLICY_MISSING                      the rules of the instance have arrived
 *   6 POLICY_STALE                        ... and may still be used
 *   7 NOT_ATTACHED                        the device has an epoch that is not fenced
 *   8                                     the checks of core; refusals are answers, item by item
 *     REQUEST_TOO_LARGE                   one segment can carry the top-up request
 *   9 CALLER_LIMITED                      the caller's token budget covers the charge
 *  10 NOT_RECORDED                        the ledger has taken the entry
 */
import type { AccessRequest, Warning } from '../../core/rules/decision.ts'
import type { AccessRequestBody } from '../../protocol/service/access-request.ts'
import { accessResponseText } from '../../protocol/service/access-response-text.ts'
import type { ApiVersion } from '../../protocol/service/status.ts'
import { sha256 } from '../../protocol/signing.ts'
import type { Durability } from '../ledger/commits.ts'
import type { CallerQuota } from './callers/callers.ts'
import { accessEntryText } from './entry-text.ts'
import { decisionInputsText } from './decision-inputs.ts'
import type { IdempotencyRecord } from '../ledger/journal.ts'
import type { Claim, IdempotencyCache } from './idempotency-cache.ts'
import type { Ledger } from '../ledger/ledger.ts'
import { type Attempt, type LocalDecisions, tokensOf } from './local-decisions.ts'
import { type ReadBody, RequestBodies } from './request-bodies.ts'

export interface AccessCall {
  readonly apiVersion: ApiVersion
  /** In lower case. */
  readonly instanceId: string
  readonly text: string
  readonly body: unknown
  /** Null: the application sends no idempotency key. */
  readonly idempotencyKey: { readonly session: string; readonly n: number } | null
  readonly quota?: CallerQuota
}

export interface AccessAnswer {
  /** JSON text of the response body. */
  readonly body: string
  readonly policyRevision: number
  readonly warnings: readonly Warning[]
  /** Whether the answer waited for a commit or used a reservation. */
  readonly durability: Durability
}

export interface AccessDeps {
  readonly ledger: Pick<Ledger, 'lastEntry' | 'record' | 'durability'>
  readonly decisions: Pick<LocalDecisions, 'decide'>
  readonly idempotencyCache: IdempotencyCache
  readonly keepsInputs: boolean
  readonly newId: () => string
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
      const read = this.#bodies.read(call.apiVersion, call.body)
      call.quota?.request(read.body.requester)
      if (call.idempotencyKey === null) return this.#decide(call, read, null)
      return this.#once(call, read, call.idempotencyKey)
    } catch (error) {
      return Promise.reject(error instanceof Error ? error : new Error(String(error)))
    }
  }

  async #once(
    call: AccessCall,
    read: ReadBody,
    idempotencyKey: NonNullable<AccessCall['idempotencyKey']>,
  ): Promise<AccessAnswer> {
    const requestHash = sha256(`${call.apiVersion}\n${call.instanceId}\n${call.text}`)
    const { idempotencyCache } = this.#deps
    const begun = idempotencyCache.begin({ ...idempotencyKey, requestHash })
    if (begun.kind === 'REPEAT') {
      const { answer, policyRevision } = await begun.answer
      // The stored answer may still be only in the volatile log.
      return { body: answer, policyRevision, warnings: NO_WARNINGS, durability: this.#deps.ledger.durability }
    }
    try {
      return await this.#decide(call, read, begun.claim)
    } catch (error) {
      idempotencyCache.fail(begun.claim, error)
      throw error
    }
  }

  #decide(call: AccessCall, { body, request }: ReadBody, claim: Claim | null): Promise<AccessAnswer> {
    const { instanceId } = call
    return this.#deps.decisions.decide({ instanceId, request, mode: 'BEST_EFFORT' }, (attempt) =>
      this.#record(call, body, request, attempt, claim),
    )
  }

  /** Synchronous up to the charge; resolves when the entry is durable. */
  #record(
    call: AccessCall,
    body: AccessRequestBody,
    request: AccessRequest,
    { policy, reading, seen, decision, above, allowances }: Attempt,
    claim: Claim | null,
  ): Promise<AccessAnswer> {
    const { ledger, idempotencyCache, keepsInputs, newId } = this.#deps
    const correlationId = newId()
    const { instanceId, revision: policyRevision } = policy.document
    const answer = accessResponseText(call.apiVersion, correlationId, request, decision)
    const idempotencyRecord = claim === null ? null : lastAnswerOf(claim, answer, policyRevision)
    const n = ledger.lastEntry() + 1
    const metaData = body.requestedItems.map((item) => item.metaData)
    const entry = { n, reading, instanceId, policyRevision, correlationId, request, metaData, decision }
    const { postings } = decision
    const text = accessEntryText(entry, above)
    const inputs = keepsInputs ? decisionInputsText(call.apiVersion, seen, request.requester.dictionary) : null
    const { quota } = call
    const tokens = quota === undefined ? 0n : tokensOf(decision)
    quota?.spend(tokens)
    const recorded = ledger
      .record({ n, body: text, moves: 'used', postings, allowances, idempotencyRecord, inputs })
      .then((durability) => {
        if (idempotencyRecord !== null) idempotencyCache.settle(idempotencyRecord)
        return { body: answer, policyRevision, warnings: decision.warnings, durability }
      })
    if (quota === undefined) return recorded
    return recorded.catch((error: unknown) => {
      quota.unspend(tokens)
      throw error
    })
  }
}

function lastAnswerOf({ session, n, requestHash }: Claim, answer: string, policyRevision: number): IdempotencyRecord {
  return { session, n, requestHash, answer, policyRevision }
}
