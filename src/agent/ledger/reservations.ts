/**
 * Blocks of tokens that are reserved durably ahead: up to the end of its block an account may be charged without a flush,
 * and a power cut costs at most what is left of it. Invariant: the end in here is never above the one in the journal.
 * Ends only rise with a commit; they are lowered here first, and in the journal by a commit after it.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'

/** Until when a block should last at the rate at which its account is spent, ms. */
const RESERVATION_MS = 2_000

/** A rate is taken over so long at the least, ms: two charges in a moment are no rate. */
const RATE_OVER_MS = 100

interface OpenReservation {
  /** The value of `used` up to which no flush is needed. */
  end: Micro
  /** What it was made for, micro-tokens. */
  size: Micro
  /** The value of `used` at the last commit that extended it, and when that was. */
  usedBefore: Micro
  before: number
  largest: Micro
}

/** The counters of an account, as the blocks need them: what was used, and up to where it may be. */
export interface Spendable {
  readonly used: Micro
  readonly usedMax: Micro
}

export class Reservations {
  readonly #sizeMax: Micro
  readonly #now: () => number
  readonly #blocks = new Map<AccountId, OpenReservation>()
  /** Ends on their way to the journal. */
  readonly #proposed = new Map<AccountId, Micro>()

  /**
   * @param sizeMax of a block, unless one charge is larger
   * @param now ms; only differences mean something
   */
  constructor(sizeMax: Micro, now: () => number) {
    this.#sizeMax = sizeMax
    this.#now = now
  }

  /** A charge of this size was made. */
  saw(account: AccountId, amount: Micro): void {
    const reservation = this.#blocks.get(account)
    if (reservation === undefined) {
      const before = this.#now()
      this.#blocks.set(account, { end: 0n, size: 0n, usedBefore: -1n, before, largest: amount })
    } else if (amount > reservation.largest) reservation.largest = amount
  }

  covers(account: AccountId, { used }: Spendable): boolean {
    return used <= (this.#blocks.get(account)?.end ?? 0n)
  }

  /** Less than half of the block is left, and it could be longer. */
  isLow(account: AccountId, { used, usedMax }: Spendable): boolean {
    const reservation = this.#blocks.get(account)
    if (reservation === undefined) return true
    if (this.#proposed.has(account) || reservation.end >= usedMax) return false
    return 2n * (reservation.end - used) < reservation.size
  }

  /** The end of the next block, to be committed; it is in force once {@link Blocks.committed} says so. */
  propose(account: AccountId, { used, usedMax }: Spendable): Micro {
    const reservation = this.#blocks.get(account)
    if (reservation === undefined) throw new Error('invariant: a block is made for charges')
    const now = this.#now()
    const elapsed = Math.max(RATE_OVER_MS, Math.ceil(now - reservation.before))
    const spent = reservation.usedBefore < 0n || used < reservation.usedBefore ? 0n : used - reservation.usedBefore
    const wanted = (spent * BigInt(RESERVATION_MS)) / BigInt(elapsed)
    // It shrinks by halves at most: a short pause is no reason to begin anew.
    const steady = wanted > reservation.size / 2n ? wanted : reservation.size / 2n
    const bounded = steady < this.#sizeMax ? steady : this.#sizeMax
    reservation.size = bounded > reservation.largest ? bounded : reservation.largest
    reservation.usedBefore = used
    reservation.before = now
    const end = used + reservation.size < usedMax ? used + reservation.size : usedMax
    const next = end > reservation.end ? end : reservation.end
    this.#proposed.set(account, next)
    return next
  }

  /** What was proposed stands in the journal. */
  committed(): void {
    for (const [account, end] of this.#proposed) {
      const reservation = this.#blocks.get(account)
      if (reservation !== undefined && end > reservation.end) reservation.end = end
    }
    this.#proposed.clear()
  }

  /** What was proposed does not stand in the journal. */
  failed(): void {
    this.#proposed.clear()
  }

  /** No charge goes beyond `usedMax` from here on: what is given up may not be spent by way of a block. */
  lower(account: AccountId, { usedMax }: Spendable): void {
    this.#proposed.delete(account)
    const reservation = this.#blocks.get(account)
    if (reservation !== undefined && reservation.end > usedMax) reservation.end = usedMax
  }

  /** Accounts whose block is longer than what was used of them, in here or on its way. */
  open(spendableOf: (account: AccountId) => Spendable): readonly AccountId[] {
    const isOpen = ([account, { end }]: [AccountId, OpenReservation]): boolean =>
      this.#proposed.has(account) || end > spendableOf(account).used
    return [...this.#blocks].filter(isOpen).map(([account]) => account)
  }

  /** Ends a block where its use stands; the journal is to be told. */
  close(account: AccountId): void {
    this.#proposed.delete(account)
    this.#blocks.delete(account)
  }

  clear(): void {
    this.#blocks.clear()
    this.#proposed.clear()
  }
}
