/**
 * Counters in memory, entries not yet in the journal included. A charge that exceeds grant and allowance throws before
 * anything changes: it was decided on balances that this class returned.
 */
import type { AccountId, Posting } from '../../core/accounts/account.ts'
import { MICRO_MAX, type Micro } from '../../core/pricing/amount.ts'
import type { AvailableBalance } from '../../core/rules/decision.ts'
import { available, meteredLeft } from '../../core/accounts/grant.ts'
import type { AccountState, GrantedAccount } from './journal.ts'

interface AccountBalance {
  granted: Micro
  used: Micro
  refunded: Micro
  returned: Micro
  exhausted: boolean
  unlimited: boolean
  allowance?: Micro
  overdraft?: Micro
  /** Balance at or below which a top-up is requested; -1n once it was. */
  lowAt: Micro
}

interface MostReturns {
  readonly accounts: number
  readonly bytes: number
}

/** A device's balance is always a number: {@link meteredLeft} for unlimited accounts. */
export interface FiniteBalance extends AvailableBalance {
  readonly left: Micro
}

const NOTHING_GRANTED: FiniteBalance = { left: 0n, shortage: 'GRANT' }

export class Balances {
  readonly #balances = new Map<AccountId, AccountBalance>()

  constructor(accounts: Iterable<readonly [AccountId, AccountState]>) {
    for (const [account, state] of accounts) {
      const balance: AccountBalance = { ...state, lowAt: 0n }
      if (!balance.unlimited && available(balance) < -(balance.allowance ?? 0n))
        throw new Error(`invariant: ${account} is within its grant and its allowance`)
      balance.lowAt = lowMark(balance)
      this.#balances.set(account, balance)
    }
  }

  /** While the grant is valid. @param refund recorded together with the charge */
  availableOf(account: AccountId, refund = 0n): FiniteBalance {
    const balance = this.#balances.get(account)
    if (balance === undefined) return NOTHING_GRANTED
    if (balance.unlimited) return { left: meteredLeft(balance.used), shortage: 'COUNTER' }
    const left = countable(balance, available(balance) + refund)
    return { left: left > 0n ? left : 0n, shortage: balance.exhausted ? 'POOL' : 'GRANT' }
  }

  spendableOf(account: AccountId): { readonly used: Micro; readonly usedMax: Micro } {
    const balance = this.#known(account)
    const left = balance.unlimited ? meteredLeft(balance.used) : countable(balance, available(balance))
    return { used: balance.used, usedMax: balance.used + left }
  }

  get(account: AccountId): AccountState | undefined {
    return this.#balances.get(account)
  }

  all(): Iterable<readonly [AccountId, AccountState]> {
    return this.#balances
  }

  /** How much of an account was used above its grant. @param refund counted before use */
  overspendOf(account: AccountId, refund = 0n): Micro {
    const balance = this.#balances.get(account)
    if (balance === undefined || balance.unlimited) return 0n
    const left = available(balance) + refund
    return left < 0n ? -left : 0n
  }

  /** The part of an amount that the counter of an account can still count. */
  countableOf(account: AccountId, amount: Micro): Micro {
    const balance = this.#balances.get(account)
    return balance === undefined ? amount : countable(balance, amount)
  }

