/**
 * The auditor's ledger of a device: every entry once, with chain and sums computed from the entries. It only grows; a
 * contradiction is an {@link AuditError}.
 */
import { z } from 'zod'
import type { Micro } from '../../src/core/pricing/amount.ts'
import { CHAIN_START, entryHash } from '../../src/protocol/signing.ts'

export class AuditError extends Error {
  override name = 'AuditError'
}

export function hold(condition: boolean, what: string): asserts condition {
  if (!condition) throw new AuditError(what)
}

export interface LedgerEntry {
  readonly n: number
  readonly correlationId: string
  readonly requester: string
  readonly charged: Micro
  readonly postings: readonly { readonly account: string; readonly amount: Micro }[]
  readonly hash: string
}

const micro = z.string().transform((text) => BigInt(text))
const entryBody = z.object({
  n: z.int(),
  kind: z.literal('access'),
  correlationId: z.string(),
  requester: z.object({ value: z.string() }),
  items: z.array(z.object({ total: micro })),
  postings: z.array(z.object({ account: z.string(), amount: micro })),
})

export class Ledger {
  readonly #entries: LedgerEntry[] = []
  readonly #byCorrelation = new Map<string, LedgerEntry>()

  get size(): number {
    return this.#entries.length
  }

  get head(): string {
    return this.#entries.at(-1)?.hash ?? CHAIN_START
  }

  take(text: string): void {
    const body = entryBody.parse(JSON.parse(text))
    const { n, correlationId, postings } = body
    hold(n === this.size + 1, `entry ${n} follows entry ${this.size}`)
    hold(!this.#byCorrelation.has(correlationId), `${correlationId} is in the ledger twice`)
    const charged = body.items.reduce((sum, { total }) => sum + total, 0n)
    const entry = {
      n,
      correlationId,
      requester: body.requester.value,
      charged,
      postings,
      hash: entryHash(this.head, text),
    }
    this.#entries.push(entry)
    this.#byCorrelation.set(correlationId, entry)
  }

  /** @throws AuditError if missing */
  at(n: number): LedgerEntry {
    const entry = this.#entries[n - 1]
    hold(entry !== undefined, `the device's ledger has no entry ${n}`)
    return entry
  }

  find(correlationId: string): LedgerEntry | undefined {
    return this.#byCorrelation.get(correlationId)
  }

  *after(n: number): Iterable<LedgerEntry> {
    for (let index = n; index < this.#entries.length; index += 1) yield this.at(index + 1)
  }
}

export class Sums {
  readonly #sums = new Map<string, Micro>()

  add({ postings }: LedgerEntry): void {
    for (const { account, amount } of postings) this.#sums.set(account, this.of(account) + amount)
  }

  of(account: string): Micro {
    return this.#sums.get(account) ?? 0n
  }

  accounts(): Iterable<string> {
    return this.#sums.keys()
  }
}
