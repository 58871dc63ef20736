/**
 * The rules of one instance at one revision, as plain data: what an administrator wrote, with calendars already turned
 * into instants. It is what the cloud signs and the device stores; {@link compilePolicy} makes it fast to decide by.
 * Times are POSIX milliseconds; an open end is `null`.
 */
import type { Decimal, Micro } from '../pricing/amount.ts'

export interface Policy {
  readonly instanceId: string
  /** Rises by one with each change to anything in here; never reused. */
  readonly revision: number
  readonly lineItems: readonly LineItem[]
  readonly conditions: readonly NamedCondition[]
  readonly rateTables: readonly RateTable[]
  /** `timezone.tolerant`: widens every line item window by 12 h at both ends. */
  readonly timezoneTolerant: boolean
  /** What to do when the clock cannot tell whether a window is open: see {@link ClockReading}. */
  readonly undecidedClock: 'allow' | 'refuse'
}

export type LineItemState = 'DEPLOYED' | 'INACTIVE' | 'OBSOLETE'

export interface LineItem {
  readonly id: string
  readonly state: LineItemState
  readonly elastic: boolean
  /** Empty text: the sequence of tables without a series. */
  readonly rateTableSeries: string
  readonly startsAt: number
  readonly endsAt: number
  /** Whole tokens entitled, in micro-tokens. */
  readonly quantity: Micro
  /** Above the quantity; 0n for none. */
  readonly overdraft: Micro | 'UNLIMITED'
  /** Ordered, without gaps or overlap; a line item that is never reset has one that is open at both ends. */
  readonly periods: readonly Period[]
  readonly actions: readonly Action[]
  /** Per requester; null where none is set. */
  readonly consumptionLimit: ConsumptionLimit | null
  /** What a device does when its grant is used up and the cloud cannot be asked; absent: refuse. */
  readonly offline?: OfflinePolicy | undefined
}

/** Essential: may be spent above the grant, up to `overspendCap` on each device until its next contact. */
export type OfflinePolicy =
  { readonly policy: 'refuse' } | { readonly policy: 'essential'; readonly overspendCap: Micro }

/** A span of time with counters of its own. `from` is inclusive, `until` exclusive. */
export interface Period {
  readonly index: number
  readonly from: number | null
  readonly until: number | null
}

export interface Action {
  readonly id: string
  readonly name: string | null
  /** Null: the default action, taken when reached. */
  readonly conditionId: string | null
  readonly effect: 'ALLOW' | 'DENY'
  /** Null: no cap of its own (the default ALLOW, and every DENY). */
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
  /** Empty text: no series. */
  readonly series: string
  /** Informational; never used to select a table. */
  readonly version: string
  readonly effectiveFrom: number
  readonly items: readonly RatedItem[]
}

interface NamedItem {
  readonly name: string
  /** Empty text: no version; matches only a request without one. */
  readonly version: string
}

export interface FixedRateItem extends NamedItem {
  /** Tokens per unit of count, >= 0. */
  readonly rate: Decimal
  readonly formula?: never
}

export interface FormulaItem extends NamedItem {
  /** Text that `parseFormula` takes; its value is the rate. */
  readonly formula: string
  readonly rate?: never
}

export type RatedItem = FixedRateItem | FormulaItem

/** Nesting levels of a condition; more is refused at the edge and evaluates as an error. */
export const CONDITION_DEPTH_MAX = 10

/** `timezone.tolerant` widens a line item's window by this much at both ends. Source: interface, Configuration. */
export const TOLERANCE_MS = 12 * 60 * 60 * 1000
