/**
 * The twin's memory, as the use cases need it. A transaction commits all of its effects or none, and its promise resolves
 * after they would survive a power cut. Readers cannot write, by type. Several twin nodes may share one store: rows that
 * a decision rests on are locked before they are read (`lock`, `open`, `hold`), and always in one order, so that no two
 * transactions wait for each other in a circle:
 *
 *   1 a device (its epochs, entries and what it holds of accounts are written under its lock)
 *   2 sessions, by id
 *   3 the rules: of all instances, then of each, by id; shared or alone from the start, never first one and then the other
 *   4 accounts: those of line items first, then by id. What is wanted later and stands before what is locked is not waited
 *     for: where it is in use, the transaction starts over. Shortages are written under the lock of their account
 *   5 whatever is only inserted: the outbox, documents, and last of all usage records, whose table an export locks
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
   * Runs `work` with exclusive use of what it locks. `work` may run more than once (when two nodes meet, the database asks
   * one of them to start over), so it has no effects but those on `tx`, and it awaits nothing but `tx`. A throw rolls back
   * and is passed on.
   */
  transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T>
  /** Runs `work` on one consistent state. */
  read<T>(work: (reader: Reader) => Promise<T>): Promise<T>
  /** Calls the listener after each commit on this node that wrote to the outbox. Returns the way to stop. */
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
    /** By instance id and id. */
    update(lineItem: LineItemRecord): Promise<void>
  }
  readonly actions: ActionReader & {
    /** The whole ordered list; an empty one removes all. */
    replace(instanceId: string, lineItemId: string, actions: readonly Action[]): Promise<void>
  }
  readonly conditions: ConditionReader & {
    /** Inserts those whose id is unknown, at the end of the list, and replaces the others. */
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
    /** Locks those that exist, in the order of their ids, and reads them. */
    lock(accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Pool>>
    /** Like `lock`, and creates those that do not exist with all counters 0 and the cap given (null: metered only). */
    open(wanted: readonly { account: AccountId; cap: Micro | null }[]): Promise<ReadonlyMap<AccountId, Pool>>
    /** Writes pools that this transaction has locked or opened. */
    save(pools: readonly Pool[]): Promise<void>
  }
  readonly usage: UsageReader & {
    /** Written when the work of the transaction is done, which does not read them. */
    append(records: readonly UsageRecord[]): Promise<void>
    /** Up to where no record is still to come: each one written after this has a higher position. 0: there is none. */
    settled(): Promise<bigint>
    /**
     * The twin was restored from a backup that ends where it stands: records written after this have positions above
     * `position`, and those up to it that it gave out after the backup are known as forgotten.
     */
    passForgotten(position: bigint): Promise<void>
  }
  readonly policyRevisions: PolicyRevisionReader & {
    /**
     * Reads the revision; nobody raises it before this transaction ends. Decisions do this first.
     * @param likely accounts that will probably be locked next: some stores lock them on the way
     */
    hold(instanceId: string, likely?: readonly AccountId[]): Promise<PolicyRevision | undefined>
    /** Takes the right to change the rules of the instance. Changes of rules do this first. */
    lock(instanceId: string): Promise<PolicyRevision | undefined>
    /** Takes the right to change the rules of all instances: for changes of what all of them share. */
    lockAll(): Promise<void>
    /**
     * Raises each revision by one, or above `beyond`, after `lockAll`. `raisedAt` and `listedAt` become `now` where that is later.
     */
    raiseAll(now: number, beyond?: number): Promise<void>
    /** Revision 1 of an instance. */
    insert(revision: PolicyRevision): Promise<void>
    /** Of an instance that this transaction has locked. */
    save(revision: PolicyRevision): Promise<void>
  }
  readonly sessions: SessionReader & {
    /** @param opening what the device calls the opening of its agent's own session; null or absent: it is another one */
    insert(session: Session, opening?: string | null): Promise<void>
    lock(id: string): Promise<Session | undefined>
    /**
     * Locks the next session whose `nextDue` has been reached, earliest first, and passes over those that another
     * transaction has locked.
     */
    lockDue(now: number): Promise<Session | undefined>
    /** All but id, instance, device, keeper and creation. */
    save(session: Session): Promise<void>
    /** What an administrator wants of a session that a device keeps. */
    want(id: string, command: SessionCommand['command']): Promise<void>
    remove(id: string): Promise<void>
  }
  readonly outbox: {
    append(notifications: readonly ChangeNotification[], at: number): Promise<void>
    /** A change notification of the revision of each instance. */
    appendPolicies(at: number): Promise<void>
    /**
     * The oldest messages that nobody has claimed, or whose claim has ended. Claims them until the instant given, so that
     * another node leaves them alone meanwhile.
     */
    claim(limit: number, now: number, until: number): Promise<readonly OutboxMessage[]>
    /** Published: forgets them. */
    remove(ids: readonly bigint[]): Promise<void>
  }
  readonly edge: EdgeTransaction
  readonly sweeps: SweepReader & {
    /** The clock of the database, POSIX ms; null where it is that of this process. */
    databaseTime(): Promise<number | null>
    noteClock(record: ClockRecord): Promise<void>
    /** Epochs that were silent since before this instant may be settled, however many they are. */
    confirmSettlement(quietBefore: number): Promise<void>
  }
}

