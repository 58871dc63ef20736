/**
 * The last refused requests without a ledger entry, each with a correlation id that a technician can look up. In memory
 * only; the oldest are evicted.
 */
import type { CodedError } from '../../protocol/errors.ts'
import type { KeptRefusal } from '../../protocol/local/decision.ts'

export interface RefusalsDeps {
  readonly now: () => number
  readonly newCorrelationId: () => string
  readonly most: number
}

/** Longest kept text of a request or message, in UTF-16 units. */
const TEXT_MAX = 500

export class Refusals {
  readonly #deps: RefusalsDeps
  readonly #kept = new Map<string, KeptRefusal>()

  constructor(deps: RefusalsDeps) {
    this.#deps = deps
  }

  /** Returns the correlation id. */
  add({ code, message }: Pick<CodedError, 'code' | 'message'>, request: string, caller: string | null): string {
    const { now, newCorrelationId, most } = this.#deps
    const correlationId = newCorrelationId()
    this.#kept.set(correlationId, {
      correlationId,
      at: now(),
      request: request.slice(0, TEXT_MAX),
      caller,
      code,
      message: message.slice(0, TEXT_MAX),
    })
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= most) break
      this.#kept.delete(oldest)
    }
    return correlationId
  }

  /** Newest first. */
  latest(count: number): readonly KeptRefusal[] {
    return [...this.#kept.values()].slice(-count).reverse()
  }

  /** @param correlationId in lower case */
  get(correlationId: string): KeptRefusal | undefined {
    return this.#kept.get(correlationId)
  }
}
