/**
 * Decides which line items pay how much for each requested item, or which check refuses it. The check order is
 * documented; the first check that fails names the reason:
 *
 *   1 ITEM_NOT_RATED             a rate table in effect, of the series of some line item, has the item with exactly
 *                                this version
 *   2 NO_USABLE_LINE_ITEM        such a line item is elastic, deployed and in its window
 *     CLOCK_UNDECIDED            ... and only the uncertain clock prevents it
 *   3 FORMULA_FAILED             its formula, if any, gives a rate for the variables of the request
 *   4 DENIED_BY_RULE             the actions of such a line item allow the requester
 *   5 INSUFFICIENT_TOKENS        the pools of those line items have enough tokens
 *   6 ALLOCATION_EXHAUSTED       ... also within the allocation of the action that allows
 *   7 CONSUMPTION_LIMIT_REACHED  ... also within the requester's consumption limit
 *
 * On a device, checks 5 to 7 fail as GRANT_EXPIRED or GRANT_EXHAUSTED if the grant, not the pool, is used up, and as
 * DEVICE_REFUSED if the cloud will not give the device more. COUNTER_FULL: a line item without a limit would pay, but its
 * counter cannot count so much. Overspend of an essential line item pays only after every
 * grant of every line item that allows the request. Deterministic: reads no clock and never throws on data.
 */
import { type AccountId, type Posting, limitAccount } from '../accounts/account.ts'
import { type Micro, type Ratio, decimalRatio, ratio, roundHalfEven } from '../pricing/amount.ts'
import { type Candidate, type CompiledRate, type FixedRate, type PolicyView, fixedRate } from './compile.ts'
import {
  type AccessRequest,
  type Warning,
  type Decision,
  type ItemOutcome,
  type RejectionDetail,
  REJECTION_DETAILS_MAX,
  type ChargeShare,
  type RequestedItem,
  type Requester,
  type AvailableBalance,
  type AvailableOf,
} from './decision.ts'
import { type FormulaFailure, formulaRate } from '../pricing/formula-rate.ts'
import type { Action, LineItem } from './policy.ts'
import type { ItemCheck, RefusalReason } from './refusal-reasons.ts'
import { type Rules, type Ruling, rulingsFor } from './rules.ts'

/** Best effort (one-off requests): items are decided one by one. All or nothing (sessions): one refusal refuses all. */
export type Mode = 'BEST_EFFORT' | 'ALL_OR_NOTHING'

/** Pure. The caller must apply the postings in one transaction before it responds. */
export function decide(policy: PolicyView, request: AccessRequest, availableOf: AvailableOf, mode: Mode): Decision {
  const charges = new Charges(policy, request.requester, availableOf)
  const items = request.items.map((item) => charges.add(item))
  if (mode === 'ALL_OR_NOTHING' && items.some(({ outcome }) => outcome === 'REFUSED')) {
    return { items: items.map(withoutCharge), postings: [], warnings: [] }
  }
  return { items, postings: charges.postings(), warnings: charges.warnings }
}

function withoutCharge(outcome: ItemOutcome): ItemOutcome {
  return outcome.outcome === 'GRANTED' ? { outcome: 'NOT_CHARGED' } : outcome
}

class Charges {
  readonly warnings: Warning[] = []
  readonly #policy: PolicyView
  readonly #requester: Requester
  readonly #availableOf: AvailableOf
  readonly #rulingOf: (rules: Rules) => Ruling
  readonly #taken = new Map<AccountId, Micro>()
  /** Of earlier items, until a charge changes them: many items can try the same line items, which are used up. */
  #purses: Map<LineItem, Purse> | undefined

  constructor(policy: PolicyView, requester: Requester, availableOf: AvailableOf) {
    this.#policy = policy
    this.#requester = requester
    this.#availableOf = availableOf
    this.#rulingOf = rulingsFor(requester.dictionary)
  }

