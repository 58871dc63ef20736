/** How many tokens this device is going to need: what it requests, and what it can return. */
import { type AccountId, type Posting, instanceIdOf, parseAccount } from '../../core/accounts/account.ts'
import { type TopUpRequest, available } from '../../core/accounts/grant.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { periodAt } from '../../core/rules/compile.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import { type Policy, isUnlimitedBy } from '../../core/rules/policy.ts'
import { SEGMENT_ACCOUNTS_MAX } from '../../protocol/edge/sync.ts'
import { accountsInSight } from './accounts-in-sight.ts'
import type { PolicyInForce } from '../policy/active-policies.ts'
import type { Balances } from './balances.ts'
import { BurnRate } from './burn-rate.ts'

export interface DemandDeps {
  readonly clock: { reading(): ClockReading; sinceBoot(): number }
  readonly policies: { all(): Iterable<PolicyInForce> }
  /** Minimum target balance of each account that may be charged, so that the first use need not wait. */
  readonly startingGrant: Micro
}

export interface Supply {
  readonly account: AccountId
  readonly left: Micro
  readonly quantity: Micro
  /** Estimate from the use within the last day, ms; null: not used, or for less than an hour. */
  readonly lastsMs: number | null
  readonly exhausted: boolean
}

export class Demand {
  readonly #deps: DemandDeps
  readonly #balances: Pick<Balances, 'all' | 'get'>
  readonly #burnRates = new Map<AccountId, BurnRate>()
  /** Balances at process start, and the boot-time reading then. */
  readonly #startBalances = new Map<AccountId, Micro>()
  readonly #startedAt: number

  constructor(deps: DemandDeps, balances: Pick<Balances, 'all' | 'get'>) {
    this.#deps = deps
    this.#balances = balances
    for (const [account, balance] of balances.all()) this.#startBalances.set(account, available(balance))
    this.#startedAt = deps.clock.sinceBoot()
  }

  charged(postings: readonly Posting[]): void {
    const sinceBoot = this.#deps.clock.sinceBoot()
    for (const { account, amount } of postings) {
      let rate = this.#burnRates.get(account)
      if (rate === undefined) {
        rate = new BurnRate(sinceBoot)
        this.#burnRates.set(account, rate)
      }
      rate.add(amount, sinceBoot)
    }
  }

