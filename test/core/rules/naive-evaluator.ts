/**
 * A second evaluator, written from the rules of the interface and not from the engine: no index, no compilation, loops
 * over everything for each question. It is the oracle of the properties, so it must never import code from src/core;
 * types are shared because they are the question and the answer.
 */
import type {
  AccessRequest,
  Warning,
  ClockReading,
  ItemOutcome,
  ChargeShare,
  RequestedItem,
  Requester,
  AvailableBalance,
  AvailableOf,
} from '../../../src/core/rules/decision.ts'
import type { RefusalReason } from '../../../src/core/rules/refusal-reasons.ts'
import type { Decimal } from '../../../src/core/pricing/amount.ts'
import type { Posting } from '../../../src/core/accounts/account.ts'
import type { Mode } from '../../../src/core/rules/decide.ts'
import type {
  Action,
  Condition,
  LineItem,
  Period,
  Policy,
  RatedItem,
  RateTable,
} from '../../../src/core/rules/policy.ts'
import { naiveFormula } from '../pricing/naive-formula.ts'
import { minus, nearest, over, plus, shifted, times, whole } from '../pricing/naive-fraction.ts'

/** A decision without the rejection details: those are explanations, checked by a property of their own. */
export interface NaiveDecision {
  readonly items: readonly NaiveOutcome[]
  readonly postings: readonly Posting[]
  readonly warnings: readonly Warning[]
}

export type NaiveOutcome =
  Exclude<ItemOutcome, { outcome: 'REFUSED' }> | { readonly outcome: 'REFUSED'; readonly reason: RefusalReason }

/** Three-valued truth: a condition may be impossible to tell. */
export type Truth = 'TRUE' | 'FALSE' | 'ERROR'

export type WindowState = 'OPEN' | 'BEFORE' | 'AFTER' | 'UNDECIDED'

const TWELVE_HOURS = 43_200_000
const DEEPEST_LEVEL = 10
const MICRO = 1_000_000n

export function naiveDecide(
  policy: Policy,
  request: AccessRequest,
  clock: ClockReading,
  availableOf: AvailableOf,
  mode: Mode,
): NaiveDecision {
  const taken: Posting[] = []
  const paidUndecided: boolean[] = []
  const availableAfter: AvailableOf = (account) => {
    const balance = availableOf(account)
    if (balance.left === 'UNLIMITED') return balance
    // Less than nothing gives as little as nothing.
    let left = balance.left > 0n ? balance.left : 0n
    for (const posting of taken) if (posting.account === account) left -= posting.amount
    return { left, shortage: balance.shortage }
  }

  const outcomes: NaiveOutcome[] = []
  for (const item of request.items) {
    const result = decideItem(policy, request.requester, item, clock, availableAfter)
    if (typeof result === 'string') {
      outcomes.push({ outcome: 'REFUSED', reason: result })
      continue
    }
    let total = 0n
    const shares: ChargeShare[] = []
    for (const share of result) {
      total += share.share.charged
      shares.push(share.share)
      paidUndecided.push(share.payer.window === 'UNDECIDED')
      if (share.share.charged === 0n) continue
      for (const account of share.payer.accounts) taken.push({ account, amount: share.share.charged })
    }
    outcomes.push({ outcome: 'GRANTED', shares, total })
  }

  const failed = outcomes.some((outcome) => outcome.outcome === 'REFUSED')
  if (mode === 'ALL_OR_NOTHING' && failed) {
    const items = outcomes.map((outcome) =>
      outcome.outcome === 'REFUSED' ? outcome : ({ outcome: 'NOT_CHARGED' } as const),
    )
    return { items, postings: [], warnings: [] }
  }
  return {
    items: outcomes,
    postings: addedUp(taken),
    warnings: paidUndecided.includes(true) ? ['CLOCK_UNDECIDED_ALLOWED'] : [],
  }
}

interface Payer {
  readonly item: LineItem
  readonly rate: Decimal
  readonly window: WindowState
  readonly actionId: string | null
  /** The accounts that a charge of this line item is posted to, in the order line, action, limit. */
  readonly accounts: readonly string[]
  /** The rooms that cap the line item at each check of the checks: line; line and action; line, action and limit. */
  readonly balances: readonly (readonly AvailableBalance[])[]
}

