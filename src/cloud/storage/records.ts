/**
 * Records of the store port, in domain terms. Instants are POSIX ms, amounts micro-tokens; null: none. Records are
 * immutable.
 */
import type { EventType } from '../../protocol/edge/events.ts'
import type { Role } from '../../protocol/service/keys.ts'
import type { AccountId } from '../../core/accounts/account.ts'
import type { Decimal, Micro } from '../../core/pricing/amount.ts'
import type { Action, LineItemState, RateTable } from '../../core/rules/policy.ts'
import type { SessionState } from '../../core/sessions/session.ts'
import type { GivenIntegers } from '../../protocol/service/line-items.ts'

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
 * Numbers of a line item's periods: the one that contains `firstAt` is `first` and open to the past, then `next`, and
 * so on. A number in several calendars is the period during which the calendar changed.
 */
export interface Calendar {
  readonly frequency: ResetFrequency
  readonly first: number
  readonly firstAt: number
  readonly next: number
}

/** Which cell a database is. */
export interface CellRecord {
  readonly name: string
  /** Rate tables, keys and configuration are changed in this cell. */
  readonly isControl: boolean
  /** Id that the control cell gave to the cloud: the same in all its cells. */
  readonly cloudId: string
}

export interface LineItemRecord {
  readonly instanceId: string
  readonly id: string
  readonly state: LineItemState
  readonly quantity: Micro
  readonly start: number
  readonly end: number
  readonly elastic: boolean
  /** Empty: tables without a series. Null: not given, same meaning. */
  readonly rateTableSeries: string | null
  readonly overdraftType: 'Number' | 'Unlimited' | null
  readonly overdraftLimit: Micro | null
  /** As given; null: not given. */
  readonly resetFrequency: ResetFrequency | null
  /** Shown in place of the reduced numbers. */
  readonly given: GivenIntegers
  readonly calendar: Calendar
  readonly created: number
  readonly modified: number
  /** Deletion time: not listed and not in the policy; kept for its accounts and the sessions charged to it. */
  readonly deleted: number | null
}

/** The answer to a request with an idempotency key. */
export interface StoredAnswer {
  /** Digest of the caller, the instance and the key. */
  readonly scope: string
  readonly requestHash: string
  /** JSON text. */
  readonly answer: string
  /** POSIX ms. */
  readonly created: number
}

export interface LineItemActions {
  readonly lineItemId: string
  readonly actions: readonly Action[]
}

/** A core condition plus the ids and names that the API shows. */
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
  /** Null: removed; kept because its period numbers must not be reused. */
  readonly limit: Micro | null
  readonly frequency: Exclude<ResetFrequency, 'NONE'>
  readonly nextReset: number
  /** Number of the period that ends at `nextReset` and is open to the past. */
  readonly first: number
}

export type KeyType = 'administration-key' | 'client-key'

/** A public key, and what the tokens that it verifies may do. */
export interface KeyVersion {
  readonly name: string | null
  /** Of an administration key; null: all. */
  readonly roles: readonly Role[] | null
  /** That the key is limited to, lower case; null: all. */
  readonly instances: readonly string[] | null
  readonly pem: string
}

/** Verifies from `activeFrom`; before that, `previous` does, if any. */
export interface KeyRecord extends KeyVersion {
  readonly type: KeyType
  readonly id: string
  readonly activeFrom: number
  /** In force until `activeFrom`. */
  readonly previous: KeyVersion | null
  /** Deleted: verifies until then, and is not listed. */
  readonly retiresAt: number | null
  readonly created: number
  readonly modified: number
}

export interface ConfigurationValue {
  readonly name: string
  readonly value: string
  readonly modified: number
  readonly updatedBy: string
}

/**
 * One account. Invariant, also checked by the database: `charged + grantedOut <= capInForce`. Change it only with
 * `pool.ts`.
 */
