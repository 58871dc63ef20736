/**
 * An account may be charged up to the end of its reservation without a flush, and a power cut costs at most the rest.
 * Invariant: an end in memory is never above the journal's. It rises after a commit, and falls before one.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'

/** Target duration of a reservation at the account's spending rate, ms. */
const RESERVATION_MS = 2_000

/** Shortest time over which a rate is measured, ms. */
const RATE_OVER_MS = 100

interface OpenReservation {
  /** No flush is needed while `used` is at most this. */
  end: Micro
  size: Micro
  /** `used` at the last commit that extended it, and the time of that commit. */
  usedBefore: Micro
  before: number
  largest: Micro
}

export interface Spendable {
  readonly used: Micro
  readonly usedMax: Micro
}

export class Reservations {
  readonly #sizeMax: Micro
  readonly #now: () => number
  readonly #reservations = new Map<AccountId, OpenReservation>()
  /** Their next ends, never below those in force. */
  readonly #proposed = new Map<OpenReservation, Micro>()

  /** @param sizeMax unless one charge is larger. @param now monotonic, ms */
  constructor(sizeMax: Micro, now: () => number) {
    this.#sizeMax = sizeMax
    this.#now = now
  }

  saw(account: AccountId, amount: Micro): void {
    const reservation = this.#reservations.get(account)
    if (reservation === undefined) {
      const before = this.#now()
      this.#reservations.set(account, { end: 0n, size: 0n, usedBefore: -1n, before, largest: amount })
    } else if (amount > reservation.largest) reservation.largest = amount
  }

  covers(account: AccountId, { used }: Spendable): boolean {
    return used <= (this.#reservations.get(account)?.end ?? 0n)
  }

  isLow(account: AccountId, { used, usedMax }: Spendable): boolean {
    const reservation = this.#reservations.get(account)
    if (reservation === undefined) return true
    if (this.#proposed.has(reservation) || reservation.end >= usedMax) return false
    return 2n * (reservation.end - used) < reservation.size
  }

  /** The next end to commit, in force after {@link Reservations.committed}. */
  propose(account: AccountId, { used, usedMax }: Spendable): Micro {
    const reservation = this.#reservations.get(account)
    if (reservation === undefined) throw new Error('invariant: a reservation is proposed for charges')
    const now = this.#now()
    const elapsed = Math.max(RATE_OVER_MS, Math.ceil(now - reservation.before))
    const spent = reservation.usedBefore < 0n || used < reservation.usedBefore ? 0n : used - reservation.usedBefore
    const wanted = (spent * BigInt(RESERVATION_MS)) / BigInt(elapsed)
    // Shrinks by half at most, so that a short pause does not reset it.
    const steady = wanted > reservation.size / 2n ? wanted : reservation.size / 2n
    const bounded = steady < this.#sizeMax ? steady : this.#sizeMax
    reservation.size = bounded > reservation.largest ? bounded : reservation.largest
    reservation.usedBefore = used
    reservation.before = now
    const end = used + reservation.size < usedMax ? used + reservation.size : usedMax
    const next = end > reservation.end ? end : reservation.end
    this.#proposed.set(reservation, next)
    return next
  }

  committed(): void {
    for (const [reservation, end] of this.#proposed) reservation.end = end
    this.#proposed.clear()
  }

  failed(): void {
    this.#proposed.clear()
  }

  /** Caps the reservation at `usedMax`, so that returned tokens cannot be spent through it. */
  lower(account: AccountId, { usedMax }: Spendable): void {
    const reservation = this.#reservations.get(account)
    if (reservation === undefined) return
    this.#proposed.delete(reservation)
    if (reservation.end > usedMax) reservation.end = usedMax
  }

  open(spendableOf: (account: AccountId) => Spendable): readonly AccountId[] {
    const isOpen = ([account, reservation]: [AccountId, OpenReservation]): boolean =>
      this.#proposed.has(reservation) || reservation.end > spendableOf(account).used
    return [...this.#reservations].filter(isOpen).map(([account]) => account)
  }

  /** Ends a reservation at the current use, in memory only. */
  close(account: AccountId): void {
    const reservation = this.#reservations.get(account)
    if (reservation !== undefined) this.#proposed.delete(reservation)
    this.#reservations.delete(account)
  }

  clear(): void {
    this.#reservations.clear()
    this.#proposed.clear()
  }
}
