/**
 * Compiles a policy for fast decisions: what depends only on the policy and the time is computed once per span between
 * two changes, and per item on first use.
 */
import { type AccountId, actionAccount, lineAccount } from '../accounts/account.ts'
import { MICRO_PER_TOKEN, type Decimal, type Ratio, ratio } from '../pricing/amount.ts'
import { compileCondition, type Evaluate } from './condition.ts'
import { type Expression, parseFormula } from '../pricing/formula.ts'
import { type ClockReading, type RejectionDetail, REJECTION_DETAILS_MAX } from './decision.ts'
import { type LineItem, type Period, type Policy, type RateTable, type RatedItem, TOLERANCE_MS } from './policy.ts'
import { type Rules, compileRules } from './rules.ts'

/** A line item that can pay for an item, before the requester and balances are checked. */
export interface Candidate {
  readonly lineItem: LineItem
  readonly rate: CompiledRate
  readonly lineAccount: AccountId
  readonly actionAccounts: ReadonlyMap<string, AccountId>
  /** Period of the consumption limit; null: no limit. */
  readonly limitPeriod: number | null
  readonly rules: Rules
  /** The clock cannot tell whether the window is open, and the policy allows it. */
  readonly undecided: boolean
}

export interface FixedRate {
  readonly kind: 'FIXED'
  readonly rate: Decimal
  /** Micro-tokens per unit of count. */
  readonly microRate: Ratio
}

export type CompiledRate =
  FixedRate | { readonly kind: 'FORMULA'; readonly formula: string; readonly expression: Expression }

export function fixedRate(rate: Decimal): FixedRate {
  return { kind: 'FIXED', rate, microRate: ratio(rate.digits * MICRO_PER_TOKEN, 10n ** BigInt(rate.scale)) }
}

export type ItemView =
  | { readonly rated: false; readonly rejectionDetails: readonly RejectionDetail[] }
  | {
      readonly rated: true
      readonly candidates: readonly Candidate[]
      readonly rejectionDetails: readonly RejectionDetail[]
      readonly refusedByClock: boolean
    }

export interface Offer {
  readonly name: string
  /** Empty: no version. */
  readonly version: string
  /** In charging sequence, at least one. */
  readonly candidates: readonly Candidate[]
}

export interface CompiledPolicy {
  readonly policy: Policy
  at(clock: ClockReading): PolicyView
}

const NOT_RATED: ItemView = { rated: false, rejectionDetails: [] }

const SPANS_MAX = 16

/** Never throws on a valid policy; a missing condition evaluates as an error and so refuses. */
export function compilePolicy(policy: Policy): CompiledPolicy {
  const conditions = new Map<string, Evaluate>(policy.conditions.map((named) => [named.id, compileCondition(named)]))
  const widen = policy.timezoneTolerant ? TOLERANCE_MS : 0
  const bySeries = lineItemsBySeries(policy, conditions, widen)
  const tables = compileTables(policy.rateTables)
  const terms: CompiledTerms = { policy, bySeries, tables, tablesOfItem: indexTables(tables) }
  const changes = instantsOfChange(policy, widen)
  const views = new Map<string, PolicyView>()
  return {
    policy,
    at(clock) {
      const latest = clock.latest ?? Number.POSITIVE_INFINITY
      const key = `${span(changes, clock.now)} ${span(changes, clock.earliest)} ${span(changes, latest)}`
      const known = views.get(key)
      if (known !== undefined) return known
      if (views.size >= SPANS_MAX) views.clear()
      const view = new PolicyView(terms, clock)
      views.set(key, view)
      return view
    },
  }
}

/** Condition ids that actions use but the policy lacks: such a policy is incomplete. */
export function danglingConditions(policy: Policy): readonly string[] {
  const known = new Set(policy.conditions.map(({ id }) => id))
  const referred = policy.lineItems.flatMap(({ actions }) => actions.map(({ conditionId }) => conditionId))
  return [...new Set(referred)].filter((id): id is string => id !== null && !known.has(id))
}

