/**
 * Decides on the device's balances. If they fall short, waits for a top-up; a refusal then rests on a response newer
 * than the request. If the cloud cannot be reached, the offline policy of essential line items applies.
 */
import { isDeepStrictEqual } from 'node:util'
import type { AccountId } from '../../core/accounts/account.ts'
import { MICRO_MAX, type Micro } from '../../core/pricing/amount.ts'
import { type Mode, decide } from '../../core/rules/decide.ts'
import type { AccessRequest, AvailableBalance, AvailableOf, ClockReading, Decision } from '../../core/rules/decision.ts'
import { METERED_CHARGE_MAX, type Need } from '../../core/accounts/grant.ts'
import { isShort, isShortItem, needsOf } from '../../core/rules/needs.ts'
import { type Policy, isUnlimitedBy } from '../../core/rules/policy.ts'
import type { FiniteBalanceOf, Ledger, Overspend } from '../ledger/ledger.ts'
import type { ActivePolicies, PolicyInForce } from '../policy/active-policies.ts'
import { suspendedError } from '../../protocol/edge/device-suspension.ts'
import { CodedError } from '../../protocol/errors.ts'

export interface WaitingTopUp {
  /** Each is granted whole or not at all. */
  readonly needs: readonly Need[]
  /** Accounts that could pay: the cloud reports how much their pools have. */
  readonly accounts: readonly AccountId[]
}

export interface PoolBalance {
  readonly available: Micro | 'UNLIMITED'
  /** What other devices could return to it. */
  readonly returnable: Micro
}

export type PoolBalances = ReadonlyMap<AccountId, PoolBalance>

export interface RulesDeps {
  readonly policies: Pick<ActivePolicies, 'get' | 'suspension' | 'isStale'>
  readonly link: {
    status(): {
      readonly deviceId: string | null
      readonly policies: readonly { readonly instanceId: string }[]
    }
  }
}

export interface LocalDecisionsDeps extends RulesDeps {
  readonly ledger: Pick<Ledger, 'chargeable' | 'chargeableAboveGrant' | 'newRequesters'>
  readonly policies: RulesDeps['policies'] & Pick<ActivePolicies, 'isDeviceRefused'>
  readonly clock: { reading(): ClockReading; sinceBoot(): number }
  readonly link: RulesDeps['link'] & {
    /**
     * Null if the cloud is unreachable or too slow. Rejects with REQUEST_TOO_LARGE if it fits no segment, and with
     * REQUESTERS_LIMITED; the offline policy does not apply then.
     */
    requestGrant(request: WaitingTopUp, deadlineMs: number): Promise<PoolBalances | null>
  }
  readonly topUpDeadlineMs: number
}

export interface Question {
  /** In lower case. */
  readonly instanceId: string
  readonly request: AccessRequest
  readonly mode: Mode
  /** By account, the amount refunded with the charge, which the charge may spend. */
  readonly refundAt?: (reading: ClockReading) => ReadonlyMap<AccountId, Micro>
}

/** Valid until the next await. */
export interface Attempt extends Overspend {
  readonly policy: PolicyInForce
  readonly reading: ClockReading
  readonly balanceOf: FiniteBalanceOf
  readonly seen: BalancesSeen
  readonly decision: Decision
}

/** Other requests may use the granted tokens first, so one round may not be enough. */
const TOP_UPS_MAX = 10

type View = (balanceOf: AvailableOf, rules: Policy) => AvailableOf

const UNCHANGED: View = (balanceOf) => balanceOf

const NOTHING_MORE: PoolBalance = { available: 0n, returnable: 0n }
const UNKNOWN: PoolBalance = { available: MICRO_MAX, returnable: 0n }

const NOTHING: ReadonlyMap<AccountId, Micro> = new Map()
const NO_OVERSPEND: Overspend = { above: NOTHING, allowances: NOTHING }

export class BalancesSeen {
  readonly #balances = new Map<AccountId, AvailableBalance>()
  readonly #availableOf: AvailableOf

  constructor(availableOf: AvailableOf) {
    this.#availableOf = availableOf
  }

  readonly of: AvailableOf = (account) => {
    const known = this.#balances.get(account)
    if (known !== undefined) return known
    const balance = this.#availableOf(account)
    this.#balances.set(account, balance)
    return balance
  }

