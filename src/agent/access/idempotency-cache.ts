/**
 * Keeps the last answer of each application session, so that a retry is harmless. An application numbers its requests
 * and sends one at a time per session; a repeated number gets the same answer, also while the first request is being
 * decided.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { IdempotencyRecord } from '../ledger/journal.ts'
import { RecentOfEach } from './recent-of-each.ts'

export interface Place {
  readonly session: string
  readonly n: number
  /** SHA-256 of the request. */
  readonly requestHash: string
}

export interface Claim extends Place {
  /** Resolves with the answer once it is durable; rejects if the request fails. */
  readonly answer: Promise<IdempotencyRecord>
}

export type Begun =
  | { readonly kind: 'NEW'; readonly claim: Claim }
  | { readonly kind: 'REPEAT'; readonly answer: IdempotencyRecord | Promise<IdempotencyRecord> }

interface OpenClaim extends Claim {
  readonly resolve: (answer: IdempotencyRecord) => void
  readonly reject: (error: unknown) => void
}

export class IdempotencyCache {
  readonly #answers: RecentOfEach<IdempotencyRecord>
  readonly #open = new Map<string, OpenClaim>()

  /** @param stored least recently used first */
  constructor(stored: readonly IdempotencyRecord[], perCallerMax: number) {
    this.#answers = new RecentOfEach(perCallerMax)
    for (const answer of stored) this.#keep(answer)
  }

  /** @throws CodedError IDEMPOTENCY_CONFLICT or CONFLICT */
  begin(place: Place): Begun {
    const { session, n, requestHash } = place
    const open = this.#open.get(session)
    const newest = open ?? this.#answers.get(session)
    if (newest !== undefined && n < newest.n) {
      throw new CodedError(
        'CONFLICT',
        `request ${n} of this application session is older than its last one, ${newest.n}`,
      )
    }
    if (n === newest?.n) {
      if (newest.requestHash !== requestHash) {
        throw new CodedError('IDEMPOTENCY_CONFLICT', `request ${n} of this application session was another one`)
      }
      return {
        kind: 'REPEAT',
        answer: newest.answer instanceof Promise ? newest.answer : (newest as IdempotencyRecord),
      }
    }
    if (open !== undefined) {
      throw new CodedError('CONFLICT', `request ${open.n} of this application session is still being decided`)
    }
    const { promise, resolve, reject } = Promise.withResolvers<IdempotencyRecord>()
    // The first caller reports the failure, so it needs no handler when no retry is waiting.
    promise.catch(() => undefined)
    const claim: OpenClaim = { ...place, answer: promise, resolve, reject }
    this.#open.set(session, claim)
    return { kind: 'NEW', claim }
  }

  settle(answer: IdempotencyRecord): void {
    const open = this.#open.get(answer.session)
    this.#open.delete(answer.session)
    this.#keep(answer)
    open?.resolve(answer)
  }

  /** The same number may be sent again. */
  fail(claim: Claim, error: unknown): void {
    const open = this.#open.get(claim.session)
    this.#open.delete(claim.session)
    open?.reject(error)
  }

  #keep(answer: IdempotencyRecord): void {
    this.#answers.freeSpace(answer.session)
    this.#answers.set(answer.session, answer)
  }
}
