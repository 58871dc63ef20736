/**
 * Storage of the device API. A change of a device locks it first; then this transaction alone reads and writes its
 * rows.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { SessionCommand } from '../../protocol/edge/sessions.ts'
import type { Pool } from './records.ts'
import type {
  AuditRecord,
  AwaitedDevice,
  CloudReserve,
  Device,
  DeviceAccountRecord,
  DeviceKey,
  EnrollmentRecord,
  Evidence,
  Epoch,
  KnownDeviceKey,
  LedgerEntry,
  MergedSegment,
  OfflinePolicyRecord,
  Recall,
  Recovery,
  Returnable,
  SalesMarkRecord,
  Shortage,
} from './device-records.ts'

export interface EdgeReader {
  readonly devices: {
    get(id: string): Promise<Device | undefined>
    withKey(thumbprint: string): Promise<KnownDeviceKey | undefined>
    keysBetween(deviceId: string, since: number, until: number): Promise<number>
    /**
     * @param instanceId null: all instances
     * @param offset position in enrollment sequence
     */
    list(instanceId: string | null, offset: number, limit: number): Promise<readonly Device[]>
    /** Devices, other than `except`, that are not revoked and have synced since then. */
    countLive(instanceId: string, since: number, except: string): Promise<number>
    /** Time of the newest accepted segment; null: none. */
    newestSync(): Promise<number | null>
    countTrusted(instanceId: string): Promise<number>
  }
  readonly enrollments: {
    get(jti: string): Promise<EnrollmentRecord | undefined>
  }
  readonly epochs: {
    get(deviceId: string, number: number): Promise<Epoch | undefined>
    byNonce(deviceId: string, nonce: string): Promise<Epoch | undefined>
    /**
     * The longest inactive epoch since before the instant: neither closed nor settled and, unless fenced, with
     * unaccounted tokens. None if the cloud was restored since then.
     */
    nextInactive(before: number): Promise<InactiveEpoch | undefined>
    /** Devices to settle, inactive since before `before`, and those settled after `settledSince`. */
    settlementLoad(before: number, settledSince: number): Promise<SettlementLoad>
    attachedSince(deviceId: string, since: number): Promise<readonly number[]>
  }
  readonly segments: {
    get(deviceId: string, epoch: number, seq: number): Promise<MergedSegment | undefined>
  }
  readonly evidence: {
    /** Newest first. */
    of(deviceId: string, limit: number): Promise<readonly Evidence[]>
    size(deviceId: string, epoch: number): Promise<{ readonly segments: number; readonly bytes: number }>
    kinds(deviceId: string): Promise<ReadonlySet<Evidence['kind']>>
  }
  readonly entries: {
    /** Hashes of the entries with these numbers, of all writers. */
    hashes(deviceId: string, epoch: number, first: number, last: number): Promise<ReadonlySet<string>>
    /** Undefined: the merged chain has no such entry. */
    hashInChain(deviceId: string, epoch: number, n: number): Promise<string | undefined>
    of(deviceId: string, epoch: number): Promise<readonly LedgerEntry[]>
  }
  readonly deviceAccounts: {
    /** Those that exist. */
    get(
      deviceId: string,
      epoch: number,
      accounts: readonly AccountId[],
    ): Promise<ReadonlyMap<AccountId, DeviceAccountRecord>>
    ofEpoch(deviceId: string, epoch: number): Promise<ReadonlyMap<AccountId, DeviceAccountRecord>>
    ofDevice(deviceId: string): Promise<readonly DeviceAccountRecord[]>
    ofInstance(instanceId: string): Promise<
      readonly {
        readonly record: DeviceAccountRecord
        readonly status: Epoch['status']
        readonly forked: boolean
      }[]
    >
    overspendOf(accounts: Iterable<AccountId>): Promise<ReadonlyMap<AccountId, Micro>>
    /** Balances of other devices in active epochs that reported since then, largest first. */
    availableOfOthers(
      account: AccountId,
      except: string,
      heardSince: number,
      limit: number,
    ): Promise<readonly { readonly deviceId: string; readonly available: Micro }[]>
    /** What other devices in active epochs could return of each account. Without entry: nothing. */
    returnable(
      accounts: readonly AccountId[],
      except: string,
      heardSince: number,
    ): Promise<ReadonlyMap<AccountId, Returnable>>
    /** Metered accounts that have a limit by the current rules; those granted without one first. */
    limitedAgain(deviceId: string, epoch: number, limit: number): Promise<readonly DeviceAccountRecord[]>
    hasRoom(deviceId: string, epoch: number): Promise<boolean>
    /** The epoch's accounts whose outstanding tokens exceed their cap: its balance, and the excess. */
    aboveCaps(
      deviceId: string,
      epoch: number,
      limit: number,
    ): Promise<readonly { readonly account: AccountId; readonly available: Micro; readonly above: Micro }[]>
  }
  readonly shortages: {
    /** Shortages of these accounts, noted in this time. */
    of(accounts: readonly AccountId[], noted: NotedTimes): Promise<readonly Shortage[]>
    /** Recalls from the epoch for current shortages noted in this time; those furthest above their level first. */
    recallsFrom(
      deviceId: string,
      epoch: number,
      noted: NotedTimes,
      limit: number,
    ): Promise<readonly (Recall & { readonly available: Micro })[]>
    /** Devices short of a pool that has tokens again, and not notified since. */
    servable(
      times: ServableTimes,
      limit: number,
    ): Promise<readonly { readonly account: AccountId; readonly who: string }[]>
  }
  readonly recoveries: {
    get(instanceId: string): Promise<Recovery | undefined>
    underWay(): Promise<readonly Recovery[]>
    /**
     * Devices, neither revoked nor terminated, that have not reported since then: one row per epoch neither closed nor
     * settled, or for a device that has never attached.
     */
    waitingFor(instanceId: string, since: number, limit: number): Promise<readonly AwaitedDevice[]>
  }
  readonly salesMarks: {
    /** By id. */
    list(): Promise<readonly SalesMarkRecord[]>
  }
  pools(instanceId: string): Promise<readonly Pool[]>
  readonly offlinePolicies: {
    list(instanceId: string): Promise<readonly OfflinePolicyRecord[]>
  }
  readonly cloudReserves: {
    /** @param instanceId null: all instances */
    list(instanceId: string | null): Promise<readonly CloudReserve[]>
  }
  readonly policyDocuments: {
    get(instanceId: string, revision: number): Promise<string | undefined>
  }
  readonly audit: {
    /**
     * Newest first. @param deviceId null: all devices
     * @param before the previous response's `next`
     */
    list(
      deviceId: string | null,
      before: bigint | null,
      limit: number,
    ): Promise<{ readonly records: readonly AuditRecord[]; readonly next: bigint | null }>
  }
  readonly signingKey: {
    /** Thumbprint of the key that signs for all nodes; undefined: no node has started yet. */
    get(): Promise<string | undefined>
  }
}