  /**
   * Top-ups for accounts below half of their target balance. Waiting requests ask separately. Of too many for one segment,
   * others come first each time: the first ones may ask for tokens that their pools do not have.
   */
  topUpRequests(): readonly TopUpRequest[] {
    const topUpRequests: TopUpRequest[] = []
    for (const [account, wanted] of this.#targets()) {
      const balance = this.#balances.get(account)
      if (balance?.unlimited === true) continue
      const left = balance === undefined ? 0n : available(balance)
      // Repeats the request until the cloud grants it as unlimited, whatever the balance.
      if (2n * left < wanted || this.isUnlimited(account)) topUpRequests.push({ account, wanted })
    }
    if (topUpRequests.length <= SEGMENT_ACCOUNTS_MAX) return topUpRequests
    const first = Math.floor(this.#deps.clock.sinceBoot()) % topUpRequests.length
    return [...topUpRequests.slice(first), ...topUpRequests.slice(0, first)].slice(0, SEGMENT_ACCOUNTS_MAX)
  }

  /** What is left of the line items that may be charged now, those without limit excepted. */
  supplies(): readonly Supply[] {
    const { clock, policies } = this.#deps
    const reading = clock.reading()
    return [...policies.all()].flatMap(({ compiled: { policy } }) =>
      accountsInSight(policy, reading, 0).flatMap((account): Supply[] => {
        const parsed = parseAccount(account)
        const state = this.#balances.get(account)
        if (parsed?.kind !== 'line' || state?.unlimited === true || this.isUnlimited(account)) return []
        const left = state === undefined ? 0n : available(state)
        const quantity = policy.lineItems.find(({ id }) => id === parsed.lineItemId)?.quantity ?? 0n
        const lastsMs = this.#burnRates.get(account)?.lasts(left, clock.sinceBoot()) ?? null
        return [{ account, left, quantity, lastsMs, exhausted: state?.exhausted === true }]
      }),
    )
  }

  exhaustedAccounts(): readonly AccountId[] {
    return [...this.#targets().keys()].filter((account) => this.#balances.get(account)?.exhausted === true)
  }

  /**
   * What accounts with more than that keep. Of recalled accounts, it is the expected use within the horizon, at most the
   * given amount; of the others, the target balance, if they have more than twice as much. @param needed by waiting
   * requests, and kept as well
   */
  keeps(recalled: ReadonlyMap<AccountId, Micro>, needed: ReadonlyMap<AccountId, Micro>): ReadonlyMap<AccountId, Micro> {
    const sinceBoot = this.#deps.clock.sinceBoot()
    const keeps = new Map(this.#keptOf(recalled, sinceBoot))
    for (const [account, target] of this.#surplusAbove(needed)) if (!keeps.has(account)) keeps.set(account, target)
    for (const [account, amount] of needed) {
      const keep = keeps.get(account)
      if (keep !== undefined) keeps.set(account, keep + amount)
    }
    return keeps
  }

  hasSpare(recalled: ReadonlyMap<AccountId, Micro>, needed: ReadonlyMap<AccountId, Micro>): boolean {
    for (const [account, keep] of this.#keptOf(recalled, this.#deps.clock.sinceBoot())) {
      const balance = this.#balances.get(account)
      if (balance !== undefined && available(balance) > keep + (needed.get(account) ?? 0n)) return true
    }
    return false
  }

  /** By any of the rules in force. */
  isUnlimited(account: AccountId): boolean {
    for (const { compiled } of this.#deps.policies.all()) if (isUnlimitedBy(compiled.policy, account)) return true
    return false
  }

  /** Of an epoch, which begins without balances. */
  begin(): void {
    this.#startBalances.clear()
  }

  /** Expected use within the horizon, at least the starting grant. Limits count from their first charge. */
  #targets(): ReadonlyMap<AccountId, Micro> {
    const reading = this.#deps.clock.reading()
    const sinceBoot = this.#deps.clock.sinceBoot()
    const targets = new Map<AccountId, Micro>()
    const targetOf = (account: AccountId, horizonMs: number): Micro =>
      greater(this.#burnRates.get(account)?.over(horizonMs, sinceBoot) ?? 0n, this.#deps.startingGrant)
    const horizons = new Map<string, { readonly horizonMs: number; readonly policy: Policy }>()
    for (const { document, compiled } of this.#deps.policies.all()) {
      const horizonMs = document.grantHorizonMs
      horizons.set(document.instanceId, { horizonMs, policy: compiled.policy })
      for (const account of accountsInSight(compiled.policy, reading, horizonMs)) {
        targets.set(account, targetOf(account, horizonMs))
      }
    }
    for (const [account, rate] of this.#burnRates) {
      if (rate.isIdle(sinceBoot)) {
        this.#burnRates.delete(account)
        continue
      }
      const parsed = parseAccount(account)
      if (parsed?.kind !== 'limit') continue
      const known = horizons.get(parsed.instanceId)
      const limit = known?.policy.lineItems.find(({ id }) => id === parsed.lineItemId)?.consumptionLimit
      if (known === undefined || limit === undefined || limit === null) continue
      if (periodAt(limit.periods, reading.now)?.index === parsed.period) {
        targets.set(account, targetOf(account, known.horizonMs))
      }
    }
    return targets
  }

  #surplusAbove(needed: ReadonlyMap<AccountId, Micro>): ReadonlyMap<AccountId, Micro> {
    const above = new Map<AccountId, Micro>()
    const instances = this.#horizons()
    // With an unbounded clock it is unknown which accounts may still be charged.
    if (this.#deps.clock.reading().latest === null) return above
    const sinceBoot = this.#deps.clock.sinceBoot()
    const targets = this.#targets()
    for (const [account, balance] of this.#balances.all()) {
      const horizonMs = instances.get(instanceIdOf(account))
      if (balance.unlimited || horizonMs === undefined) continue
      // Balances at start were sized by use that this process has not seen.
      const isKnown = sinceBoot - this.#startedAt >= horizonMs
      const target = greater(targets.get(account) ?? 0n, isKnown ? 0n : (this.#startBalances.get(account) ?? 0n))
      if (available(balance) > 2n * target + (needed.get(account) ?? 0n)) above.set(account, target)
    }
    return above
  }

  #keptOf(recalled: ReadonlyMap<AccountId, Micro>, sinceBoot: number): ReadonlyMap<AccountId, Micro> {
    const horizons = this.#horizons()
    return new Map(
      [...recalled].map(([account, keep]) => {
        const horizonMs = horizons.get(instanceIdOf(account)) ?? 0
        const used = this.#burnRates.get(account)?.over(horizonMs, sinceBoot) ?? 0n
        return [account, used < keep ? used : keep]
      }),
    )
  }

  #horizons(): ReadonlyMap<string, number> {
    return new Map([...this.#deps.policies.all()].map(({ document }) => [document.instanceId, document.grantHorizonMs]))
  }
}

function greater(a: Micro, b: Micro): Micro {
  return a > b ? a : b
}