export interface Pool {
  readonly account: AccountId
  readonly charged: Micro
  readonly grantedOut: Micro
  /** The part of it that no grant on record explains: copies used it, or a restored cloud has forgotten the grant. */
  readonly claimed: Micro
  readonly billedByDevices: Micro
  /** Total ever charged or granted; refunds and returns do not reduce it. Saturates. */
  readonly sold: Micro
  /** Sold after the backup of a restored cloud and not yet accounted for. */
  readonly withheld: Micro
  /** Null: metered only. */
  readonly capTarget: Micro | null
  /** Above the target only while more is in use than a lowered target. */
  readonly capInForce: Micro | null
  /** The highest target ever: devices may have spent by any of them. */
  readonly capHighest: Micro
}

/** Source: documentation on usage data. */
export interface UsageRecord {
  readonly correlationId: string
  readonly usageTime: number
  readonly writeTime: number
  readonly requesterType: string
  readonly requesterValue: string
  readonly accountId: string
  readonly instanceId: string
  readonly activationId: string | null
  readonly quantity: Micro | null
  readonly used: Micro | null
  readonly item: string
  readonly version: string
  readonly count: Decimal
  /** Tokens per unit of count; absent if nothing was charged, or it is not known. */
  readonly rate?: Decimal
  readonly operation: UsageOperation
  /** `GRANTED`, `REFUNDED`, `NOT_CHARGED`, `BURNED`, or the refusal's reason. */
  readonly status: string
  readonly tokens: Micro
  readonly source: UsageSource
  readonly metaData: string | null
}

/**
 * A client's request, a session's automatic charge, a refund, the upper bound of a power cut's loss (billed, but no
 * usage), or an inactive device's tokens presumed used.
 */
export type UsageOperation = 'REQUEST' | 'AUTOMATIC_CHARGE' | 'REFUND' | 'BURN' | 'SETTLEMENT'

export type UsageSource =
  | { readonly kind: 'one-off' }
  | { readonly kind: 'session'; readonly sessionId: string }
  | {
      readonly kind: 'device'
      readonly deviceId: string
      readonly epoch: number
      /** 0: presumed, without an entry. */
      readonly entry: number
      readonly sessionId?: string
    }

export interface PolicyRevision {
  readonly instanceId: string
  readonly revision: number
  /** Time of the last bump, from which calendars are listed. */
  readonly bumpedAt: number
  /**
   * The latest instant from which calendars were listed: their numbers are taken. After `bumpedAt` if the clock went
   * back.
   */
  readonly listedAt: number
  /** When the calendars must be extended by a bump; null: never. */
  readonly calendarDue: number | null
  /** Version of the cloud's engine at the last bump. */
  readonly engine: number
}

/** A request to look at something; carries no content. */
export type ChangeNotification =
  | { readonly kind: 'policy'; readonly instanceId: string; readonly revision: number }
  | { readonly kind: 'device'; readonly deviceId: string; readonly reason: 'session' | 'sync' }

export interface OutboxMessage {
  /** Ascending in write sequence. */
  readonly id: bigint
  readonly notification: ChangeNotification
}

export interface ClockRecord {
  readonly at: number
  readonly sinceBoot: number
  readonly bootId: string
}

/** Time by the clock that may not have passed: the cloud was off, or the clock jumped. No response gets older by it. */
export interface ClockGap {
  readonly since: number
  readonly until: number
}

/**
 * Positions of one row of the store, which has the records of a transaction, or of a device's segment: more than a segment can
 * hold, where each needs at least 68 bytes.
 */
export const USAGE_ROW_POSITIONS = 1n << 17n

/** Number of the row that has this position. */
export function rowOfPosition(position: bigint): bigint {
  return (position + USAGE_ROW_POSITIONS - 1n) / USAGE_ROW_POSITIONS
}

export interface UsageRange {
  /** Position of a record, ascending in write sequence. Exclusive. */
  readonly after: bigint
  readonly upTo: bigint
  readonly instanceId: string | null
  /** Usage time, POSIX ms: from inclusive, to exclusive. */
  readonly from: number | null
  readonly to: number | null
  /** Of a step. There can be more: the records of a segment come together. */
  readonly limit: number
  /** Also computes {@link NumberedUsage.entry}. */
  readonly entries?: true
}