  accounts(): Iterable<AccountId> {
    return this.#balances.keys()
  }

  entries(): Iterable<readonly [AccountId, AvailableBalance]> {
    return this.#balances
  }

  balances(): Iterable<AvailableBalance> {
    return this.#balances.values()
  }
}

export class LocalDecisions {
  readonly #deps: LocalDecisionsDeps

  constructor(deps: LocalDecisionsDeps) {
    this.#deps = deps
  }

  /**
   * Awaits nothing when the balances suffice, for speed. Rejects or throws the codes of {@link requireRules}, STOPPING,
   * NOT_ATTACHED, REQUEST_TOO_LARGE, REQUESTERS_LIMITED, and what `record` throws.
   *
   * @param record called in the same synchronous block: other requests charge the same accounts
   */
  decide<T>(question: Question, record: (attempt: Attempt) => Promise<T>): Promise<T> {
    const attempt = this.#attempt(question)
    return isShort(attempt.decision) ? this.#decideWithCloud(question, record) : record(attempt)
  }

  /**
   * Each round decides on the tokens of the device alone, then with those of the pools. If the pools cannot pay now, it also
   * decides with what other devices could return: a request that names these accounts has the cloud recall the tokens.
   */
  async #decideWithCloud<T>(question: Question, record: (attempt: Attempt) => Promise<T>): Promise<T> {
    const { clock, link, topUpDeadlineMs } = this.#deps
    const until = clock.sinceBoot() + topUpDeadlineMs
    const poolBalances = new Map<AccountId, PoolBalance>()
    let requested: readonly Need[] = []
    for (let rounds = 0; ; rounds += 1) {
      const alone = this.#attempt(question)
      if (!isShort(alone.decision)) return record(alone)
      const pooled = this.#attempt(question, withPool(poolBalances))
      const isDecided = isFinal(pooled, alone, poolBalances)
      const recalling = isDecided ? this.#attempt(question, withPool(poolBalances, 'RECALLED')) : pooled
      const needs = beyond(refundOf(question, recalling.reading), needsOf(recalling.decision, question.mode))
      const isRecalled = isDecided && !isDeepStrictEqual(recalling.decision.postings, pooled.decision.postings)
      if (isDecided && (!isRecalled || isDeepStrictEqual(needs, requested))) return record(pooled)
      // Other requests used the granted tokens each time.
      if (rounds >= TOP_UPS_MAX) return record(isDecided ? pooled : alone)
      const accounts = [...new Set([...alone.seen.accounts(), ...recalling.seen.accounts()])]
      const answer = await link.requestGrant({ needs, accounts }, until - clock.sinceBoot())
      if (answer === null) {
        const refused = this.#attempt(question, withPool(poolBalances))
        if (isDecided && isFinal(refused, alone, poolBalances)) return record(refused)
        return record(this.#offline(question, this.#attempt(question)))
      }
      requested = needs
      // Accounts that the cloud does not name get nothing.
      for (const account of accounts) poolBalances.set(account, answer.get(account) ?? NOTHING_MORE)
    }
  }

  /** A cloud that refuses the device has answered, so the offline policy does not apply. @throws CodedError REQUESTERS_LIMITED */
  #offline(question: Question, attempt: Attempt): Attempt {
    const { decision, policy } = attempt
    if (!isShort(decision) || this.#deps.policies.isDeviceRefused || !isAnyEssential(policy.compiled.policy)) {
      return attempt
    }
    const aboveGrant = this.#attempt(question, 'ABOVE_GRANT')
    const refusal = this.#deps.ledger.newRequesters.refusalOf(
      aboveGrant.decision.postings.map(({ account }) => account),
    )
    if (refusal !== null) throw refusal
    return aboveGrant
  }

  #attempt(question: Question, view: View | 'ABOVE_GRANT' = UNCHANGED): Attempt {
    const { clock, ledger, policies } = this.#deps
    const { instanceId, request, mode } = question
    const reading = clock.reading()
    const policy = requireRules(this.#deps, instanceId, reading)
    const rules = policy.compiled.policy
    const refund = refundOf(question, reading)
    const aboveGrant = view === 'ABOVE_GRANT' ? ledger.chargeableAboveGrant(reading, rules, refund) : null
    const balanceOf = aboveGrant?.of ?? ledger.chargeable(reading, refund)
    const own = policies.isDeviceRefused ? withRefusal(balanceOf) : balanceOf
    const seen = new BalancesSeen(view === 'ABOVE_GRANT' ? own : view(own, rules))
    const decision = decide(policy.compiled.at(reading), request, seen.of, mode)
    const { above, allowances } = aboveGrant?.overspendOf(decision.postings) ?? NO_OVERSPEND
    return { policy, reading, balanceOf, seen, decision, above, allowances }
  }
}

