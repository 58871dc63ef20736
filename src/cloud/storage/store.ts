/**
 * The store port. A transaction commits all or nothing, durably. Nodes may share a store: rows that a decision depends on are
 * locked before they are read, in this sequence, to avoid deadlocks:
 *
 *   1 a device, which covers its epochs, entries and accounts
 *   2 sessions, by id
 *   3 rules: of all instances, then of each, by id; a shared lock is never upgraded
 *   4 accounts: line items first, then by id. An earlier one needed later must be free, else the transaction restarts. An
 *     account's lock covers its shortages
 *   5 inserts: outbox, documents, and last the usage records, whose table an export locks
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Action } from '../../core/rules/policy.ts'
import type { Session } from '../../core/sessions/session.ts'
import type { SessionCommand } from '../../protocol/edge/sessions.ts'
import type { EdgeReader, EdgeTransaction } from './device-store.ts'
import type {
  ClockRecord,
  ConditionNode,
  ConfigurationValue,
  ConsumptionLimitRecord,
  ChangeNotification,
  Instance,
  KeyRecord,
  KeyType,
  LineItemActions,
  LineItemRecord,
  OutboxMessage,
  PolicyRevision,
  Pool,
  RateTableRecord,
  UsageRecord,
} from './records.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { TotalsReader } from '../accounts/totals.ts'

export interface Store {
  /**
   * Runs `work` in a transaction. `work` may rerun after a conflict, so it has no effects outside `tx` and awaits only
   * `tx`. A throw rolls back and is passed on.
   */
  transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T>
  read<T>(work: (reader: Reader) => Promise<T>): Promise<T>
  /** Calls the listener after each commit of this node that wrote to the outbox. Returns a function that stops it. */
  onOutbox(listener: () => void): () => void
  close(): Promise<void>
}

export interface Reader {
  readonly instances: InstanceReader
  readonly lineItems: LineItemReader
  readonly actions: ActionReader
  readonly conditions: ConditionReader
  readonly rateTables: RateTableReader
  readonly consumptionLimits: ConsumptionLimitReader
  readonly keys: KeyReader
  readonly configuration: ConfigurationReader
  readonly accounts: AccountReader
  readonly usage: UsageReader
  readonly policyRevisions: PolicyRevisionReader
  readonly sessions: SessionReader
  readonly edge: EdgeReader
  readonly sweeps: SweepReader
  readonly totals: TotalsReader
}