  postings(): readonly Posting[] {
    const postings: Posting[] = []
    for (const [account, amount] of this.#taken) postings.push({ account, amount })
    return postings
  }

  add(item: RequestedItem): ItemOutcome {
    const view = this.#policy.item(item.name, item.version)
    if (!view.rated) return refused('ITEM_NOT_RATED', view.rejectionDetails)
    if (view.candidates.length === 0) {
      return refused(view.refusedByClock ? 'CLOCK_UNDECIDED' : 'NO_USABLE_LINE_ITEM', view.rejectionDetails)
    }

    const tried: Tried = { payers: [], denials: [], failures: [] }
    const count = decimalRatio(item.count)
    const shares = split(count, this.#payers(item, view.candidates, tried), 'LIMIT')
    const { payers, denials, failures } = tried
    if (payers.length > 1) this.#remember(payers)
    if (shares === undefined) {
      if (payers.length > 0) return refused(...shortage(count, payers))
      return denials.length > 0 ? refused('DENIED_BY_RULE', denials) : refused('FORMULA_FAILED', failures)
    }
    for (const share of shares) this.#take(share)
    return granted(shares)
  }

  /** Lazy: line items after the one that pays the rest are never evaluated. */
  *#payers(item: RequestedItem, candidates: Iterable<Candidate>, tried: Tried): Generator<Payer> {
    const { payers, denials, failures } = tried
    const rateOf = ratesFor(item)
    for (const candidate of candidates) {
      const rate = rateOf(candidate.rate)
      if (typeof rate === 'string') {
        if (failures.length < REJECTION_DETAILS_MAX) failures.push(rejectionDetail(candidate, null, rate))
        continue
      }
      const ruling = this.#rulingOf(candidate.rules)
      if (ruling.ruling === 'ALLOW') {
        const { action } = ruling
        const payer = { candidate, rate, action, purse: this.#purse(candidate, action), inOverspend: false }
        payers.push(payer)
        yield payer
      } else if (denials.length < REJECTION_DETAILS_MAX) {
        denials.push(rejectionDetail(candidate, ruling.action, ruling.why))
      }
    }
    for (const payer of payers.filter(hasOverspend)) {
      const again = { ...payer, inOverspend: true }
      payers.push(again)
      yield again
    }
  }

  #purse(candidate: Candidate, action: Action | null): Purse {
    const known = this.#purses?.get(candidate.lineItem)
    if (known !== undefined) return known
    const accounts = [this.#look('TOKENS', candidate.lineAccount)]
    const allocated = action === null ? undefined : candidate.actionAccounts.get(action.id)
    if (allocated !== undefined) accounts.push(this.#look('ALLOCATION', allocated))
    if (candidate.limitPeriod !== null) {
      const { instanceId } = this.#policy.policy
      const limit = limitAccount(instanceId, candidate.lineItem.id, this.#requester, candidate.limitPeriod)
      accounts.push(this.#look('LIMIT', limit))
    }
    return { accounts, capacities: null }
  }

  #look(check: CapacityCheck, account: AccountId): PayerAccount {
    const { left: balance, overspend = 0n, shortage } = this.#availableOf(account)
    if (balance === 'UNLIMITED') return { check, account, left: 'UNLIMITED', reach: 0n, shortage }
    const left = balance - (this.#taken.get(account) ?? 0n)
    const reach = left + overspend
    return { check, account, left: left > 0n ? left : 0n, reach: reach > 0n ? reach : 0n, shortage }
  }

  #take({ payer: { purse, candidate, inOverspend }, charged }: Share): void {
    if (inOverspend && charged > 0n) this.#warn('ESSENTIAL_OFFLINE')
    if (candidate.undecided) this.#warn('CLOCK_UNDECIDED_ALLOWED')
    if (charged === 0n) return
    for (const { account } of purse.accounts) this.#taken.set(account, (this.#taken.get(account) ?? 0n) + charged)
    this.#purses?.delete(candidate.lineItem)
  }

  #remember(payers: readonly Payer[]): void {
    this.#purses ??= new Map()
    for (const { candidate, purse } of payers) {
      purse.capacities ??= []
      this.#purses.set(candidate.lineItem, purse)
    }
  }

  #warn(warning: Warning): void {
    if (!this.warnings.includes(warning)) this.warnings.push(warning)
  }
}

/** Evaluates each formula once, even if candidates share it. */
function ratesFor({ variables }: RequestedItem): (rate: CompiledRate) => FixedRate | FormulaFailure {
  let known: Map<CompiledRate, FixedRate | FormulaFailure> | undefined
  return (compiled) => {
    if (compiled.kind === 'FIXED') return compiled
    known ??= new Map()
    let rate = known.get(compiled)
    if (rate === undefined) {
      const value = formulaRate(compiled.expression, variables)
      rate = typeof value === 'string' ? value : fixedRate(value)
      known.set(compiled, rate)
    }
    return rate
  }
}

/** The balance checks; each includes the ones before it. */
type CapacityCheck = Extract<ItemCheck, 'TOKENS' | 'ALLOCATION' | 'LIMIT'>
const CAPACITY_CHECKS: readonly CapacityCheck[] = ['TOKENS', 'ALLOCATION', 'LIMIT']

const CHECK_REASON: Readonly<Record<CapacityCheck, RefusalReason>> = {
  TOKENS: 'INSUFFICIENT_TOKENS',
  ALLOCATION: 'ALLOCATION_EXHAUSTED',
  LIMIT: 'CONSUMPTION_LIMIT_REACHED',
}

const CHECK_REJECTION_DETAIL: Readonly<Record<CapacityCheck, RejectionDetail['why']>> = {
  TOKENS: 'TOO_FEW_TOKENS',
  ALLOCATION: 'ALLOCATION_TOO_SMALL',
  LIMIT: 'LIMIT_TOO_SMALL',
}

interface PayerAccount {
  readonly check: CapacityCheck
  readonly account: AccountId
  /** Never negative; charges of this request are already subtracted. */
  readonly left: Micro | 'UNLIMITED'
  /** `left` plus overspend. */
  readonly reach: Micro
  readonly shortage: AvailableBalance['shortage']
}

/** The accounts of a line item that all pay each charge, as the requester and earlier items left them. */
interface Purse {
  readonly accounts: readonly PayerAccount[]
  /**
   * Known results of {@link capacityOf}: by the index of the check, first within the balances, then in overspend. Null: no
   * earlier item has tried the line item, so nothing is kept.
   */
  capacities: (Micro | 'UNLIMITED' | undefined)[] | null
}

interface Payer {
  readonly candidate: Candidate
  readonly rate: FixedRate
  readonly action: Action | null
  readonly purse: Purse
  readonly inOverspend: boolean
}

function hasOverspend({ purse: { accounts } }: Payer): boolean {
  return accounts.some(({ left, reach }) => left !== 'UNLIMITED' && reach > left)
}

/** @param last index of a check */
function capacity({ purse: { accounts, capacities }, inOverspend }: Payer, last: number): Micro | 'UNLIMITED' {
  if (capacities === null) return capacityOf(accounts, last, inOverspend)
  return (capacities[inOverspend ? CAPACITY_CHECKS.length + last : last] ??= capacityOf(accounts, last, inOverspend))
}

/** Smallest balance of the accounts up to a check; in overspend, only the part above the balances. */
function capacityOf(accounts: readonly PayerAccount[], last: number, inOverspend: boolean): Micro | 'UNLIMITED' {
  let least: Micro | 'UNLIMITED' = 'UNLIMITED'
  let farthest: Micro | 'UNLIMITED' = 'UNLIMITED'
  for (const account of accounts) {
    if (account.left === 'UNLIMITED' || CAPACITY_CHECKS.indexOf(account.check) > last) continue
    if (least === 'UNLIMITED' || account.left < least) least = account.left
    if (farthest === 'UNLIMITED' || account.reach < farthest) farthest = account.reach
  }
  if (!inOverspend) return least
  return least === 'UNLIMITED' || farthest === 'UNLIMITED' ? 0n : farthest - least
}

/** The line items tried for an item: those that can pay, and why the others cannot. */
interface Tried {
  readonly payers: Payer[]
  readonly denials: RejectionDetail[]
  readonly failures: RejectionDetail[]
}

interface Share {
  readonly payer: Payer
  readonly charged: Micro
}

/**
 * Charges the payers in sequence, each at its own rate. Only the total is rounded: the last share absorbs the rounding,
 * so that shares always sum to it. Undefined when the payers cannot pay all of it.
 */
function split(count: Ratio, payers: Iterable<Payer>, check: CapacityCheck): readonly Share[] | undefined {
  const last = CAPACITY_CHECKS.indexOf(check)
  const shares: Share[] = []
  let rate: Ratio | undefined
  /** The remaining count at the rate. */
  let owed = count
  let sum = 0n
  let needed = 0n
  for (const payer of payers) {
    const { microRate } = payer.rate
    if (microRate !== rate) {
      owed = rate === undefined ? product(owed, microRate) : atRate(owed, rate, microRate)
      rate = microRate
      needed = chargeFor(owed, sum)
    }
    const available = capacity(payer, last)
    if (available === 'UNLIMITED' || available >= needed) {
      shares.push({ payer, charged: needed })
      return shares
    }
    if (available === 0n) continue
    shares.push({ payer, charged: available })
    sum += available
    owed = { num: owed.num - available * owed.den, den: owed.den }
    needed = chargeFor(owed, sum)
  }
  return undefined
}

function product(count: Ratio, microRate: Ratio): Ratio {
  return { num: count.num * microRate.num, den: count.den * microRate.den }
}

/** What is owed at one rate, which is above 0, at another. */
function atRate(owed: Ratio, rate: Ratio, other: Ratio): Ratio {
  return ratio(owed.num * rate.den * other.num, owed.den * rate.num * other.den)
}

/** Micro-tokens on top of `sum`, so that their sum is rounded once. */
function chargeFor(owed: Ratio, sum: Micro): Micro {
  if (sum === 0n) return roundHalfEven(owed)
  return roundHalfEven({ num: sum * owed.den + owed.num, den: owed.den }) - sum
}

function granted(shares: readonly Share[]): ItemOutcome {
  let total = 0n
  const chargeShares: ChargeShare[] = []
  for (const { payer: own, charged } of shares) {
    const lineItemId = own.candidate.lineItem.id
    total += charged
    // Not by `findIndex`: the element at -1 would be looked up by its name.
    const before = own.inOverspend ? chargeShares.find((share) => share.lineItemId === lineItemId) : undefined
    if (before === undefined)
      chargeShares.push({ lineItemId, rate: own.rate.rate, actionId: own.action?.id ?? null, charged })
    else chargeShares[chargeShares.indexOf(before)] = { ...before, charged: before.charged + charged }
  }
  return { outcome: 'GRANTED', shares: chargeShares, total }
}

function shortage(count: Ratio, payers: readonly Payer[]): [RefusalReason, readonly RejectionDetail[]] {
  const check = CAPACITY_CHECKS.find((each) => split(count, payers, each) === undefined)
  if (check === undefined) throw new Error('invariant: a refused split fails at one of the checks')
  const last = CAPACITY_CHECKS.indexOf(check)
  let reason = CHECK_REASON[check]
  const rejectionDetails: RejectionDetail[] = []
  for (const each of payers) {
    if (each.inOverspend) continue
    const least = capacity(each, last)
    const needed =
      rejectionDetails.length < REJECTION_DETAILS_MAX ? chargeFor(product(count, each.rate.microRate), 0n) : 0n
    for (const { check: own, account, left, shortage } of each.purse.accounts) {
      if (left === 'UNLIMITED') continue
      if (CAPACITY_CHECKS.indexOf(own) <= last && left === least) reason = localReason(reason, shortage)
      if (left < needed && rejectionDetails.length < REJECTION_DETAILS_MAX) {
        rejectionDetails.push({
          ...rejectionDetail(each.candidate, each.action, CHECK_REJECTION_DETAIL[own]),
          account,
          needed,
          left,
        })
      }
    }
  }
  return [reason, rejectionDetails]
}

/** A temporary shortage outranks an empty pool, and an expired grant outranks a used one. */
function localReason(reason: RefusalReason, shortage: AvailableBalance['shortage']): RefusalReason {
  if (shortage === 'DEVICE_REFUSED' || reason === 'DEVICE_REFUSED') return 'DEVICE_REFUSED'
  if (shortage === 'GRANT_EXPIRED' || reason === 'GRANT_EXPIRED') return 'GRANT_EXPIRED'
  if (shortage === 'GRANT' || reason === 'GRANT_EXHAUSTED') return 'GRANT_EXHAUSTED'
  if (shortage === 'RECOVERY' || reason === 'POOL_IN_RECOVERY') return 'POOL_IN_RECOVERY'
  return shortage === 'COUNTER' ? 'COUNTER_FULL' : reason
}

function rejectionDetail(candidate: Candidate, action: Action | null, why: RejectionDetail['why']): RejectionDetail {
  return { lineItemId: candidate.lineItem.id, why, ...(action === null ? {} : { actionId: action.id }) }
}

function refused(reason: RefusalReason, rejectionDetails: readonly RejectionDetail[]): ItemOutcome {
  return { outcome: 'REFUSED', reason, rejectionDetails }
}