/** Line items are charged by earliest end, then earliest start. Source: interface, charging. */
function chargeOrder(a: LineItem, b: LineItem): number {
  if (a.endsAt !== b.endsAt) return a.endsAt - b.endsAt
  if (a.startsAt !== b.startsAt) return a.startsAt - b.startsAt
  if (a.id === b.id) return 0
  return a.id < b.id ? -1 : 1
}

export function periodAt(periods: readonly Period[], now: number): Period | undefined {
  return periods.find((period) => isIn(period, now))
}

export function isIn({ from, until }: Period, now: number): boolean {
  return (from === null || from <= now) && (until === null || now < until)
}

interface CompiledLineItem {
  readonly instanceId: string
  readonly lineItem: LineItem
  /** Inclusive, tolerance applied. */
  readonly opensAt: number
  readonly closesAt: number
  readonly rules: Rules
  readonly actionAccounts: ReadonlyMap<string, AccountId>
}

function lineItemsBySeries(
  policy: Policy,
  conditions: ReadonlyMap<string, Evaluate>,
  widen: number,
): ReadonlyMap<string, readonly CompiledLineItem[]> {
  const ordered = policy.lineItems.toSorted(chargeOrder).map((lineItem) => ({
    lineItem,
    opensAt: lineItem.startsAt - widen,
    closesAt: lineItem.endsAt + widen,
    rules: compileRules(lineItem.actions, conditions),
    actionAccounts: new Map(
      lineItem.actions
        .filter(({ allocation }) => allocation !== null)
        .map(({ id }) => [id, actionAccount(policy.instanceId, lineItem.id, id)]),
    ),
    instanceId: policy.instanceId,
  }))
  return Map.groupBy(ordered, ({ lineItem }) => lineItem.rateTableSeries)
}

interface CompiledTable {
  readonly series: string
  readonly effectiveFrom: number
  readonly items: readonly RatedItem[]
  readonly rates: ReadonlyMap<string, CompiledRate>
  /** Start of the next table of the series; Infinity: none. */
  readonly effectiveUntil: number
}

/** A table is in effect until the next one of its series; with equal start the later in the list wins. */
function compileTables(tables: readonly RateTable[]): readonly CompiledTable[] {
  const compiled: CompiledTable[] = []
  for (const series of Map.groupBy(tables, (table) => table.series).values()) {
    const ordered = series.toSorted((a, b) => a.effectiveFrom - b.effectiveFrom)
    for (const [index, table] of ordered.entries()) {
      const effectiveUntil = ordered[index + 1]?.effectiveFrom ?? Number.POSITIVE_INFINITY
      const { series, effectiveFrom, items } = table
      compiled.push({ series, effectiveFrom, effectiveUntil, items, rates: ratesByItem(table) })
    }
  }
  return compiled
}

function ratesByItem(table: RateTable): ReadonlyMap<string, CompiledRate> {
  const rates = new Map<string, CompiledRate>()
  for (const item of table.items) {
    const key = itemKey(item.name, item.version)
    if (!rates.has(key)) rates.set(key, compileRate(item))
  }
  return rates
}

/** Replaces a formula that does not parse, which the protocol's schema refuses. */
const NO_RATE: Expression = { kind: 'CALL', operation: 'DIVIDE', operands: [zero(), zero()] }

function zero(): Expression {
  return { kind: 'NUMBER', value: { num: 0n, den: 1n } }
}

function compileRate({ rate, formula }: RatedItem): CompiledRate {
  if (rate !== undefined) return fixedRate(rate)
  const parsed = parseFormula(formula)
  return { kind: 'FORMULA', formula, expression: 'problem' in parsed ? NO_RATE : parsed.expression }
}

function indexTables(tables: readonly CompiledTable[]): ReadonlyMap<string, readonly CompiledTable[]> {
  const index = new Map<string, CompiledTable[]>()
  for (const table of tables) {
    for (const key of table.rates.keys()) {
      const containing = index.get(key)
      if (containing === undefined) index.set(key, [table])
      else containing.push(table)
    }
  }
  return index
}

/** Unique for every pair of texts. */
function itemKey(name: string, version: string): string {
  return `${name.length}:${name}${version}`
}

