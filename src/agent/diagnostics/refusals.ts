/**
 * The last requests that were turned away without an entry in the ledger: each gets a correlation id, by which a technician
 * can ask why. They are in memory only, and the oldest give way: a flood of refused requests costs nothing but older ones.
 */
import type { CodedError } from '../../protocol/errors.ts'
import type { KeptRefusal } from '../../protocol/local/decision.ts'

export interface RefusalsDeps {
  /** Best estimate, POSIX ms. */
  readonly now: () => number
  /** A fresh UUID. */
  readonly newId: () => string
  /** So many are remembered. */
  readonly most: number
}

/** Longest text that is kept of a request or a message, in UTF-16 units. */
const TEXT_MAX = 500

export class Refusals {
  readonly #deps: RefusalsDeps
  /** Oldest first. */
  readonly #kept = new Map<string, KeptRefusal>()

  constructor(deps: RefusalsDeps) {
    this.#deps = deps
  }

  /** Remembers why a request was turned away, and says under which correlation id. */
  add({ code, message }: Pick<CodedError, 'code' | 'message'>, request: string, caller: string | null): string {
    const { now, newId, most } = this.#deps
    const correlationId = newId()
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