interface Share {
  readonly share: ChargeShare
  readonly payer: Payer
}

/** What each line item pays, or why the item is refused. */
function decideItem(
  policy: Policy,
  requester: Requester,
  item: RequestedItem,
  clock: ClockReading,
  availableOf: AvailableOf,
): readonly Share[] | RefusalReason {
  const everySeries =
    policy.lineItems.length === 0
      ? policy.rateTables.map((table) => table.series)
      : policy.lineItems.map((lineItem) => lineItem.rateTableSeries)
  if (!everySeries.some((series) => ratedItem(policy, series, item, clock.now) !== undefined)) return 'ITEM_NOT_RATED'

  const usable: LineItem[] = []
  let undecidedOnly = false
  for (const lineItem of policy.lineItems) {
    if (!lineItem.elastic || lineItem.state !== 'DEPLOYED') continue
    if (!countersRunAt(lineItem, clock.now)) continue
    if (ratedItem(policy, lineItem.rateTableSeries, item, clock.now) === undefined) continue
    const window = windowState(policy, lineItem, clock)
    if (window === 'OPEN' || (window === 'UNDECIDED' && policy.undecidedClock === 'allow')) usable.push(lineItem)
    else if (window === 'UNDECIDED') undecidedOnly = true
  }
  if (usable.length === 0) return undecidedOnly ? 'CLOCK_UNDECIDED' : 'NO_USABLE_LINE_ITEM'

  const payers: Payer[] = []
  let anyRate = false
  for (const lineItem of usable) {
    const rate = rateFor(policy, lineItem, item, clock.now)
    if (typeof rate === 'string') continue
    anyRate = true
    const ruling = rulingOf(policy, lineItem, requester)
    if (ruling.ruling === 'ALLOWED')
      payers.push(payerOf(policy, lineItem, rate, ruling.action, requester, clock, availableOf))
  }
  if (payers.length === 0) return anyRate ? 'DENIED_BY_RULE' : 'FORMULA_FAILED'
  payers.sort((a, b) => (goesBefore(a.item, b.item) ? -1 : 1))

  const checks = ['INSUFFICIENT_TOKENS', 'ALLOCATION_EXHAUSTED', 'CONSUMPTION_LIMIT_REACHED'] as const
  let shares: readonly Share[] | undefined
  for (const [check, reason] of checks.entries()) {
    shares = serve(payers, item, check)
    if (shares === undefined) return shortageReason(payers, check) ?? reason
  }
  return shares ?? []
}

export function windowState(
  policy: Pick<Policy, 'timezoneTolerant'>,
  lineItem: LineItem,
  clock: ClockReading,
): WindowState {
  const margin = policy.timezoneTolerant ? TWELVE_HOURS : 0
  const start = lineItem.startsAt - margin
  const end = lineItem.endsAt + margin
  if (clock.earliest > end) return 'AFTER'
  if (clock.latest !== null && clock.latest < start) return 'BEFORE'
  if (clock.latest !== null && start <= clock.earliest && clock.latest <= end) return 'OPEN'
  return 'UNDECIDED'
}

export function periodAt(periods: readonly Period[], now: number): Period | undefined {
  return periods.find(
    (period) => (period.from === null || period.from <= now) && (period.until === null || now < period.until),
  )
}

/** Whether each counter of the line item, that of its consumption limit too, has a period for the instant. */
export function countersRunAt(lineItem: LineItem, now: number): boolean {
  const limit = lineItem.consumptionLimit
  return periodAt(lineItem.periods, now) !== undefined && (limit === null || periodAt(limit.periods, now) !== undefined)
}

/** The item's entry in the table of a series that is in effect. */
export function ratedItem(
  policy: Pick<Policy, 'rateTables'>,
  series: string,
  item: Pick<RequestedItem, 'name' | 'version'>,
  now: number,
): RatedItem | undefined {
  let inEffect: RateTable | undefined
  for (const table of policy.rateTables) {
    if (table.series !== series || table.effectiveFrom > now) continue
    if (inEffect === undefined || table.effectiveFrom >= inEffect.effectiveFrom) inEffect = table
  }
  return inEffect?.items.find((rated) => rated.name === item.name && rated.version === item.version)
}