/**
 * Bounds on both sides: a note after the present comes from a clock that was ahead, and would stay recent until then.
 */
export interface NotedTimes {
  /** Exclusive. */
  readonly since: number
  /** Inclusive. */
  readonly until: number
}

export interface ServableTimes {
  readonly now: number
  /** Short after this. */
  readonly since: number
  /** Last notified at this or before. */
  readonly notifiedBefore: number
}

export interface InactiveEpoch {
  readonly deviceId: string
  readonly number: number
  readonly quietSince: number
}

export interface SettlementLoad {
  readonly due: number
  /** With an epoch neither closed nor settled, including those due. */
  readonly unsettled: number
  readonly settled: number
}

export interface EdgeTransaction extends EdgeReader {
  readonly devices: EdgeReader['devices'] & {
    lock(id: string): Promise<Device | undefined>
    insert(device: Device): Promise<void>
    /** Saves all but id and enrollment time. Its keys must be registered. */
    save(device: Device): Promise<void>
    /** Assigns the key to the device forever; false: already registered, by any device. */
    registerKey(deviceId: string, key: DeviceKey, at: number): Promise<boolean>
  }
  readonly enrollments: EdgeReader['enrollments'] & {
    claim(record: EnrollmentRecord): Promise<boolean>
  }
  readonly epochs: EdgeReader['epochs'] & {
    insert(epoch: Epoch): Promise<void>
    save(epoch: Epoch): Promise<void>
  }
  readonly segments: EdgeReader['segments'] & {
    append(segment: MergedSegment): Promise<void>
  }
  readonly evidence: EdgeReader['evidence'] & {
    /** Once per segment, without a limit: `keepEvidence` limits. */
    keep(evidence: Evidence): Promise<void>
  }
  readonly entries: EdgeReader['entries'] & {
    append(entries: readonly LedgerEntry[]): Promise<void>
    /** Entries first reported by a second writer now also belong to the merged chain, by segment `seq`. */
    adopt(deviceId: string, epoch: number, hashes: readonly string[], seq: number): Promise<void>
  }
  readonly deviceAccounts: EdgeReader['deviceAccounts'] & {
    save(records: readonly DeviceAccountRecord[]): Promise<void>
  }
  readonly shortages: EdgeReader['shortages'] & {
    /** Inserts or replaces the shortage of this account and name. Under the account's lock. */
    save(shortage: Shortage): Promise<void>
    /** Ids of some `servable` devices, which count as notified at `now`. */
    takeServable(times: ServableTimes, limit: number): Promise<readonly string[]>
    /** Removes some noted before `before` or after `after`. */
    forget(noted: { readonly before: number; readonly after: number }, limit: number): Promise<void>
  }
  /** Commands for sessions that their devices have not reported. Under the device's lock. */
  readonly sessionCommands: {
    note(deviceId: string, sessionId: string, command: SessionCommand['command'], at: number): Promise<void>
    count(deviceId: string): Promise<number>
    take(deviceId: string, sessionId: string): Promise<SessionCommand['command'] | undefined>
    forget(deviceId: string, before: number): Promise<void>
  }
  readonly offlinePolicies: EdgeReader['offlinePolicies'] & {
    save(record: OfflinePolicyRecord): Promise<void>
  }
  readonly cloudReserves: EdgeReader['cloudReserves'] & {
    save(reserve: CloudReserve): Promise<void>
  }
  readonly recoveries: EdgeReader['recoveries'] & {
    /** During a recovery, all devices must report again. */
    begin(instanceId: string, since: number, unproven: Recovery['unproven']): Promise<void>
    beginAll(since: number, unproven: Recovery['unproven']): Promise<void>
    proveAll(): Promise<void>
    end(instanceId: string, at: number, by: string): Promise<void>
    /** Records a restore: inactivity from before it does not count, because reports may be lost. */
    restored(at: number): Promise<void>
  }
  readonly salesMarks: EdgeReader['salesMarks'] & {
    save(mark: SalesMarkRecord): Promise<void>
    /** False if the database does not have turn `from`: it is older or newer than the file. */
    turn(id: string, from: number, seenAt: number): Promise<boolean>
    /** Deletes marks not seen since the instant, unless a recovery waits for them. */
    forget(before: number): Promise<void>
    /** A node with its own mark accepts nodes that joined since. */
    acceptAll(): Promise<void>
  }
  readonly policyDocuments: EdgeReader['policyDocuments'] & {
    /** Keeps a revision's first document and deletes older revisions. */
    save(instanceId: string, revision: number, document: string): Promise<void>
    removeAll(): Promise<void>
  }
  readonly audit: EdgeReader['audit'] & {
    append(record: Omit<AuditRecord, 'detail'> & { readonly detail?: string }): Promise<void>
  }
  readonly signingKey: EdgeReader['signingKey'] & {
    /** Replaces the registered key. Under the keys' lock. */
    register(thumbprint: string, now: number): Promise<void>
  }
}
