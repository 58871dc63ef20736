/**
 * Each account of a device epoch has four counters that only grow: granted (written by the cloud), used, refunded and
 * returned (by the device). Messages carry absolute values, so a late message can be stale but never wrong.
 */
import type { AccountId, Posting } from './account.ts'
import { MICRO_MAX, type Micro, wholeTokens } from '../pricing/amount.ts'

export interface Counters {
  readonly granted: Micro
  readonly used: Micro
  readonly refunded: Micro
  readonly returned: Micro
}

export const NO_COUNTERS: Counters = { granted: 0n, used: 0n, refunded: 0n, returned: 0n }

export function available(counters: Counters): Micro {
  return counters.granted - counters.returned - counters.used + counters.refunded
}

/** The most that one decision charges to an account without a limit: an absurd count must not fill its counter. */
export const METERED_CHARGE_MAX: Micro = wholeTokens(1_000_000_000)

/** The most that one epoch counts of such an account. */
export const METERED_MAX: Micro = MICRO_MAX / 16n

/** The most that all epochs of a device count of it, so that the pool's counter also has space for other devices. */
export const METERED_OF_DEVICE_MAX: Micro = MICRO_MAX / 4n

/** The cloud stops charging when so much is charged and outstanding: no single device can stop it. */
export const METERED_OF_POOL_MAX: Micro = MICRO_MAX / 2n

/** What one decision can charge to an account without a limit. */
export function meteredLeft(counted: Micro, most: Micro = METERED_MAX): Micro {
  const left = most - counted
  if (left <= 0n) return 0n
  return left < METERED_CHARGE_MAX ? left : METERED_CHARGE_MAX
}

/** The most that can be left of the overdraft: it is the last part of `granted`, and is spent last. */
export function overdraftLeft(counters: Counters, overdraft: Micro): Micro {
  const left = available(counters)
  if (left <= 0n) return 0n
  return left < overdraft ? left : overdraft
}

/** What the cloud must reserve for the device: `G - R`, whatever was used of it. */
export function outstanding(counters: Counters): Micro {
  return counters.granted - counters.returned
}

export function billed(counters: Counters): Micro {
  return counters.used - counters.refunded
}

/** True when no honest device could have these counters. */
export function impossible(counters: Counters): boolean {
  const { used, refunded, returned } = counters
  // Then neither use nor grant can be negative.
  return refunded < 0n || refunded > used || returned < 0n || available(counters) < 0n
}

/** A device's target balance of one account: burn rate x horizon. 0n: only query the pool. */
export interface TopUpRequest {
  readonly account: AccountId
  readonly wanted: Micro
}

/** A waiting request's charges by account; only useful in full. */
export type Need = readonly Posting[]

/** What a device asks for with a segment. */
export interface TopUps {
  readonly topUpRequests: readonly TopUpRequest[]
  readonly needs: readonly Need[]
}

export const NO_TOP_UPS: TopUps = { topUpRequests: [], needs: [] }

/** By account, in sequence of first use; keeps zero sums. */
export function sumPostings(postings: Iterable<Posting>): Map<AccountId, Micro> {
  const sums = new Map<AccountId, Micro>()
  for (const { account, amount } of postings) sums.set(account, (sums.get(account) ?? 0n) + amount)
  return sums
}