  /** Ends allowances for accounts whose grants now cover their use. */
  settle(): void {
    for (const balance of this.#balances.values()) if (available(balance) >= 0n) balance.allowance = 0n
  }

  /** All postings or none; true when an account has reached its low-water mark. @param allowances above the grants */
  charge(postings: readonly Posting[], allowances?: ReadonlyMap<AccountId, Micro>): boolean {
    for (const [account, allowance] of allowances ?? []) {
      const balance = this.#balances.get(account) ?? this.#open(account)
      if (allowance > (balance.allowance ?? 0n)) balance.allowance = allowance
    }
    for (const posting of postings) this.#checkedForCharge(posting)
    let low = false
    for (const { account, amount } of postings) {
      const balance = this.#known(account)
      balance.used += amount
      if (!balance.unlimited && balance.lowAt >= 0n && available(balance) <= balance.lowAt) {
        balance.lowAt = -1n
        low = true
      }
    }
    return low
  }

  uncharge(postings: readonly Posting[]): void {
    for (const { account, amount } of postings) {
      const balance = this.#known(account)
      balance.used -= amount
      if (balance.used < balance.refunded) throw new Error(`invariant: only a charge of ${account} is taken back`)
    }
  }

  /** Raises `refunded`. Call once the refund is durable, because it can be spent at once. */
  refund(postings: readonly Posting[]): void {
    for (const { account, amount } of postings) {
      const balance = this.#known(account)
      if (amount <= 0n || balance.refunded + amount > balance.used)
        throw new Error(`invariant: ${account} was charged more`)
      balance.refunded += amount
    }
  }

  unrefund(postings: readonly Posting[]): void {
    for (const { account, amount } of postings) {
      const balance = this.#known(account)
      if (amount > balance.refunded) throw new Error(`invariant: only a refund of ${account} is taken back`)
      balance.refunded -= amount
    }
  }

  /** Raises `returned` by the whole balance of as many accounts as fit. */
  giveUp(most: MostReturns): readonly Posting[] {
    return this.#raiseReturned(
      [...this.#balances.keys()].map((account) => [account, 0n] as const),
      most,
    )
  }

  /** The same by the balance above the given amount of each account. */
  giveUpAbove(keeps: ReadonlyMap<AccountId, Micro>, most: MostReturns): readonly Posting[] {
    const returns = this.#raiseReturned(keeps, most)
    // The low balance is intended: request no top-up.
    for (const { account } of returns) this.#known(account).lowAt = -1n
    return returns
  }

  #raiseReturned(keeps: Iterable<readonly [AccountId, Micro]>, most: MostReturns): readonly Posting[] {
    const returns: Posting[] = []
    let bytes = 0
    for (const [account, keep] of keeps) {
      const balance = this.#balances.get(account)
      if (balance === undefined) continue
      const amount = available(balance) - keep
      if (amount <= 0n) continue
      bytes += counterBytesMax(account)
      if (returns.length >= most.accounts || bytes > most.bytes) break
      balance.returned += amount
      returns.push({ account, amount })
    }
    return returns
  }

  /** Undoes {@link Balances.giveUp} when the journal did not record it. */
  takeBack(returns: readonly Posting[]): void {
    for (const { account, amount } of returns) {
      const balance = this.#known(account)
      if (amount > balance.returned) throw new Error(`invariant: ${account} has returned less`)
      balance.returned -= amount
    }
  }

  /** Use above the grants stays allowed: the cloud counts it as granted. @returns accounts that were unlimited */
  limit(accounts: Iterable<AccountId>): readonly AccountId[] {
    const limited: AccountId[] = []
    for (const account of accounts) {
      const balance = this.#balances.get(account)
      if (balance?.unlimited !== true) continue
      balance.unlimited = false
      balance.lowAt = lowMark(balance)
      const above = -available(balance)
      if (above > (balance.allowance ?? 0n)) balance.allowance = above
      limited.push(account)
    }
    return limited
  }

  /** Grants are cumulative: a smaller amount than the known one is old and ignored. */
  grant(accounts: readonly GrantedAccount[]): void {
    for (const { account, granted, exhausted, unlimited, overdraft = 0n } of accounts) {
      const balance = this.#balances.get(account) ?? this.#open(account)
      if (balance.unlimited && !unlimited)
        throw new Error(`invariant: ${account} was limited before its grant is stored`)
      if (granted > balance.granted) balance.granted = granted
      balance.exhausted = exhausted
      balance.unlimited = unlimited
      balance.overdraft = overdraft
      balance.lowAt = lowMark(balance)
    }
  }

  clear(): void {
    this.#balances.clear()
  }

  #open(account: AccountId): AccountBalance {
    const balance: AccountBalance = {
      granted: 0n,
      used: 0n,
      refunded: 0n,
      returned: 0n,
      exhausted: false,
      unlimited: false,
      lowAt: 0n,
    }
    this.#balances.set(account, balance)
    return balance
  }

  #known(account: AccountId): AccountBalance {
    const balance = this.#balances.get(account)
    if (balance === undefined) throw new Error(`invariant: ${account} is known`)
    return balance
  }

  #checkedForCharge({ account, amount }: Posting): void {
    const balance = this.#known(account)
    const fits = balance.unlimited
      ? balance.used + amount <= MICRO_MAX
      : amount <= available(balance) + (balance.allowance ?? 0n)
    if (amount <= 0n || !fits) throw new Error(`invariant: a charge fits the available balance of ${account}`)
  }
}

/** Refunds do not lower `used`: charges that are refunded again and again must not exceed its range. */
function countable({ used }: AccountBalance, amount: Micro): Micro {
  return amount < MICRO_MAX - used ? amount : MICRO_MAX - used
}

/** A quarter of the balance: early enough, and a small grant does not cause endless requests. */
function lowMark(balance: AccountBalance): Micro {
  const left = available(balance)
  return left > 0n ? left / 4n : 0n
}

/** Upper bound of the JSON of an account's counters: the id, three numbers of up to 19 digits, and four names. */
export function counterBytesMax(account: AccountId): number {
  return Buffer.byteLength(JSON.stringify(account)) + 110
}
