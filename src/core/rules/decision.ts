/** Inputs and results of a decision on whole pools (cloud) or grants (device). */
import type { AccountId, Posting } from '../accounts/account.ts'
import type { Decimal, Micro } from '../pricing/amount.ts'
import type { FormulaFailure, Variables } from '../pricing/formula-rate.ts'
import type { RefusalReason } from './refusal-reasons.ts'

export interface Requester {
  readonly type: string
  readonly value: string
  readonly dictionary: Readonly<Record<string, unknown>>
}

export interface RequestedItem {
  readonly name: string
  readonly version: string
  readonly count: Decimal
  readonly variables?: Variables
}

export interface AccessRequest {
  readonly requester: Requester
  readonly items: readonly RequestedItem[]
}

/** Best estimate, and an interval that contains the true time; `latest` null: unbounded. */
export interface ClockReading {
  readonly now: number
  readonly earliest: number
  readonly latest: number | null
}

export function exactly(now: number): ClockReading {
  return { now, earliest: now, latest: now }
}

/**
 * Why an account cannot give more. GRANT: the device's part of the pool is used up. DEVICE_REFUSED: the same, and the
 * cloud refuses the device. RECOVERY: the cloud was restored from a backup and withholds tokens that may have been sold.
 * COUNTER: the account has no limit, and `left` is what its counter can still count.
 */
export type Shortage = 'POOL' | 'GRANT' | 'GRANT_EXPIRED' | 'DEVICE_REFUSED' | 'RECOVERY' | 'COUNTER'

export interface AvailableBalance {
  readonly left: Micro | 'UNLIMITED'
  readonly shortage: Shortage
  /** Spendable beyond `left` by the offline policy, once nothing else can pay. Absent: nothing. */
  readonly overspend?: Micro
}

/** Returns the same balance for an account until the decision's postings are applied. */
export type AvailableOf = (account: AccountId) => AvailableBalance

export interface ChargeShare {
  readonly lineItemId: string
  readonly rate: Decimal
  /** The action that allowed it; null: the line item has no actions. */
  readonly actionId: string | null
  readonly charged: Micro
}

export interface RejectionDetail {
  readonly lineItemId: string
  readonly why:
    | 'NOT_ELASTIC'
    | 'NOT_DEPLOYED'
    | 'NOT_STARTED'
    | 'ENDED'
    | 'CLOCK_UNDECIDED'
    | 'SERIES_DOES_NOT_RATE_ITEM'
    | 'SERIES_HAS_NO_TABLE'
    | 'NO_PERIOD'
    | FormulaFailure
    | 'RULE_DENIES'
    | 'NO_RULE_MATCHES'
    | 'RULE_ERROR'
    | 'TOO_FEW_TOKENS'
    | 'ALLOCATION_TOO_SMALL'
    | 'LIMIT_TOO_SMALL'
  readonly actionId?: string
  /** For the last three reasons: the account, its required and its actual balance. */
  readonly account?: AccountId
  readonly needed?: Micro
  readonly left?: Micro
}

export type ItemOutcome =
  | { readonly outcome: 'GRANTED'; readonly shares: readonly ChargeShare[]; readonly total: Micro }
  | {
      readonly outcome: 'REFUSED'
      readonly reason: RefusalReason
      readonly rejectionDetails: readonly RejectionDetail[]
    }
  /** Another item made the all-or-nothing request fail. */
  | { readonly outcome: 'NOT_CHARGED' }

export const REJECTION_DETAILS_MAX = 16

export type Warning = 'CLOCK_UNDECIDED_ALLOWED' | 'ESSENTIAL_OFFLINE'

export interface Decision {
  readonly items: readonly ItemOutcome[]
  /** Merged by account; empty: nothing is charged. Apply all in one transaction. */
  readonly postings: readonly Posting[]
  readonly warnings: readonly Warning[]
}

export function allGranted({ items }: Pick<Decision, 'items'>): boolean {
  return items.every(({ outcome }) => outcome === 'GRANTED')
}

export function noneGranted({ items }: Pick<Decision, 'items'>): boolean {
  return items.every(({ outcome }) => outcome !== 'GRANTED')
}

export function tokensOf({ items }: Pick<Decision, 'items'>): Micro {
  return items.reduce((sum, item) => (item.outcome === 'GRANTED' ? sum + item.total : sum), 0n)
}