/** What one read looks at: so little that nothing else waits long. It can find no record although there are others. */
export interface UsageStep {
  readonly records: readonly NumberedUsage[]
  /** Positions up to it were looked at. */
  readonly end: bigint
}

export interface NewestUsage extends Pick<UsageRange, 'instanceId' | 'from' | 'to' | 'limit'> {
  /** Null: from the newest on. */
  readonly upTo: bigint | null
  readonly search?: UsageSearch
}

/** Which records of a range are wanted. What `fits` compares requires that rows are unpacked. */
export interface UsageSearch {
  readonly deviceId?: string
  /** Only rows with refusals are unpacked. */
  readonly isRefused?: true
  readonly fits: (record: UsageRecord) => boolean
}

/** As {@link UsageStep}, from the newest on. */
export interface NewestStep {
  readonly records: readonly NumberedUsage[]
  /** What is left to look at: positions up to one, which were written by an instant, POSIX ms. Null: nothing. */
  readonly rest: { readonly upTo: bigint; readonly writtenBy: number } | null
}

/** Records that an archive contains, and that the store no longer has. */
export interface UsageArchive {
  /** Positions: after the one, up to the other. */
  readonly after: bigint
  readonly upTo: bigint
  readonly records: number
  /** The latest use, POSIX ms, without {@link usedAhead}. */
  readonly latestUse: number
  /** The use that devices date more than a day after its record was written; null: none. */
  readonly usedAhead: { readonly from: number; readonly to: number } | null
  /** Directory or `s3://` address. */
  readonly place: string
  /** Name of its manifest in the place, and the manifest's SHA-256. */
  readonly manifest: string
  readonly sha256: string
  readonly archivedAt: number
}

/** One process archives at a time. */
export interface Archiving {
  /** Names the process; null: none. */
  readonly holder: string | null
  readonly seenAt: number
  /** The archive that was begun; null: none. */
  readonly planned: { readonly place: string; readonly upTo: bigint } | null
  /** When a run last archived everything that was due; null: never. */
  readonly finishedAt: number | null
}

export interface NumberedUsage {
  readonly position: bigint
  readonly record: UsageRecord
  /** With {@link UsageRange.entries}, of a device's entry: its hash, and the number of the record among those of the entry. */
  readonly entry?: { readonly hash: string; readonly part: number }
}

/** A change of which sinks send an event. */
export interface EventRecord {
  /** The same change always has the same id, even if a restored cloud sees it again. At most 1,000 characters. */
  readonly id: string
  readonly type: EventType
  readonly at: number
  /** Null: of several instances, or none. */
  readonly instanceId: string | null
  readonly deviceId: string | null
  /** JSON. */
  readonly data: Readonly<Record<string, unknown>>
}

export interface NumberedEvent {
  /** Among those of usage records. */
  readonly position: bigint
  readonly event: EventRecord
}

export interface EventFilter {
  readonly instanceId?: string | undefined
  readonly deviceId?: string | undefined
  readonly type?: EventType | undefined
  readonly before?: bigint | undefined
}

/** Reserves a sink for a node. */
export interface SinkLease {
  /** Id of the node. */
  readonly by: string
  readonly now: number
  readonly until: number
}

/** How far a sink has got. */
export interface SinkState {
  readonly name: string
  /** All up to it is acknowledged, or a dead letter. */
  readonly position: bigint
  readonly deliveredAt: number | null
  /** Null: the last attempt succeeded. */
  readonly failingSince: number | null
  readonly problem: string | null
  /** No attempt before this instant. */
  readonly retryAt: number | null
  /** Up to {@link DEAD_LETTERS_MAX}. */
  readonly deadLetters: number
}

/** An event that a sink has rejected. */
export interface DeadLetter {
  readonly position: bigint
  readonly eventId: string
  readonly type: string
  readonly problem: string
  readonly at: number
}

/** With so many, the sink waits until an administrator replays or discards them. */
export const DEAD_LETTERS_MAX = 10_000

/** Totals for operators; no decision uses them. */
export interface Totals {
  /** Includes closed sessions that are not yet deleted. */
  readonly sessions: ReadonlyMap<SessionState, number>
  readonly outbox: number
  readonly grantedOut: Micro
}