export type Ruling =
  | { readonly ruling: 'ALLOWED'; readonly action: Action | null }
  | { readonly ruling: 'REFUSED'; readonly why: 'RULE_DENIES' | 'NO_RULE_MATCHES' | 'RULE_ERROR' }

export function rulingOf(policy: Pick<Policy, 'conditions'>, lineItem: LineItem, requester: Requester): Ruling {
  if (lineItem.actions.length === 0) return { ruling: 'ALLOWED', action: null }
  const isDefault = (action: Action): number => (action.conditionId === null ? 1 : 0)
  for (const action of lineItem.actions.toSorted((a, b) => isDefault(a) - isDefault(b))) {
    const truth = action.conditionId === null ? 'TRUE' : truthById(policy, action.conditionId, requester.dictionary)
    if (truth === 'ERROR') return { ruling: 'REFUSED', why: 'RULE_ERROR' }
    if (truth === 'FALSE') continue
    return action.effect === 'ALLOW' ? { ruling: 'ALLOWED', action } : { ruling: 'REFUSED', why: 'RULE_DENIES' }
  }
  return { ruling: 'REFUSED', why: 'NO_RULE_MATCHES' }
}

function truthById(policy: Pick<Policy, 'conditions'>, conditionId: string, dictionary: object): Truth {
  const condition = policy.conditions.find((candidate) => candidate.id === conditionId)
  return condition === undefined ? 'ERROR' : truthOf(condition, dictionary)
}

export function truthOf(condition: Condition, dictionary: object, level = 1): Truth {
  if (level > DEEPEST_LEVEL) return 'ERROR'
  if ('conditions' in condition && condition.conditions.length === 0) return 'ERROR'
  switch (condition.operator) {
    case 'NOT':
      return opposite(truthOf(condition.condition, dictionary, level + 1))
    case 'AND':
      return allOf(condition.conditions.map((nested) => truthOf(nested, dictionary, level + 1)))
    case 'OR':
      return anyOf(condition.conditions.map((nested) => truthOf(nested, dictionary, level + 1)))
    case 'IN':
      return isIn(condition, dictionary)
  }
}

function isIn(condition: Extract<Condition, { operator: 'IN' }>, dictionary: object): Truth {
  const entry = Object.entries(dictionary).find(([key]) => key === condition.property)
  if (entry === undefined) return 'FALSE'
  const value: unknown = entry[1]
  if (Array.isArray(value)) return anyOf(value.map((element: unknown) => scalarIn(element, condition.values)))
  return scalarIn(value, condition.values)
}

function scalarIn(value: unknown, values: readonly string[]): Truth {
  if (value === null) return 'FALSE'
  if (typeof value === 'string') return values.includes(value) ? 'TRUE' : 'FALSE'
  if (typeof value === 'number' || typeof value === 'boolean') {
    return values.includes(JSON.stringify(value)) ? 'TRUE' : 'FALSE'
  }
  return 'ERROR'
}

function opposite(truth: Truth): Truth {
  return truth === 'ERROR' ? 'ERROR' : truth === 'TRUE' ? 'FALSE' : 'TRUE'
}

function allOf(truths: readonly Truth[]): Truth {
  if (truths.includes('FALSE')) return 'FALSE'
  return truths.includes('ERROR') ? 'ERROR' : 'TRUE'
}

function anyOf(truths: readonly Truth[]): Truth {
  if (truths.includes('TRUE')) return 'TRUE'
  return truths.includes('ERROR') ? 'ERROR' : 'FALSE'
}

/** What the line item's series charges for one unit, or why its formula gives no rate. */
export function rateFor(policy: Policy, lineItem: LineItem, item: RequestedItem, now: number): Decimal | string {
  const rated = ratedItem(policy, lineItem.rateTableSeries, item, now)
  if (rated === undefined) throw new Error('only a line item of a series that rates the item is asked')
  return rated.rate ?? naiveFormula(rated.formula, [...(item.variables ?? [])])
}