/** Instants at which an answer may change, ascending. */
function instantsOfChange(policy: Policy, widen: number): readonly number[] {
  const instants = new Set<number>()
  const addPeriods = (periods: readonly Period[]): void => {
    for (const { from, until } of periods) {
      if (from !== null) instants.add(from)
      if (until !== null) instants.add(until)
    }
  }
  for (const lineItem of policy.lineItems) {
    instants.add(lineItem.startsAt - widen)
    // The end is inclusive, so the change is one millisecond later.
    instants.add(lineItem.endsAt + widen + 1)
    addPeriods(lineItem.periods)
    if (lineItem.consumptionLimit !== null) addPeriods(lineItem.consumptionLimit.periods)
  }
  for (const { effectiveFrom } of policy.rateTables) instants.add(effectiveFrom)
  return [...instants].sort((a, b) => a - b)
}

/** The number of changes up to an instant: equal numbers mean equal answers. */
function span(changes: readonly number[], instant: number): number {
  let [low, high] = [0, changes.length]
  while (low < high) {
    const middle = (low + high) >>> 1
    if ((changes[middle] ?? 0) <= instant) low = middle + 1
    else high = middle
  }
  return low
}

interface CompiledTerms {
  readonly policy: Policy
  readonly bySeries: ReadonlyMap<string, readonly CompiledLineItem[]>
  readonly tables: readonly CompiledTable[]
  readonly tablesOfItem: ReadonlyMap<string, readonly CompiledTable[]>
}

/** The policy in one span of time: the same for all clock readings between two changes. */
export class PolicyView {
  readonly policy: Policy
  readonly #terms: CompiledTerms
  readonly #clock: ClockReading
  readonly #items = new Map<string, ItemView>()
  readonly #lineItems = new Map<CompiledLineItem, Terms | RejectionDetail['why']>()
  #offers: readonly Offer[] | undefined

  constructor(terms: CompiledTerms, clock: ClockReading) {
    this.policy = terms.policy
    this.#terms = terms
    this.#clock = clock
  }

