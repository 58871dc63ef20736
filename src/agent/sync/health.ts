/**
 * Health conditions: what is wrong at the moment, at most one for each subject, in words of the error catalogue. A
 * condition stands until what raised it succeeds; it decides nothing.
 */
import { CodedError, type ErrorCode } from '../../protocol/errors.ts'

/** Subject of the conditions of the connection for change notifications. */
export const PUSH = 'push'

/** Subject of the condition that the key of the device is revoked. */
export const REVOCATION = 'revocation'

export interface HealthCondition {
  /** What it is about, for instance `policy 64d2028c-...` or `sync`. */
  readonly subject: string
  readonly code: ErrorCode
  readonly message: string
  /** Best estimate of when it began, POSIX ms. */
  readonly since: number
  readonly details: Readonly<Record<string, unknown>>
}

export class Health {
  readonly #conditions = new Map<string, HealthCondition>()
  readonly #now: () => number

  constructor(now: () => number) {
    this.#now = now
  }

  /** The same code for the same subject keeps its beginning. Returns true when the code is not the one that stood. */
  raise(subject: string, error: CodedError): boolean {
    const standing = this.#conditions.get(subject)
    const same = standing?.code === error.code
    const since = same ? standing.since : this.#now()
    this.#conditions.set(subject, { subject, code: error.code, message: error.message, since, details: error.details })
    return !same
  }

  /** Returns true when there was something to clear. */
  clear(subject: string): boolean {
    return this.#conditions.delete(subject)
  }

  has(subject: string): boolean {
    return this.#conditions.has(subject)
  }

  list(): readonly HealthCondition[] {
    return [...this.#conditions.values()].sort((a, b) => a.since - b.since)
  }
}
