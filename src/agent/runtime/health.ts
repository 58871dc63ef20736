/** At most one condition per subject, which stays until the operation that raised it succeeds. */
import type { CodedError, ErrorCode } from '../../protocol/errors.ts'

export const PUSH = 'push'

export const ENROLLMENT = 'enrollment'

export const REVOCATION = 'revocation'

/** By error code, why the cloud refuses all requests with the device's key. */
export const REFUSED_KEYS = {
  DEVICE_REVOKED: 'was revoked',
  DEVICE_KEY_REPLACED: 'was replaced by another one',
  TOKEN_INVALID: 'is not known to the cloud',
} as const satisfies Partial<Record<ErrorCode, string>>

export interface HealthCondition {
  readonly subject: string
  readonly code: ErrorCode
  readonly message: string
  readonly since: number
}

export class Health {
  readonly #conditions = new Map<string, HealthCondition>()
  readonly #networks = new Map<string, unknown>()
  readonly #now: () => number
  readonly #onEnd: (condition: HealthCondition) => void

  constructor(now: () => number, onEnd: (condition: HealthCondition) => void) {
    this.#now = now
    this.#onEnd = onEnd
  }

  /** Keeps `since` while the code is the same. Returns true when the condition is to be logged. */
  raise(subject: string, { code, message, details }: CodedError): boolean {
    const before = this.#conditions.get(subject)
    const same = before?.code === code
    const since = same ? before.since : this.#now()
    this.#conditions.set(subject, { subject, code, message, since })
    // A name that does not resolve and an expired certificate are different problems. Other texts change by themselves.
    const isOtherNetworkProblem = this.#networks.get(subject) !== details['network']
    this.#networks.set(subject, details['network'])
    // A technician who mends an enrollment sees each new reason.
    return !same || isOtherNetworkProblem || (subject === ENROLLMENT && before.message !== message)
  }

  clear(subject: string): void {
    const ended = this.#conditions.get(subject)
    if (ended === undefined) return
    this.#conditions.delete(subject)
    this.#onEnd(ended)
  }

  has(subject: string, code?: ErrorCode): boolean {
    const found = this.#conditions.get(subject)
    return found !== undefined && (code === undefined || found.code === code)
  }

  list(): readonly HealthCondition[] {
    return [...this.#conditions.values()].sort((a, b) => a.since - b.since)
  }
}
