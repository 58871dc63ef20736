/** Keeps the last answer of each application session: a repeated number gets it, or waits until it is decided. */
import { CodedError } from '../../protocol/errors.ts'
import type { IdempotencyRecord } from '../ledger/journal.ts'

export interface IdempotencyKey {
  /** The caller and the name of its application session. */
  readonly session: string
  readonly n: number
}

export interface NumberedRequest extends IdempotencyKey {
  readonly requestHash: string
}

export interface Claim extends NumberedRequest {
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

  constructor(stored: readonly IdempotencyRecord[], perCallerMax: number) {
    this.#answers = new RecentOfEach(perCallerMax)
    for (const answer of stored) this.#keep(answer)
  }

  /** @throws CodedError IDEMPOTENCY_CONFLICT or CONFLICT */
  begin(request: NumberedRequest): Begun {
    const { session, n, requestHash } = request
    const open = this.#open.get(session)
    const newest = open ?? this.#answers.get(session)
    if (newest !== undefined && n < newest.n) {
      throw new CodedError(
        'CONFLICT',
        `request ${n} of this application session is older than its last one, ${newest.n}: count up`,
      )
    }
    if (n === newest?.n) {
      if (newest.requestHash !== requestHash) {
        throw new CodedError('IDEMPOTENCY_CONFLICT', 'This idempotency key was already used with a different request.')
      }
      return {
        kind: 'REPEAT',
        answer: newest.answer instanceof Promise ? newest.answer : (newest as IdempotencyRecord),
      }
    }
    if (open !== undefined) {
      throw new CodedError(
        'CONFLICT',
        `request ${open.n} of this application session is still being decided: wait for its response`,
      )
    }
    const { promise, resolve, reject } = Promise.withResolvers<IdempotencyRecord>()
    // The first caller reports the failure, so it needs no handler when no retry is waiting.
    promise.catch(() => undefined)
    const claim: OpenClaim = { ...request, answer: promise, resolve, reject }
    this.#open.set(session, claim)
    return { kind: 'NEW', claim }
  }

  settle(answer: IdempotencyRecord): void {
    const open = this.#open.get(answer.session)
    this.#open.delete(answer.session)
    this.#keep(answer)
    open?.resolve(answer)
  }

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

interface Answered {
  readonly status: number
  readonly body: string
  readonly policyRevision: number
}

export function recordOf(claim: Claim, answer: Answered): IdempotencyRecord
export function recordOf(claim: Claim | null, answer: Answered): IdempotencyRecord | null
export function recordOf(claim: Claim | null, { status, body, policyRevision }: Answered): IdempotencyRecord | null {
  if (claim === null) return null
  const { session, n, requestHash } = claim
  return { session, n, requestHash, answer: body, policyRevision, ...(status === 200 ? {} : { status }) }
}

/** Unambiguous, because names contain no space. @param owner null where callers are not distinguished */
export function applicationSession(owner: string | null, name: string): string {
  return owner === null ? name : `${owner} ${name}`
}

export function ownerOf(session: string): string {
  return session.slice(0, Math.max(0, session.indexOf(' ')))
}

/** A value per application session. Each caller has its own capacity, so callers cannot evict each other's values. */
export class RecentOfEach<T> {
  readonly #perCallerMax: number
  readonly #callers = new Map<string, Map<string, T>>()
  #size = 0

  constructor(perCallerMax: number) {
    this.#perCallerMax = perCallerMax
  }

  get size(): number {
    return this.#size
  }

  get(session: string): T | undefined {
    return this.#callers.get(ownerOf(session))?.get(session)
  }

  /** At capacity, evicts the caller's least recently used session and returns its value. */
  freeSpace(session: string): T | undefined {
    const own = this.#callers.get(ownerOf(session))
    if (own === undefined || own.has(session) || own.size < this.#perCallerMax) return undefined
    const [idlest] = own
    if (idlest === undefined) throw new Error('invariant: the capacity is at least one')
    own.delete(idlest[0])
    this.#size -= 1
    return idlest[1]
  }

  /** Marks it as most recently used. Evicts nothing: call {@link freeSpace} first. */
  set(session: string, value: T): void {
    const owner = ownerOf(session)
    let own = this.#callers.get(owner)
    if (own === undefined) {
      own = new Map()
      this.#callers.set(owner, own)
    }
    if (!own.delete(session)) this.#size += 1
    own.set(session, value)
  }
}