function payerOf(
  policy: Policy,
  lineItem: LineItem,
  rate: Decimal,
  action: Action | null,
  requester: Requester,
  clock: ClockReading,
  availableOf: AvailableOf,
): Payer {
  const period = periodAt(lineItem.periods, clock.now)
  if (period === undefined) throw new Error('only usable line items pay')
  const line = idText('line', policy.instanceId, lineItem.id, String(period.index))
  const accounts = [line]
  const balances = [[availableOf(line)], [availableOf(line)], [availableOf(line)]]
  if (action !== null && action.allocation !== null) {
    const allocation = idText('action', policy.instanceId, lineItem.id, action.id)
    accounts.push(allocation)
    balances[1]?.push(availableOf(allocation))
    balances[2]?.push(availableOf(allocation))
  }
  if (lineItem.consumptionLimit !== null) {
    const limitPeriod = periodAt(lineItem.consumptionLimit.periods, clock.now)
    if (limitPeriod === undefined) throw new Error('only usable line items pay')
    const { type, value } = requester
    const limit = idText('limit', policy.instanceId, lineItem.id, type, value, String(limitPeriod.index))
    accounts.push(limit)
    balances[2]?.push(availableOf(limit))
  }
  const window = windowState(policy, lineItem, clock)
  return { item: lineItem, rate, window, actionId: action?.id ?? null, accounts, balances }
}

function idText(kind: string, ...parts: readonly string[]): string {
  let text = kind
  for (const part of parts) text += `/${encodeURIComponent(part)}`
  return text
}

/** Earliest end, then earliest start, then the id by UTF-16 code units. */
function goesBefore(a: LineItem, b: LineItem): boolean {
  if (a.endsAt !== b.endsAt) return a.endsAt < b.endsAt
  if (a.startsAt !== b.startsAt) return a.startsAt < b.startsAt
  return a.id < b.id
}

/** What each line item pays when its capacity is that of one check; undefined when together they cannot pay. */
function serve(payers: readonly Payer[], item: RequestedItem, check: number): readonly Share[] | undefined {
  const shares: Share[] = []
  let remaining = shifted(item.count.digits, item.count.scale)
  let paid = 0n
  for (const payer of payers) {
    const rate = shifted(payer.rate.digits, payer.rate.scale)
    const exact = times(times(remaining, rate), whole(MICRO))
    const needed = nearest(plus(whole(paid), exact)) - paid
    const capacity = leastOf(payer.balances[check] ?? [])
    const share = (charged: bigint): Share => ({
      share: { lineItemId: payer.item.id, rate: payer.rate, actionId: payer.actionId, charged },
      payer,
    })
    if (capacity === 'UNLIMITED' || capacity >= needed) {
      shares.push(share(needed))
      return shares
    }
    if (capacity === 0n) continue
    shares.push(share(capacity))
    paid += capacity
    remaining = minus(remaining, over(whole(capacity), times(rate, whole(MICRO))))
  }
  return undefined
}

function leastOf(balances: readonly AvailableBalance[]): bigint | 'UNLIMITED' {
  let least: bigint | 'UNLIMITED' = 'UNLIMITED'
  for (const { left } of balances) if (left !== 'UNLIMITED' && (least === 'UNLIMITED' || left < least)) least = left
  return least
}

/** A device's grant takes the blame when it, and not the pool, is what binds a line item. */
function shortageReason(payers: readonly Payer[], check: number): RefusalReason | undefined {
  const binding = payers.flatMap((payer) => {
    const balances = payer.balances[check] ?? []
    return balances.filter((balance) => balance.left === leastOf(balances))
  })
  if (binding.some((balance) => balance.shortage === 'DEVICE_REFUSED')) return 'DEVICE_REFUSED'
  if (binding.some((balance) => balance.shortage === 'GRANT_EXPIRED')) return 'GRANT_EXPIRED'
  if (binding.some((balance) => balance.shortage === 'GRANT')) return 'GRANT_EXHAUSTED'
  if (binding.some((balance) => balance.shortage === 'RECOVERY')) return 'POOL_IN_RECOVERY'
  if (binding.some((balance) => balance.shortage === 'COUNTER')) return 'COUNTER_FULL'
  return undefined
}

/** One posting for each account, in the order of first mention. */
function addedUp(postings: readonly Posting[]): readonly Posting[] {
  const accounts = postings.map((posting) => posting.account)
  const unique = accounts.filter((account, index) => accounts.indexOf(account) === index)
  return unique.map((account) => {
    let amount = 0n
    for (const posting of postings) if (posting.account === account) amount += posting.amount
    return { account, amount }
  })
}
