/**
 * The counters of every account in memory, what is on its way to the journal included. No account that is counted
 * down is used beyond its grant and its allowance: a charge that does not fit throws before anything changes, because it
 * was decided on the room that this class gave.
 */
import type { AccountId, Posting } from '../../core/account.ts'
import { MICRO_MAX, type Micro } from '../../core/amount.ts'
import type { Room } from '../../core/decision.ts'
import { room } from '../../core/grant.ts'
import { counterBytesMax } from './counter-bytes.ts'
import type { AccountState, GrantedAccount } from './journal.ts'

interface Held {
  granted: Micro
  used: Micro
  refunded: Micro
  returned: Micro
  exhausted: boolean
  unlimited: boolean
  allowance?: Micro
  overdraft?: Micro
  /** Room at or below which a top-up should be asked for; -1n once it was. */
  lowAt: Micro
}

/** How much is given up at a time: accounts, and the bytes that their counters take in a segment. */
interface MostReturns {
  readonly accounts: number
  readonly bytes: number
}

const NOTHING_GRANTED: Room = { left: 0n, shortage: 'GRANT' }

export class Balances {
  readonly #held = new Map<AccountId, Held>()

  constructor(accounts: Iterable<readonly [AccountId, AccountState]>) {
    for (const [account, state] of accounts) {
      const held: Held = { ...state, lowAt: 0n }
      if (!held.unlimited && room(held) < -(held.allowance ?? 0n))
        throw new Error(`invariant: ${account} is within its grant and its allowance`)
      held.lowAt = lowMark(held)
      this.#held.set(account, held)
    }
  }

  /**
   * What core may draw on while the grant is in force.
   *
   * @param refund what the account gets back together with the charge
   */
  roomOf(account: AccountId, refund = 0n): Room {
    const held = this.#held.get(account)
    if (held === undefined) return NOTHING_GRANTED
    // Metered only, up to what a counter holds: the bound is beyond use, and keeps an absurd count from passing it.
    if (held.unlimited) return { left: MICRO_MAX - held.used, shortage: 'POOL' }
    const left = room(held) + refund
    return { left: left > 0n ? left : 0n, shortage: held.exhausted ? 'POOL' : 'GRANT' }
  }

  /** What was used of an account, and up to where it may be. */
  spendableOf(account: AccountId): { readonly used: Micro; readonly usedMax: Micro } {
    const held = this.#known(account)
    return { used: held.used, usedMax: held.unlimited ? MICRO_MAX : held.used + room(held) }
  }

  get(account: AccountId): AccountState | undefined {
    return this.#held.get(account)
  }

  all(): Iterable<readonly [AccountId, AccountState]> {
    return this.#held
  }

  /**
   * How much of an account was used above what is granted.
   *
   * @param refund what the account gets back before more of it is used
   */
  arrearsOf(account: AccountId, refund = 0n): Micro {
    const held = this.#held.get(account)
    if (held === undefined || held.unlimited) return 0n
    const left = room(held) + refund
    return left < 0n ? -left : 0n
  }