/**
 * Whether no top-up can change the attempt: the device can pay what it grants. An item that lacks tokens here may also be
 * left uncharged because another item is refused. That is certain only if the balances of all pools are known.
 */
function isFinal({ balanceOf, decision, seen }: Attempt, alone: Attempt, poolBalances: PoolBalances): boolean {
  if (!decision.postings.every(({ account, amount }) => balanceOf(account).left >= amount)) return false
  const isSpared = decision.items.some(({ outcome }, index) => {
    const own = alone.decision.items[index]
    return outcome === 'NOT_CHARGED' && own !== undefined && isShortItem(own)
  })
  return !isSpared || [...seen.accounts()].every((account) => poolBalances.has(account))
}

function refundOf({ refundAt }: Question, reading: ClockReading): ReadonlyMap<AccountId, Micro> {
  return refundAt === undefined ? NOTHING : refundAt(reading)
}

/** Adds the balances of the pools; an unknown one counts as the largest. */
function withPool(poolBalances: PoolBalances, of: 'NOW' | 'RECALLED' = 'NOW'): View {
  return (balanceOf, rules) => (account) => {
    const balance = balanceOf(account)
    if (balance.left === 'UNLIMITED' || balance.shortage === 'COUNTER') return balance
    const pool = poolBalances.get(account)
    const { available, returnable } = pool ?? UNKNOWN
    if (available === 'UNLIMITED') return { left: METERED_CHARGE_MAX, shortage: 'COUNTER' }
    const left = balance.left + available + (of === 'RECALLED' ? returnable : 0n)
    const shortage = pool === undefined && isUnlimitedBy(rules, account) ? 'COUNTER' : 'POOL'
    return { left: left < MICRO_MAX ? left : MICRO_MAX, shortage }
  }
}

/** No connection brings more tokens. */
const withRefusal =
  (balanceOf: AvailableOf): AvailableOf =>
  (account) => {
    const balance = balanceOf(account)
    return balance.shortage === 'POOL' || balance.shortage === 'COUNTER'
      ? balance
      : { ...balance, shortage: 'DEVICE_REFUSED' }
  }

function beyond(refund: ReadonlyMap<AccountId, Micro>, needs: readonly Need[]): readonly Need[] {
  if (refund.size === 0) return needs
  return needs
    .map((need) => need.map(({ account, amount }) => ({ account, amount: amount - (refund.get(account) ?? 0n) })))
    .map((need) => need.filter(({ amount }) => amount > 0n))
    .filter((need) => need.length > 0)
}

function isAnyEssential({ lineItems }: Policy): boolean {
  return lineItems.some(({ offline }) => offline?.policy === 'essential')
}

/** @throws CodedError DEVICE_LOCKED, DEVICE_TERMINATED, NOT_ENROLLED, NOT_FOUND, POLICY_MISSING, POLICY_STALE */
export function requireRules({ policies, link }: RulesDeps, instanceId: string, reading: ClockReading): PolicyInForce {
  if (policies.suspension !== null) throw suspendedError(policies.suspension)
  const policy = policies.get(instanceId)
  if (policy === undefined) {
    const { deviceId, policies: served } = link.status()
    if (deviceId === null) throw new CodedError('NOT_ENROLLED', 'this device is not enrolled yet')
    if (!served.some((each) => each.instanceId.toLowerCase() === instanceId)) {
      throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
    }
    throw new CodedError('POLICY_MISSING', `the rules of the instance ${instanceId} have not arrived yet`)
  }
  if (policies.isStale(policy, reading)) {
    throw new CodedError('POLICY_STALE', `revision ${policy.document.revision} was last confirmed too long ago`)
  }
  return policy
}

export function requestTooLarge(accounts: number): CodedError {
  return new CodedError('REQUEST_TOO_LARGE', `It needs tokens of ${accounts} accounts, more than one segment can name.`)
}
