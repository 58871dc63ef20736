/**
 * The words of a decision: what is asked, what is known, what comes out. Shared by the cloud, which decides over the
 * whole pool, and by the device, which decides over what the cloud has granted to it.
 */
import type { AccountId, Posting } from '../accounts/account.ts'
import type { Decimal, Micro } from '../pricing/amount.ts'
import type { FormulaFailure, Variables } from '../pricing/formula-rate.ts'

export interface Requester {
  readonly type: string
  readonly value: string
  /** What conditions look at; keys and values are the customer's own. */
  readonly dictionary: Readonly<Record<string, unknown>>
}

export interface RequestedItem {
  readonly name: string
  /** Empty text: no version. */
  readonly version: string
  /** Greater than zero. */
  readonly count: Decimal
  /** What the formulas of rate tables may name; absent where the request gives none. */
  readonly variables?: Variables
}

export interface AccessRequest {
  readonly requester: Requester
  readonly items: readonly RequestedItem[]
}

/**
 * What is known of the time, in POSIX milliseconds: the best estimate, and an interval that surely holds the true time.
 * A host that trusts its clock gives the same instant three times; `latest` is null where nothing bounds it.
 */
export interface ClockReading {
  readonly now: number
  readonly earliest: number
  readonly latest: number | null
}

/** A reading of a clock that is trusted. */
export function exactly(now: number): ClockReading {
  return { now, earliest: now, latest: now }
}

/**
 * Why an account cannot give more: the pool itself is used up (only the cloud, or its signed word, can say so), this device's
 * grant is, the grant has expired, or the cloud was restored from a backup and withholds what may have been sold before.
 */
export type Shortage = 'POOL' | 'GRANT' | 'GRANT_EXPIRED' | 'RECOVERY'

/** What an account can still give, and what it means when that is not enough. */
export interface AvailableBalance {
  readonly left: Micro | 'UNLIMITED'
  readonly shortage: Shortage
  /** What may be spent beyond `left` by the offline policy of the line item, once nothing else can pay. Absent: nothing. */
  readonly overspend?: Micro
}

/** Answers for one moment: the same account gives the same room until the decision's postings are applied. */
export type AvailableOf = (account: AccountId) => AvailableBalance

/**
 * Why an item was refused, in the order of the checks: the first check that fails names the reason. The last three take the
 * place of a capacity check where a device's grant, and not the pool, is what ran out, or where the pool may hold enough and
 * the cloud, restored from a backup, does not know it.
 */
export type RefusalReason =
  | 'ITEM_NOT_RATED'
  | 'NO_USABLE_LINE_ITEM'
  | 'CLOCK_UNDECIDED'
  | 'FORMULA_FAILED'
  | 'DENIED_BY_RULE'
  | 'INSUFFICIENT_TOKENS'
  | 'ALLOCATION_EXHAUSTED'
  | 'CONSUMPTION_LIMIT_REACHED'
  | 'GRANT_EXHAUSTED'
  | 'GRANT_EXPIRED'
  | 'POOL_IN_RECOVERY'

/** The share of one charge that one line item pays. */
export interface ChargeShare {
  readonly lineItemId: string
  readonly rate: Decimal
  /** The action that allowed it; null where the line item has no actions. */
  readonly actionId: string | null
  readonly charged: Micro
}

/** Why one line item could not serve an item, with the numbers that decided. */
export interface RejectionDetail {
  readonly lineItemId: string
  readonly why:
    | 'NOT_ELASTIC'
    | 'NOT_DEPLOYED'
    | 'NOT_STARTED'
    | 'ENDED'
    | 'CLOCK_UNDECIDED'
    | 'SERIES_DOES_NOT_RATE_ITEM'
    /** No rate table of the line item's series is in effect. */
    | 'SERIES_HAS_NO_TABLE'
    | 'NO_PERIOD'
    | FormulaFailure
    | 'RULE_DENIES'
    | 'NO_RULE_MATCHES'
    | 'RULE_ERROR'
    | 'TOO_FEW_TOKENS'
    | 'ALLOCATION_TOO_SMALL'
    | 'LIMIT_TOO_SMALL'
  /** The action that decided, where one did. */
  readonly actionId?: string
  /** For the last three: what the account would have had to give, and what it had. */
  readonly account?: AccountId
  readonly needed?: Micro
  readonly left?: Micro
}

export type ItemOutcome =
  | { readonly outcome: 'GRANTED'; readonly shares: readonly ChargeShare[]; readonly total: Micro }
  | {
      readonly outcome: 'REFUSED'
      readonly reason: RefusalReason
      /** At most {@link REJECTION_DETAILS_MAX}. */
      readonly rejectionDetails: readonly RejectionDetail[]
    }
  /** A valid item of an all-or-nothing request that another item made fail. */
  | { readonly outcome: 'NOT_CHARGED' }

export const REJECTION_DETAILS_MAX = 16

/** Something that the caller should know about a grant, without it being a refusal. */
export type Warning =
  | 'CLOCK_UNDECIDED_ALLOWED'
  /** Some of it was paid by the offline policy of an essential line item. */
  | 'ESSENTIAL_OFFLINE'

export interface Decision {
  /** In the order of the request. */
  readonly items: readonly ItemOutcome[]
  /** Merged by account; empty when nothing is charged. Apply all of them, in one transaction, or none. */
  readonly postings: readonly Posting[]
  readonly warnings: readonly Warning[]
}
