/**
 * The rules of one instance at one revision as plain data, with calendars already converted to instants. The cloud
 * signs it and the device stores it. `null`: open.
 */
import { type AccountId, parseAccount } from '../accounts/account.ts'
import type { Decimal, Micro } from '../pricing/amount.ts'

export interface Policy {
  readonly instanceId: string
  /** Rises by one with each change; never reused. */
  readonly revision: number
  readonly lineItems: readonly LineItem[]
  readonly conditions: readonly NamedCondition[]
  readonly rateTables: readonly RateTable[]
  readonly timezoneTolerant: boolean
  readonly undecidedClock: 'allow' | 'refuse'
}

export type LineItemState = 'DEPLOYED' | 'INACTIVE' | 'OBSOLETE'

export interface LineItem {
  readonly id: string
  readonly state: LineItemState
  readonly elastic: boolean
  readonly rateTableSeries: string
  readonly startsAt: number
  readonly endsAt: number
  readonly quantity: Micro
  readonly overdraft: Micro | 'UNLIMITED'
  /** Ascending, without gaps or overlap; a line item without resets has one period, open at both ends. */
  readonly periods: readonly Period[]
  readonly actions: readonly Action[]
  readonly consumptionLimit: ConsumptionLimit | null
  /** Behavior when the grant is used up and the cloud is unreachable; absent: refuse. */
  readonly offline?: OfflinePolicy | undefined
}

/** Essential: use may exceed the grant, up to `overspendCap` per device until its next contact. */
export type OfflinePolicy =
  { readonly policy: 'refuse' } | { readonly policy: 'essential'; readonly overspendCap: Micro }

/** A time span with its own counters. `from` is inclusive, `until` exclusive. */
export interface Period {
  readonly index: number
  readonly from: number | null
  readonly until: number | null
}

export interface Action {
  readonly id: string
  readonly name: string | null
  /** Null: the default action, which decides if no condition is met. */
  readonly conditionId: string | null
  readonly effect: 'ALLOW' | 'DENY'
  /** Null: no cap (the default ALLOW, and every DENY). */
  readonly allocation: Micro | null
}

export interface ConsumptionLimit {
  readonly limit: Micro
  readonly periods: readonly Period[]
}

export type NamedCondition = Condition & { readonly id: string; readonly name: string | null }

export type Condition =
  | { readonly operator: 'AND' | 'OR'; readonly conditions: readonly Condition[] }
  | { readonly operator: 'NOT'; readonly condition: Condition }
  | { readonly operator: 'IN'; readonly property: string; readonly values: readonly string[] }

export interface RateTable {
  readonly series: string
  /** Informational; never used to select a table. */
  readonly version: string
  readonly effectiveFrom: number
  readonly items: readonly RatedItem[]
}

interface NamedItem {
  readonly name: string
  /** Empty: no version; matches only requests without one. */
  readonly version: string
}

export interface FixedRateItem extends NamedItem {
  /** Tokens per unit of count, >= 0. */
  readonly rate: Decimal
  readonly formula?: never
}

export interface FormulaItem extends NamedItem {
  readonly formula: string
  readonly rate?: never
}

export type RatedItem = FixedRateItem | FormulaItem

export const CONDITION_DEPTH_MAX = 10

/** `timezone.tolerant` widens a line item's window by this much at both ends. Source: interface, Configuration. */
export const TOLERANCE_MS = 12 * 60 * 60 * 1000

/** Only the pool of a line item can be unlimited, never an allocation or a consumption limit. */
export function isUnlimitedBy({ instanceId, lineItems }: Policy, account: AccountId): boolean {
  const parsed = parseAccount(account)
  if (parsed?.kind !== 'line' || parsed.instanceId !== instanceId) return false
  return lineItems.find(({ id }) => id === parsed.lineItemId)?.overdraft === 'UNLIMITED'
}
