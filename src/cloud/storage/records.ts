/**
 * What the twin keeps, in domain words: the shapes that cross the store port. Instants are POSIX milliseconds, amounts
 * micro-tokens; null means that there is none. A record is never changed in place: the store takes a new one.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Decimal, Micro } from '../../core/pricing/amount.ts'
import type { Action, LineItemState, RateTable } from '../../core/rules/policy.ts'

export interface Instance {
  readonly id: string
  readonly shortName: string
  readonly accountId: string
  readonly defaultInstance: boolean
  readonly created: number
  readonly modified: number
}

export type ResetFrequency = 'NONE' | 'DAILY' | 'WEEKLY' | 'MONTHLY' | 'YEARLY'

/**
 * How a line item's periods are numbered: the period that holds `firstAt` has the number `first` and reaches back without
 * end, the one after it has the number `next`, and each later one the number after that. Devices may hold older calendars of the
 * line item. A number that is in several of them names the one period in which the calendar was changed.
 */
export interface Calendar {
  readonly frequency: ResetFrequency
  readonly first: number
  readonly firstAt: number
  readonly next: number
}

export interface LineItemRecord {
  readonly instanceId: string
  /** The activation id. */
  readonly id: string
  readonly state: LineItemState
  readonly quantity: Micro
  readonly start: number
  readonly end: number
  readonly elastic: boolean
  /** Empty text: the sequence of tables without a series. Null: not given, which means the same. */
  readonly rateTableSeries: string | null
  readonly overdraftType: 'Number' | 'Unlimited' | null
  readonly overdraftLimit: Micro | null
  /** As given; null where it was not. */
  readonly resetFrequency: ResetFrequency | null
  readonly calendar: Calendar
  readonly created: number
  readonly modified: number
  /** Deleted: neither listed nor in the policy; kept because its accounts, and sessions that it pays, outlive it. */
  readonly deleted: number | null
}

export interface LineItemActions {
  readonly lineItemId: string
  readonly actions: readonly Action[]
}

/** A condition with the ids and names that the API shows at every level. It is a condition of core as it stands. */
export type ConditionNode = { readonly id: string; readonly name: string | null } & (
  | { readonly operator: 'AND' | 'OR'; readonly conditions: readonly ConditionNode[] }
  | { readonly operator: 'NOT'; readonly condition: ConditionNode }
  | { readonly operator: 'IN'; readonly property: string; readonly values: readonly string[] }
)

export interface RateTableRecord extends RateTable {
  readonly created: number
}

export interface ConsumptionLimitRecord {
  readonly instanceId: string
  readonly lineItemId: string
  /** Null: removed; kept because the numbers of its periods must not come again. */
  readonly limit: Micro | null
  readonly frequency: Exclude<ResetFrequency, 'NONE'>
  readonly nextReset: number
  /** Number of the period that ends at `nextReset` and reaches back without end. */
  readonly first: number
}

export type KeyType = 'administration-key' | 'client-key'

/** A registered public key. It verifies from `activeFrom` on; until then `previousPem`, if any, does. */
export interface KeyRecord {
  readonly type: KeyType
  readonly id: string
  readonly pem: string
  readonly activeFrom: number
  readonly previousPem: string | null
  /** Deleted: verifies until then, and is not listed. */
  readonly retiresAt: number | null
  readonly created: number
  readonly modified: number
}

export interface ConfigurationValue {
  readonly name: string
  readonly value: string
  readonly modified: number
  /** Key id of the token that changed it. */
  readonly updatedBy: string
}

/**
 * One account of the cloud. Invariant, also held by the database: `charged + grantedOut <= capInForce`.
 * Change it only by the functions of `pool.ts`.
 */
export interface Pool {
  readonly account: AccountId
  /** What the cloud itself charged, less what it refunded. */
  readonly charged: Micro
  /** Sum of granted less returned over all device epochs. */
  readonly grantedOut: Micro
  /** Sum of used less refunded over all device epochs, as reported. */
  readonly billedByDevices: Micro
  /** All that was ever charged or granted here; refunds and returns leave it as it is. Stops at the largest counter. */
  readonly sold: Micro
  /** Sold or granted after the backup from which the twin was restored, as far as nothing else on record accounts for it. */
  readonly withheld: Micro
  /** Null: metered only. */
  readonly capTarget: Micro | null
  /** Above the target only by what was out when the target was lowered. */
  readonly capInForce: Micro | null
  /** The highest target so far, where there was one: devices can have spent by any of them. */
  readonly capHighest: Micro
}

/** Columns of the usage record. Source: documentation on usage data. */
export interface UsageRecord {
  readonly correlationId: string
  readonly usageTime: number
  readonly writeTime: number
  readonly requesterType: string
  readonly requesterValue: string
  readonly accountId: string
  readonly instanceId: string
  /** Null where the request was refused, as are the two that follow. */
  readonly activationId: string | null
  /** The line item's quantity. */
  readonly quantity: Micro | null
  /** The line item's running total after this row. */
  readonly used: Micro | null
  readonly item: string
  readonly version: string
  readonly count: Decimal
  readonly operation: UsageOperation
  /** `GRANTED`, `REFUNDED`, `NOT_CHARGED`, `BURNED`, or the reason of the refusal. */
  readonly status: string
  /** Negative for a refund. */
  readonly tokens: Micro
  readonly source: UsageSource
  /** JSON text as the requester gave it. */
  readonly metaData: string | null
}

/**
 * What was done: a request that somebody made, the charge of another interval of a session, a refund, what a power cut may
 * have cost a device at most, which is billed but is no use, or what a silent device held counted as used.
 */
export type UsageOperation = 'REQUEST' | 'AUTOMATIC_CHARGE' | 'REFUND' | 'BURN' | 'SETTLEMENT'

export type UsageSource =
  | { readonly kind: 'one-off' }
  | { readonly kind: 'session'; readonly sessionId: string }
  | {
      readonly kind: 'device'
      readonly deviceId: string
      readonly epoch: number
      /** 0: none, it is presumed. */
      readonly entry: number
      /** The session that the device keeps; absent for a one-off request. */
      readonly sessionId?: string
    }

export interface PolicyRevision {
  readonly instanceId: string
  readonly revision: number
  /** When the rules were raised last: their calendars are listed from there. */
  readonly bumpedAt: number
  /** The latest instant from which calendars were ever listed: their numbers are taken. Later than `raisedAt` where the clock went back. */
  readonly listedAt: number
  /** When the calendar in the policy must be carried on, which raises the revision; null: never. */
  readonly calendarDue: number | null
}

/** A change notification to be published: says "look", never "what". */
export type ChangeNotification =
  | { readonly kind: 'policy'; readonly instanceId: string; readonly revision: number }
  | { readonly kind: 'device'; readonly deviceId: string; readonly reason: 'session' | 'sync' }

export interface OutboxMessage {
  /** Rises in the order of writing. */
  readonly id: bigint
  readonly notification: ChangeNotification
}

/** When the wall clock of a node was last trusted. */
export interface ClockRecord {
  /** POSIX ms. */
  readonly at: number
  readonly sinceBoot: number
  readonly bootId: string
}