  item(name: string, version: string): ItemView {
    const key = itemKey(name, version)
    const known = this.#items.get(key)
    if (known !== undefined) return known
    const containing = this.#terms.tablesOfItem.get(key)
    if (containing === undefined) return NOT_RATED
    const rates = new Map<string, CompiledRate>()
    for (const table of containing) {
      const rate = table.rates.get(key)
      if (rate !== undefined && this.#isInEffect(table)) rates.set(table.series, rate)
    }
    const view = rates.size === 0 ? NOT_RATED : this.#ratedItem(rates)
    this.#items.set(key, view)
    return view
  }

  /** What can be requested, before the requester and balances are checked; by name and version. */
  offers(): readonly Offer[] {
    return (this.#offers ??= this.#findOffers())
  }

  #findOffers(): readonly Offer[] {
    const offers = new Map<string, Offer>()
    for (const table of this.#terms.tables) {
      if (!this.#isInEffect(table)) continue
      for (const { name, version } of table.items) {
        const key = itemKey(name, version)
        if (offers.has(key)) continue
        const view = this.item(name, version)
        if (view.rated && view.candidates.length > 0) offers.set(key, { name, version, candidates: view.candidates })
      }
    }
    return [...offers.values()].toSorted((a, b) => compare(a.name, b.name) || compare(a.version, b.version))
  }

  #ratedItem(rates: ReadonlyMap<string, CompiledRate>): ItemView {
    const { bySeries, tables, policy } = this.#terms
    const candidates: Candidate[] = []
    const rejectionDetails: RejectionDetail[] = []
    let refusedByClock = false
    const drawnOn = [...rates.keys()].filter((series) => bySeries.has(series))
    for (const [series, rate] of rates) {
      for (const compiled of bySeries.get(series) ?? []) {
        const terms = this.#termsOf(compiled)
        if (typeof terms !== 'string') candidates.push(candidate(terms, rate))
        else {
          const why = terms
          refusedByClock ||= why === 'CLOCK_UNDECIDED'
          if (rejectionDetails.length < REJECTION_DETAILS_MAX)
            rejectionDetails.push({ lineItemId: compiled.lineItem.id, why })
        }
      }
    }
    if (candidates.length === 0) {
      const inForce = new Set(tables.filter((table) => this.#isInEffect(table)).map(({ series }) => series))
      for (const [series, others] of bySeries) {
        if (rates.has(series)) continue
        const why = inForce.has(series) ? 'SERIES_DOES_NOT_RATE_ITEM' : 'SERIES_HAS_NO_TABLE'
        const more = others.slice(0, REJECTION_DETAILS_MAX - rejectionDetails.length)
        rejectionDetails.push(...more.map(({ lineItem }) => ({ lineItemId: lineItem.id, why }) as const))
      }
    }
    // Without any line item, the item is rated but nothing can pay for it.
    if (drawnOn.length === 0 && policy.lineItems.length > 0) return { rated: false, rejectionDetails }
    // Those of one series have the order already.
    if (drawnOn.length > 1) candidates.sort((a, b) => chargeOrder(a.lineItem, b.lineItem))
    return { rated: true, candidates, rejectionDetails, refusedByClock }
  }

  /** If it can be used; otherwise the first check that it fails. */
  #termsOf(compiled: CompiledLineItem): Terms | RejectionDetail['why'] {
    const known = this.#lineItems.get(compiled)
    if (known !== undefined) return known
    const terms = unusable(compiled, this.#clock, this.policy.undecidedClock) ?? termsAt(compiled, this.#clock)
    this.#lineItems.set(compiled, terms)
    return terms
  }

  #isInEffect({ effectiveFrom, effectiveUntil }: CompiledTable): boolean {
    const { now } = this.#clock
    return effectiveFrom <= now && now < effectiveUntil
  }
}

/** The first check that a line item fails, the uncertain clock last; null: usable. */
function unusable(
  { lineItem, opensAt, closesAt }: CompiledLineItem,
  { now, earliest, latest }: ClockReading,
  undecidedClock: Policy['undecidedClock'],
): RejectionDetail['why'] | null {
  if (!lineItem.elastic) return 'NOT_ELASTIC'
  if (lineItem.state !== 'DEPLOYED') return 'NOT_DEPLOYED'
  if (latest !== null && latest < opensAt) return 'NOT_STARTED'
  if (earliest > closesAt) return 'ENDED'
  if (periodAt(lineItem.periods, now) === undefined) return 'NO_PERIOD'
  const limit = lineItem.consumptionLimit
  if (limit !== null && periodAt(limit.periods, now) === undefined) return 'NO_PERIOD'
  return undecidedClock === 'refuse' && !surelyOpen(opensAt, closesAt, earliest, latest) ? 'CLOCK_UNDECIDED' : null
}

function surelyOpen(opensAt: number, closesAt: number, earliest: number, latest: number | null): boolean {
  return opensAt <= earliest && latest !== null && latest <= closesAt
}

function compare(a: string, b: string): number {
  return a === b ? 0 : a < b ? -1 : 1
}

/** Of a line item in one span of time, the same for all items. */
type Terms = Omit<Candidate, 'rate'>

/** Without a spread, which is slow. */
function candidate(
  { lineItem, lineAccount: account, actionAccounts, limitPeriod, rules, undecided }: Terms,
  rate: CompiledRate,
): Candidate {
  return { lineItem, rate, lineAccount: account, actionAccounts, limitPeriod, rules, undecided }
}

function termsAt(compiled: CompiledLineItem, clock: ClockReading): Terms {
  const { lineItem } = compiled
  const period = periodAt(lineItem.periods, clock.now)
  if (period === undefined) throw new Error('invariant: a usable line item has a period')
  const limit = lineItem.consumptionLimit
  return {
    lineItem,
    lineAccount: lineAccount(compiled.instanceId, lineItem.id, period.index),
    actionAccounts: compiled.actionAccounts,
    limitPeriod: limit === null ? null : (periodAt(limit.periods, clock.now)?.index ?? null),
    rules: compiled.rules,
    undecided: !surelyOpen(compiled.opensAt, compiled.closesAt, clock.earliest, clock.latest),
  }
}