  /** Nothing more may be used above the grants of accounts whose use they hold. */
  settle(): void {
    for (const held of this.#held.values()) if (room(held) >= 0n) held.allowance = 0n
  }

  /**
   * Raises `used`, all of it or nothing. Returns true when an account has come to its low-water mark.
   *
   * @param allowances of accounts that may be used above what is granted, and how far
   */
  charge(postings: readonly Posting[], allowances?: ReadonlyMap<AccountId, Micro>): boolean {
    for (const [account, allowance] of allowances ?? []) {
      const held = this.#held.get(account) ?? this.#open(account)
      if (allowance > (held.allowance ?? 0n)) held.allowance = allowance
    }
    for (const posting of postings) this.#checkedForCharge(posting)
    let low = false
    for (const { account, amount } of postings) {
      const held = this.#known(account)
      held.used += amount
      if (!held.unlimited && held.lowAt >= 0n && room(held) <= held.lowAt) {
        held.lowAt = -1n
        low = true
      }
    }
    return low
  }

  /** Takes back a charge that was not recorded. */
  uncharge(postings: readonly Posting[]): void {
    for (const { account, amount } of postings) {
      const held = this.#known(account)
      held.used -= amount
      if (held.used < held.refunded) throw new Error(`invariant: only a charge of ${account} is taken back`)
    }
  }

  /** Raises `refunded`: only once the refund is durable, because what it gives back may be spent at once. */
  refund(postings: readonly Posting[]): void {
    for (const { account, amount } of postings) {
      const held = this.#known(account)
      if (amount <= 0n || held.refunded + amount > held.used) throw new Error(`invariant: ${account} was charged more`)
      held.refunded += amount
    }
  }

  /** Takes back a refund that was not recorded. */
  unrefund(postings: readonly Posting[]): void {
    for (const { account, amount } of postings) {
      const held = this.#known(account)
      if (amount > held.refunded) throw new Error(`invariant: only a refund of ${account} is taken back`)
      held.refunded -= amount
    }
  }

  /** Raises `returned` by all room of at most `most` accounts, and says by how much. */
  giveUp(most: MostReturns): readonly Posting[] {
    const returns: Posting[] = []
    let bytes = 0
    for (const [account, held] of this.#held) {
      const amount = room(held)
      if (amount <= 0n) continue
      bytes += counterBytesMax(account)
      if (returns.length >= most.accounts || bytes > most.bytes) break
      held.returned += amount
      returns.push({ account, amount })
    }
    return returns
  }

  /** Raises `returned` by what is held of these accounts beyond the figure beside each, of at most `most` of them. */
  giveUpAbove(keeps: ReadonlyMap<AccountId, Micro>, most: MostReturns): readonly Posting[] {
    const returns: Posting[] = []
    let bytes = 0
    for (const [account, keep] of keeps) {
      const held = this.#held.get(account)
      if (held === undefined) continue
      const amount = room(held) - keep
      if (amount <= 0n) continue
      bytes += counterBytesMax(account)
      if (returns.length >= most.accounts || bytes > most.bytes) break
      held.returned += amount
      // What is left is little on purpose: being low is no news.
      held.lowAt = -1n
      returns.push({ account, amount })
    }
    return returns
  }

  /** Undoes {@link Balances.giveUp} that the journal did not take. */
  takeBack(returns: readonly Posting[]): void {
    for (const { account, amount } of returns) {
      const held = this.#known(account)
      if (amount > held.returned) throw new Error(`invariant: ${account} has returned less`)
      held.returned -= amount
    }
  }

  /**
   * These accounts are counted down from here on. What was used above their grants stays allowed: the cloud counts it as
   * granted when it hears of it.
   *
   * @returns those that were unlimited
   */
  limit(accounts: Iterable<AccountId>): readonly AccountId[] {
    const limited: AccountId[] = []
    for (const account of accounts) {
      const held = this.#held.get(account)
      if (held?.unlimited !== true) continue
      held.unlimited = false
      held.lowAt = lowMark(held)
      const above = -room(held)
      if (above > (held.allowance ?? 0n)) held.allowance = above
      limited.push(account)
    }
    return limited
  }

  /** Grants are cumulative: a smaller figure than the one known is old and changes nothing. */
  grant(accounts: readonly GrantedAccount[]): void {
    for (const { account, granted, exhausted, unlimited, overdraft = 0n } of accounts) {
      const held = this.#held.get(account) ?? this.#open(account)
      if (held.unlimited && !unlimited) throw new Error(`invariant: ${account} was limited before its grant is stored`)
      if (granted > held.granted) held.granted = granted
      held.exhausted = exhausted
      held.unlimited = unlimited
      held.overdraft = overdraft
      held.lowAt = lowMark(held)
    }
  }

  clear(): void {
    this.#held.clear()
  }

  #open(account: AccountId): Held {
    const held: Held = {
      granted: 0n,
      used: 0n,
      refunded: 0n,
      returned: 0n,
      exhausted: false,
      unlimited: false,
      lowAt: 0n,
    }
    this.#held.set(account, held)
    return held
  }

  #known(account: AccountId): Held {
    const held = this.#held.get(account)
    if (held === undefined) throw new Error(`invariant: ${account} is known`)
    return held
  }

  #checkedForCharge({ account, amount }: Posting): void {
    const held = this.#known(account)
    const fits = held.unlimited ? held.used + amount <= MICRO_MAX : amount <= room(held) + (held.allowance ?? 0n)
    if (amount <= 0n || !fits) throw new Error(`invariant: a charge fits the room of ${account}`)
  }
}

/** A quarter of what there is: a device asks early enough, and a small grant does not make it ask for ever. */
function lowMark(held: Held): Micro {
  const left = room(held)
  return left > 0n ? left / 4n : 0n
}
