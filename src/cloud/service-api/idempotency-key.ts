/**
 * Idempotency keys of one-off access requests, new instances, and forms of the console. The answer is stored in the
 * transaction of the effect, so a request that is repeated under its key has one effect, whichever node serves it.
 */
import { CodedError } from '../../protocol/errors.ts'
import { sha256 } from '../../protocol/signing.ts'
import type { Store } from '../storage/store.ts'
import type { Principal } from './principal.ts'

/** How long an answer is stored at least, ms. None is deleted while a clock is in doubt. */
export const IDEMPOTENCY_LIFETIME_MS = 24 * 60 * 60 * 1000

const FORGOTTEN_AT_A_TIME = 500

export interface IdempotencyClaim {
  /** Digest of the caller, what it concerns and the key. */
  readonly scope: string
  /** Digest of the request. */
  readonly requestHash: string
  /** {@link Moment.present}: a clock that is corrected must not make it older. */
  readonly created: number
}

interface KeyedRequest extends Pick<IdempotencyClaim, 'created'> {
  /** Id of the instance, or another name; keys for other ones are apart. */
  readonly concerned: string
  readonly key: string
  /** Everything that a repetition has to have in common with the first request. */
  readonly request: readonly unknown[]
}

export function claimOf(principal: Principal, { concerned, key, request, created }: KeyedRequest): IdempotencyClaim {
  const caller = principal.kind === 'DEVICE' ? principal.deviceId : principal.keyId
  return {
    scope: sha256(JSON.stringify([principal.kind, principal.issuer, caller, concerned, key])),
    requestHash: sha256(JSON.stringify(request, comparable)),
    created,
  }
}

/** Clients may write the keys of an object in another order when they repeat a request. */
function comparable(_key: string, value: unknown): unknown {
  if (typeof value === 'bigint') return String(value)
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  const entries = value instanceof Map ? [...(value as ReadonlyMap<string, unknown>)] : Object.entries(value)
  return Object.fromEntries(entries.toSorted(([a], [b]) => (a < b ? -1 : 1)))
}

export function keyInUse(): CodedError {
  return new CodedError(
    'IDEMPOTENCY_IN_PROGRESS',
    'A request with this idempotency key is still being decided. Repeat it to get its response.',
    { details: { retryAfterMs: 1000 } },
  )
}

/** @throws CodedError IDEMPOTENCY_CONFLICT */
export function requireSame(stored: { readonly requestHash: string }, claim: IdempotencyClaim): void {
  if (stored.requestHash === claim.requestHash) return
  throw new CodedError('IDEMPOTENCY_CONFLICT', 'This idempotency key was already used with a different request.')
}

/** Deletes answers whose lifetime is over. True: there may be more. */
export async function forgetAnswers(store: Pick<Store, 'transaction'>, now: number): Promise<boolean> {
  const forgotten = await store.transaction(async (tx) => {
    let until = now - IDEMPOTENCY_LIFETIME_MS
    for (const gap of await tx.sweeps.clockGaps()) if (gap.until > until) until -= gap.until - gap.since
    await tx.sweeps.forgetClockGaps(until)
    return tx.idempotency.forget(until, FORGOTTEN_AT_A_TIME)
  })
  return forgotten === FORGOTTEN_AT_A_TIME
}