export interface Transaction extends Reader {
  readonly instances: InstanceReader & {
    insert(instance: Instance): Promise<void>
  }
  readonly lineItems: LineItemReader & {
    insert(lineItem: LineItemRecord): Promise<void>
    update(lineItem: LineItemRecord): Promise<void>
  }
  readonly actions: ActionReader & {
    replace(instanceId: string, lineItemId: string, actions: readonly Action[]): Promise<void>
  }
  readonly conditions: ConditionReader & {
    save(instanceId: string, conditions: readonly ConditionNode[]): Promise<void>
    remove(instanceId: string, ids: readonly string[]): Promise<void>
  }
  readonly rateTables: RateTableReader & {
    insert(table: RateTableRecord): Promise<void>
    remove(series: string, version: string): Promise<void>
  }
  readonly consumptionLimits: ConsumptionLimitReader & {
    save(limit: ConsumptionLimitRecord): Promise<void>
  }
  readonly keys: KeyReader & {
    /** Serializes changes of keys: the last administration key must stay. */
    lock(): Promise<void>
    save(key: KeyRecord): Promise<void>
    remove(type: KeyType, id: string): Promise<void>
  }
  readonly configuration: ConfigurationReader & {
    save(value: ConfigurationValue): Promise<void>
  }
  readonly accounts: AccountReader & {
    /** Locks and reads those that exist, by id. */
    lock(accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Pool>>
    /** Like `lock`; creates missing ones with zero counters and this cap (null: metered only). */
    open(wanted: readonly { account: AccountId; cap: Micro | null }[]): Promise<ReadonlyMap<AccountId, Pool>>
    save(pools: readonly Pool[]): Promise<void>
  }
  readonly usage: UsageReader & {
    /** Written at the end of the transaction, which cannot read them. */
    append(records: readonly UsageRecord[]): Promise<void>
    /** All later records will have higher positions. 0: no records. */
    settled(): Promise<bigint>
    /**
     * After a restore: new records get positions above `position`; positions from the backup's end up to it are marked
     * as lost.
     */
    passForgotten(position: bigint): Promise<void>
  }
  readonly policyRevisions: PolicyRevisionReader & {
    /**
     * Reads the revision and locks it against bumps. Decisions do this first.
     * @param likely accounts that will probably be locked next: some stores lock them in the same round trip
     */
    hold(instanceId: string, likely?: readonly AccountId[]): Promise<PolicyRevision | undefined>
    /** Locks the instance's rules for a change. Changes do this first. */
    lock(instanceId: string): Promise<PolicyRevision | undefined>
    lockAll(): Promise<void>
    /**
     * Bumps each revision by one, or above `beyond`, after `lockAll`. `bumpedAt` and `listedAt` become `now` if that is
     * later.
     */
    raiseAll(now: number, beyond?: number): Promise<void>
    insert(revision: PolicyRevision): Promise<void>
    save(revision: PolicyRevision): Promise<void>
  }
  readonly sessions: SessionReader & {
    /** @param opening the device's id for opening its agent's own session; null or absent: another session */
    insert(session: Session, opening?: string | null): Promise<void>
    lock(id: string): Promise<Session | undefined>
    /** Locks the earliest due session, skipping those locked by others. */
    lockDue(now: number): Promise<Session | undefined>
    /** All but id, instance, device, keeper and creation. */
    save(session: Session): Promise<void>
    want(id: string, command: SessionCommand['command']): Promise<void>
    remove(id: string): Promise<void>
  }
  readonly outbox: {
    append(notifications: readonly ChangeNotification[], at: number): Promise<void>
    appendPolicies(at: number): Promise<void>
    /** Claims the oldest unclaimed notifications until the given instant; other nodes skip them until then. */
    claim(limit: number, now: number, until: number): Promise<readonly OutboxMessage[]>
    remove(ids: readonly bigint[]): Promise<void>
  }
  readonly edge: EdgeTransaction
  readonly sweeps: SweepReader & {
    /** The database's clock, POSIX ms; null: it is this process's clock. */
    databaseTime(): Promise<number | null>
    noteClock(record: ClockRecord): Promise<void>
    /** Permits settling any number of epochs inactive since before the instant. */
    confirmSettlement(quietBefore: number): Promise<void>
  }
}

export interface SweepReader {
  clockRecord(): Promise<ClockRecord | undefined>
  settlementConfirmed(): Promise<number | null>
}

export interface InstanceReader {
  get(id: string): Promise<Instance | undefined>
  /** By creation. */
  list(offset: number, limit: number): Promise<readonly Instance[]>
  defaultOf(accountId: string): Promise<Instance | undefined>
}

export interface LineItemReader {
  /** Includes deleted ones. */
  get(instanceId: string, id: string): Promise<LineItemRecord | undefined>
  /** Excludes deleted ones; by creation. */
  list(instanceId: string): Promise<readonly LineItemRecord[]>
}

export interface ActionReader {
  of(instanceId: string, lineItemId: string): Promise<readonly Action[]>
  list(instanceId: string, offset: number, limit: number): Promise<readonly LineItemActions[]>
}

export interface ConditionReader {
  get(instanceId: string, id: string): Promise<ConditionNode | undefined>
  /** By creation. */
  list(instanceId: string): Promise<readonly ConditionNode[]>
  size(instanceId: string): Promise<{ readonly count: number; readonly characters: number }>
  referenced(instanceId: string): Promise<ReadonlySet<string>>
}

export interface RateTableReader {
  get(series: string, version: string): Promise<RateTableRecord | undefined>
  /** By creation. */
  list(): Promise<readonly RateTableRecord[]>
}

export interface ConsumptionLimitReader {
  get(instanceId: string, lineItemId: string): Promise<ConsumptionLimitRecord | undefined>
  /** Includes removed ones. */
  list(instanceId: string): Promise<readonly ConsumptionLimitRecord[]>
}

export interface KeyReader {
  get(type: KeyType, id: string): Promise<KeyRecord | undefined>
  /** By creation. */
  list(offset: number, limit: number): Promise<readonly KeyRecord[]>
  /** Excludes deleted keys. */
  countAdministration(): Promise<number>
}

export interface ConfigurationReader {
  /** Changed values only. */
  list(): Promise<readonly ConfigurationValue[]>
}

export interface AccountReader {
  /** Those that exist. */
  get(accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Pool>>
  /** Pools by period, allocations of actions, limits of requesters. */
  ofLineItem(instanceId: string, lineItemId: string): Promise<readonly Pool[]>
}

export interface UsageReader {
  /** Newest first; `before` is the previous response's `next`. */
  list(query: {
    readonly instanceId?: string
    readonly correlationId?: string
    readonly before?: bigint
    readonly limit: number
  }): Promise<{ readonly records: readonly UsageRecord[]; readonly next: bigint | null }>
  /** Oldest first. */
  range(query: UsageRange): Promise<readonly NumberedUsage[]>
  /** End of the backup that lost the record at this position; null: not lost. */
  backupEnd(position: bigint): Promise<bigint | null>
}

export interface UsageRange {
  /** Position of a record, ascending in write sequence. Exclusive. */
  readonly after: bigint
  readonly upTo: bigint
  readonly instanceId: string | null
  /** Usage time, POSIX ms: from inclusive, to exclusive. */
  readonly from: number | null
  readonly to: number | null
  readonly limit: number
}

export interface NumberedUsage {
  readonly position: bigint
  readonly record: UsageRecord
}

export interface PolicyRevisionReader {
  get(instanceId: string): Promise<PolicyRevision | undefined>
  /** Instances whose calendars are due, or whose policy was bumped after `raisedAfter`. */
  calendarDue(now: number, raisedAfter: number, limit: number): Promise<readonly string[]>
}

export interface SessionReader {
  get(id: string): Promise<Session | undefined>
  /** Live ones (IDLE, ACTIVE), newest first. */
  live(instanceId: string | null, limit: number): Promise<readonly Session[]>
  notEnded(deviceId: string): Promise<readonly string[]>
  ofDevice(deviceId: string): Promise<readonly Session[]>
  /** By id: the agent's own open sessions in the instance, and the one of this opening in any state. */
  openedAs(
    deviceId: string,
    instanceId: string,
    opening: string,
  ): Promise<readonly { readonly session: Session; readonly isThis: boolean }[]>
  keptBy(
    deviceId: string,
  ): Promise<readonly { readonly session: Session; readonly wanted: SessionCommand['command'] | null }[]>
  /** Cloud sessions automatically charged up to the instant, earliest first. */
  renewedBy(until: number, limit: number): Promise<readonly Session[]>
  holds(instanceId: string, lineItemId: string): Promise<boolean>
}
