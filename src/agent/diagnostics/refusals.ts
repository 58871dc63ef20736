/** The last refused requests without a ledger entry, each with a correlation id that a technician can look up. */
import type { CodedError } from '../../protocol/errors.ts'
import type { KeptRefusal } from '../../protocol/local/decision.ts'

export interface RefusalsDeps {
  readonly now: () => number
  readonly newCorrelationId: () => string
  readonly most: number
}

const TEXT_MAX = 500

export class Refusals {
  readonly #deps: RefusalsDeps
  readonly #kept = new Map<string, KeptRefusal>()

  constructor(deps: RefusalsDeps) {
    this.#deps = deps
  }

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

  latest(count: number): readonly KeptRefusal[] {
    return [...this.#kept.values()].slice(-count).reverse()
  }

  get(correlationId: string): KeptRefusal | undefined {
    return this.#kept.get(correlationId)
  }
}