export interface SweepReader {
  /** Undefined before a node has first looked at its clock. */
  clockRecord(): Promise<ClockRecord | undefined>
  /** Null: nothing was confirmed. */
  settlementConfirmed(): Promise<number | null>
}

export interface InstanceReader {
  get(id: string): Promise<Instance | undefined>
  /** In the order of creation, from position `offset` on. */
  list(offset: number, limit: number): Promise<readonly Instance[]>
  defaultOf(accountId: string): Promise<Instance | undefined>
}

export interface LineItemReader {
  /** Deleted ones too. */
  get(instanceId: string, id: string): Promise<LineItemRecord | undefined>
  /** Not deleted ones, in the order of creation. */
  list(instanceId: string): Promise<readonly LineItemRecord[]>
}

export interface ActionReader {
  of(instanceId: string, lineItemId: string): Promise<readonly Action[]>
  /** Line items that are not deleted and have actions, in the order of the line items' creation. */
  list(instanceId: string, offset: number, limit: number): Promise<readonly LineItemActions[]>
}

export interface ConditionReader {
  get(instanceId: string, id: string): Promise<ConditionNode | undefined>
  /** In the order of creation. */
  list(instanceId: string): Promise<readonly ConditionNode[]>
  /** How many there are, and how long their JSON is in all. */
  size(instanceId: string): Promise<{ readonly count: number; readonly characters: number }>
  /** Which of the conditions of the instance an action refers to. */
  referenced(instanceId: string): Promise<ReadonlySet<string>>
}

export interface RateTableReader {
  get(series: string, version: string): Promise<RateTableRecord | undefined>
  /** All of them, in the order of creation. */
  list(): Promise<readonly RateTableRecord[]>
}

export interface ConsumptionLimitReader {
  get(instanceId: string, lineItemId: string): Promise<ConsumptionLimitRecord | undefined>
  /** Removed ones too. */
  list(instanceId: string): Promise<readonly ConsumptionLimitRecord[]>
}

export interface KeyReader {
  get(type: KeyType, id: string): Promise<KeyRecord | undefined>
  /** In the order of creation, from position `offset` on. */
  list(offset: number, limit: number): Promise<readonly KeyRecord[]>
  /** Administration keys that are not deleted. */
  countAdministration(): Promise<number>
}

export interface ConfigurationReader {
  /** Values that were changed. */
  list(): Promise<readonly ConfigurationValue[]>
}

export interface AccountReader {
  /** Those that exist. */
  get(accounts: readonly AccountId[]): Promise<ReadonlyMap<AccountId, Pool>>
  /** All accounts of a line item: its pools by period, its actions' allocations, its requesters' limits. */
  ofLineItem(instanceId: string, lineItemId: string): Promise<readonly Pool[]>
}

export interface UsageReader {
  /** Newest first; `before` pages on from the `next` of the answer before. */
  list(query: {
    readonly instanceId?: string
    readonly correlationId?: string
    readonly before?: bigint
    readonly limit: number
  }): Promise<{ readonly records: readonly UsageRecord[]; readonly next: bigint | null }>
  /** Those after one position and up to another, oldest first. */
  range(query: UsageRange): Promise<readonly NumberedUsage[]>
  /** Where the backup ends with which the twin forgot what it wrote at the position; null when that was not forgotten. */
  backupEnd(position: bigint): Promise<bigint | null>
}

export interface UsageRange {
  /** Position of a record: rises in the order of writing. */
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
  /** Instances whose calendar must be carried on, and those whose policy was raised after the other instant. */
  calendarDue(now: number, raisedAfter: number, limit: number): Promise<readonly string[]>
}

export interface SessionReader {
  get(id: string): Promise<Session | undefined>
  /** Live ones (IDLE, ACTIVE), newest first. */
  live(instanceId: string | null, limit: number): Promise<readonly Session[]>
  /** Ids of those that the device has opened or keeps, and that have not ended, in ascending order. */
  notEnded(deviceId: string): Promise<readonly string[]>
  /** Live ones that the device has opened. */
  ofDevice(deviceId: string): Promise<readonly Session[]>
  /**
   * Those that the device has opened in the instance as its agent's own and that have not ended, and the one of this opening in
   * whatever state, by id.
   */
  openedAs(
    deviceId: string,
    instanceId: string,
    opening: string,
  ): Promise<readonly { readonly session: Session; readonly isThis: boolean }[]>
  /** Those that the device keeps and has not reported as ended, with what an administrator wants of each. */
  keptBy(
    deviceId: string,
  ): Promise<readonly { readonly session: Session; readonly wanted: SessionCommand['command'] | null }[]>
  /** Those of the cloud itself that are charged automatically up to the instant, those that are due first. */
  renewedBy(until: number, limit: number): Promise<readonly Session[]>
  /** Whether a live session holds a charge on the line item. */
  holds(instanceId: string, lineItemId: string): Promise<boolean>
}
