/**
 * Published policies: which line items are unlimited at which revision, and that a period's number always means the
 * same time.
 */
import { base64url } from 'jose'
import type { Policy } from '../../src/core/rules/policy.ts'
import { policyDocument, policyOf } from '../../src/protocol/edge/policy-document.ts'
import type { SharedState } from './shared-state.ts'
import { Violation } from './violation.ts'

interface PeriodText {
  readonly index: number
  readonly from: number | null
  readonly until: number | null
}

interface DocumentText {
  readonly instanceId: string
  readonly revision: number
  readonly lineItems: readonly {
    readonly id: string
    readonly overdraft: string
    readonly periods: readonly PeriodText[]
  }[]
}

/** Intersection of all windows published for a period. */
interface Window {
  from: number
  until: number
}

export class PublishedAudit {
  readonly #shared: SharedState
  readonly #seen = new Set<string>()
  readonly #unlimited = new Map<string, ReadonlySet<string>>()
  readonly #newest = new Map<string, { readonly revision: number; readonly periods: readonly PeriodText[] }>()
  readonly #windows = new Map<string, Window>()
  /** By instance and revision, and then by content. */
  readonly #rules = new Map<string, Map<string, Policy>>()
  /** By instance and revision, ms. */
  readonly #sessionIntervals = new Map<string, Set<number>>()

  constructor(shared: SharedState) {
    this.#shared = shared
  }

  /** @param signed policy of an instance as sent */
  see(signed: string): void {
    if (this.#seen.has(signed)) return
    this.#seen.add(signed)
    const text = new TextDecoder().decode(base64url.decode(signed.split('.')[1] ?? ''))
    const document = JSON.parse(text) as DocumentText
    const { instanceId, revision, lineItems } = document
    this.#keep(document)
    const unlimited = lineItems.filter(({ overdraft }) => overdraft === 'UNLIMITED').map(({ id }) => id)
    const name = `${instanceId} ${revision}`
    // A restored cloud, started without notice, may reuse a number.
    this.#unlimited.set(name, new Set([...(this.#unlimited.get(name) ?? []), ...unlimited]))
    for (const { id, periods } of lineItems) {
      if (revision >= (this.#newest.get(id)?.revision ?? 0)) this.#newest.set(id, { revision, periods })
      for (const period of periods) this.#seePeriod(id, period)
    }
  }

  /** A restored cloud, started without notice, may reuse a number, and confirms rules in new documents. */
  #keep(document: DocumentText): void {
    const name = `${document.instanceId} ${document.revision}`
    const rules = this.#rules.get(name) ?? new Map<string, Policy>()
    this.#rules.set(name, rules)
    const content = JSON.stringify({ ...document, issuedAt: 0 })
    if (rules.has(content)) return
    const parsed = policyDocument.parse(document)
    rules.set(content, policyOf(parsed))
    const intervals = this.#sessionIntervals.get(name) ?? new Set()
    this.#sessionIntervals.set(name, intervals.add(parsed.sessionIntervalMs))
  }

  /** Undefined: several were published with this number. */
  sessionIntervalMs(instanceId: string, revision: number): number | undefined {
    const [interval, ...others] = this.#sessionIntervals.get(`${instanceId} ${revision}`) ?? []
    return others.length === 0 ? interval : undefined
  }

  /** The rules that were ever published with this number. */
  rulesOf(instanceId: string, revision: number): readonly Policy[] {
    return [...(this.#rules.get(`${instanceId} ${revision}`)?.values() ?? [])]
  }

  #seePeriod(lineItemId: string, { index, from, until }: PeriodText): void {
    this.#shared.look('I3')
    const name = `${lineItemId} ${index}`
    const window = this.#windows.get(name) ?? { from: -Infinity, until: Infinity }
    window.from = Math.max(window.from, from ?? -Infinity)
    window.until = Math.min(window.until, until ?? Infinity)
    this.#windows.set(name, window)
    if (window.from < window.until) return
    throw new Violation(
      'I3',
      `period ${index} of ${lineItemId} was to end by ${window.until}, and now begins ${window.from}`,
    )
  }

  /** Whether the entry's policy did not limit the line item. */
  isUnlimited(instanceId: string, revision: number, lineItemId: string): boolean {
    return this.#unlimited.get(`${instanceId} ${revision}`)?.has(lineItemId) === true
  }

  /** By the newest policy; undefined: no policy has listed the period. */
  periodAt(lineItemId: string, instant: number): number | undefined {
    return this.#newest
      .get(lineItemId)
      ?.periods.find(({ from, until }) => (from ?? -Infinity) <= instant && instant < (until ?? Infinity))?.index
  }

  /** A restored cloud makes policies without the forgotten rules. */
  forget(): void {
    this.#windows.clear()
    this.#newest.clear()
  }
}
