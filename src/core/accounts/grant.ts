/**
 * The arithmetic of grants. For each device epoch and account there are four counters that only grow: granted
 * (written by the cloud), used, refunded and returned (written by the device). Messages carry them as absolute values,
 * so a message that is lost, repeated or late can be stale but never wrong.
 */
import type { AccountId, Posting } from './account.ts'
import type { Micro } from '../pricing/amount.ts'

export interface Counters {
  readonly granted: Micro
  readonly used: Micro
  readonly refunded: Micro
  readonly returned: Micro
}

export const NO_COUNTERS: Counters = { granted: 0n, used: 0n, refunded: 0n, returned: 0n }

/** What the device may still spend: `G - R - U + F`. */
export function available(counters: Counters): Micro {
  return counters.granted - counters.returned - counters.used + counters.refunded
}

/**
 * How much of what is left is overdraft of the line item, at most: it is spent last.
 *
 * @param overdraft at most so many tokens, the last of `granted`
 */
export function overdraftLeft(counters: Counters, overdraft: Micro): Micro {
  const left = available(counters)
  if (left <= 0n) return 0n
  return left < overdraft ? left : overdraft
}

/** What the cloud must hold back for the device: `G - R`, whatever the device has spent of it. */
export function outstanding(counters: Counters): Micro {
  return counters.granted - counters.returned
}

/** What is billed: `U - F`. */
export function billed(counters: Counters): Micro {
  return counters.used - counters.refunded
}

/** True when no honest device could have these counters: negative, or more spent and returned than granted. */
export function impossible(counters: Counters): boolean {
  const { used, refunded, returned } = counters
  // With these, neither use nor grant can be negative.
  return refunded < 0n || refunded > used || returned < 0n || available(counters) < 0n
}

/** What a device would like to hold of one account in advance: burn rate x horizon. 0n: it only asks what the pool has. */
export interface TopUpRequest {
  readonly account: AccountId
  readonly wanted: Micro
}

/** What one waiting request would charge to each account: all of it, or none of it is of use. */
export type Need = readonly Posting[]

/** Sums postings by account, dropping nothing; the order is that of first mention. */
export function sumPostings(postings: Iterable<Posting>): Map<AccountId, Micro> {
  const sums = new Map<AccountId, Micro>()
  for (const { account, amount } of postings) sums.set(account, (sums.get(account) ?? 0n) + amount)
  return sums
}
