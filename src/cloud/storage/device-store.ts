/**
 * What the edge part keeps besides the service's own records. Whoever changes anything of a device locks the device
 * first: every other row of it is then read and written by this transaction alone.
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
  SalesMarkRecord,
  Shortage,
} from './device-records.ts'

/** Reads of the edge part. */
export interface EdgeReader {
  readonly devices: {
    get(id: string): Promise<Device | undefined>
    /** Whose key it is, was, or shall be. */
    withKey(thumbprint: string): Promise<KnownDeviceKey | undefined>
    /** Keys of the device that were registered later than one instant, and not later than the other. */
    keysBetween(deviceId: string, since: number, until: number): Promise<number>
    /** Of one instance or (null) of all, in the order of enrollment, from position `offset` on. */
    list(instanceId: string | null, offset: number, limit: number): Promise<readonly Device[]>
    /** Devices of the instance that are not revoked and have synced since the instant; the one named is left out. */
    countLive(instanceId: string, since: number, except: string): Promise<number>
    /** When the newest segment of all devices was taken in; null before the first. */
    newestSync(): Promise<number | null>
    /** Devices of the instance that are not revoked. */
    countTrusted(instanceId: string): Promise<number>
  }
  readonly enrollments: {
    get(jti: string): Promise<EnrollmentRecord | undefined>
  }
  readonly epochs: {
    get(deviceId: string, number: number): Promise<Epoch | undefined>
    byNonce(deviceId: string, nonce: string): Promise<Epoch | undefined>
    /**
     * The one that has been silent for the longest time, since before the instant: neither closed nor settled, and, unless it
     * is fenced, with something that is not accounted for. None when the twin was restored since then.
     */
    nextInactive(before: number): Promise<InactiveEpoch | undefined>
    /** Devices with something to settle that are silent since before the instant, and those settled after another one. */
    settlementLoad(before: number, settledSince: number): Promise<SettlementLoad>
    /** When the device attached, later than the instant, in ascending order. */
    attachedSince(deviceId: string, since: number): Promise<readonly number[]>
  }
  readonly segments: {
    get(deviceId: string, epoch: number, seq: number): Promise<MergedSegment | undefined>
  }
  readonly evidence: {
    /** Newest first. */
    of(deviceId: string, limit: number): Promise<readonly Evidence[]>
    /** What is kept of one epoch. */
    size(deviceId: string, epoch: number): Promise<{ readonly segments: number; readonly bytes: number }>
    kinds(deviceId: string): Promise<ReadonlySet<Evidence['kind']>>
  }
  readonly entries: {
    /** Hashes of the entries with these numbers, of all writers. */
    hashes(deviceId: string, epoch: number, first: number, last: number): Promise<ReadonlySet<string>>
    /** Hash of the entry with this number in the merged chain; undefined where there is none. */
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
    /** Of all epochs. */
    ofDevice(deviceId: string): Promise<readonly DeviceAccountRecord[]>
    /** Of all devices, with the state of each epoch, for the accounts of one instance. */
    ofInstance(instanceId: string): Promise<
      readonly {
        readonly record: DeviceAccountRecord
        readonly status: Epoch['status']
        readonly forked: boolean
      }[]
    >
    /** What was overspent, of all epochs of all devices; accounts of which nothing is known are left out. */
    overspendOf(accounts: Iterable<AccountId>): Promise<ReadonlyMap<AccountId, Micro>>
    /** Room on active epochs that were heard of since, the most first; the device named is left out. */
    availableOfOthers(
      account: AccountId,
      except: string,
      heardSince: number,
      limit: number,
    ): Promise<readonly { readonly deviceId: string; readonly available: Micro }[]>
    /** Metered accounts of the epoch that have a limit by the rules of now, those first that are granted without one. */
    limitedAgain(deviceId: string, epoch: number, limit: number): Promise<readonly DeviceAccountRecord[]>
    /** Whether the epoch holds something that it has not spent. */
    hasRoom(deviceId: string, epoch: number): Promise<boolean>
    /** Accounts that it has room of, and of which more is out than their caps allow: its room, and how much more. */
    aboveCaps(
      deviceId: string,
      epoch: number,
      limit: number,
    ): Promise<readonly { readonly account: AccountId; readonly available: Micro; readonly above: Micro }[]>
  }
  readonly shortages: {
    /** Of these accounts, noted in this time. */
    of(accounts: readonly AccountId[], noted: NotedTimes): Promise<readonly Shortage[]>
    /**
     * Accounts that the epoch has room of and others are short of, for shortages noted in this time that are not over
     * yet: those furthest above their level first.
     */
    recallsFrom(
      deviceId: string,
      epoch: number,
      noted: NotedTimes,
      limit: number,
    ): Promise<readonly (Recall & { readonly available: Micro })[]>
    /** Devices that were short of a pool that has tokens for them again, and that were not notified since then. */
    servable(
      times: ServableTimes,
      limit: number,
    ): Promise<readonly { readonly account: AccountId; readonly who: string }[]>
  }
  readonly recoveries: {
    /** The newest one, under way or ended. */
    get(instanceId: string): Promise<Recovery | undefined>
    underWay(): Promise<readonly Recovery[]>
    /**
     * Devices of the instance that are neither revoked nor terminated and have not been heard from since: each of their
     * epochs that is neither closed nor settled, and those that have never attached.
     */
    waitingFor(instanceId: string, since: number, limit: number): Promise<readonly AwaitedDevice[]>
  }
  readonly salesMarks: {
    /** In the order of their ids. */
    list(): Promise<readonly SalesMarkRecord[]>
  }
  /** All pools of the instance, in the order of their ids. */
  pools(instanceId: string): Promise<readonly Pool[]>
  readonly offlinePolicies: {
    list(instanceId: string): Promise<readonly OfflinePolicyRecord[]>
  }
  readonly cloudReserves: {
    /** Of the instance or (null) of all. */
    list(instanceId: string | null): Promise<readonly CloudReserve[]>
  }
  readonly policyDocuments: {
    get(instanceId: string, revision: number): Promise<string | undefined>
  }
  readonly audit: {
    /** Newest first, of one device or (null) of all; `before` pages on from the `next` of the answer before. */
    list(
      deviceId: string | null,
      before: bigint | null,
      limit: number,
    ): Promise<{ readonly records: readonly AuditRecord[]; readonly next: bigint | null }>
  }
  readonly signingKey: {
    /** Thumbprint of the key that signs for all nodes; undefined before the first node has started. */
    get(): Promise<string | undefined>
  }
}

/** One noted after the present comes from a clock that was ahead: it would be recent until then. */
export interface NotedTimes {
  /** Later than this. */
  readonly since: number
  /** Not later than this. */
  readonly until: number
}

/** Of devices that are to be notified. */
export interface ServableTimes {
  readonly now: number
  /** They were short later than this. */
  readonly since: number
  /** They were not notified later than this. */
  readonly notifiedBefore: number
}

export interface InactiveEpoch {
  readonly deviceId: string
  readonly number: number
  readonly quietSince: number
}

/** Numbers of devices. */
export interface SettlementLoad {
  readonly due: number
  /** With an epoch that is neither closed nor settled, those that are due included. */
  readonly unsettled: number
  readonly settled: number
}

/** Writes of the edge part. */
export interface EdgeTransaction extends EdgeReader {
  readonly devices: EdgeReader['devices'] & {
    lock(id: string): Promise<Device | undefined>
    insert(device: Device): Promise<void>
    /** All but id and time of enrollment. Its keys are registered before. */
    save(device: Device): Promise<void>
    /** Makes the key one of the device, for ever; false when it is registered already, of whomever. */
    registerKey(deviceId: string, key: DeviceKey, at: number): Promise<boolean>
  }
  readonly enrollments: EdgeReader['enrollments'] & {
    /** Uses the token; false when it was used before. */
    claim(record: EnrollmentRecord): Promise<boolean>
  }
  readonly epochs: EdgeReader['epochs'] & {
    insert(epoch: Epoch): Promise<void>
    save(epoch: Epoch): Promise<void>
  }
  readonly segments: EdgeReader['segments'] & {
    /** Inserts the next one, and forgets document and answer of the one before it. */
    append(segment: MergedSegment): Promise<void>
  }
  readonly evidence: EdgeReader['evidence'] & {
    /** Keeps it, once for each segment. Without a limit: `keepEvidence` has one. */
    keep(evidence: Evidence): Promise<void>
  }
  readonly entries: EdgeReader['entries'] & {
    append(entries: readonly LedgerEntry[]): Promise<void>
    /** Entries that a second writer reported first turn out to be of the merged chain as well, by the segment `seq`. */
    adopt(deviceId: string, epoch: number, hashes: readonly string[], seq: number): Promise<void>
  }
  readonly deviceAccounts: EdgeReader['deviceAccounts'] & {
    save(records: readonly DeviceAccountRecord[]): Promise<void>
  }
  readonly shortages: EdgeReader['shortages'] & {
    /** Inserts it, or replaces the one of the same account and name. Under the lock of the account. */
    save(shortage: Shortage): Promise<void>
    /** Ids of some of the devices that are `servable`; they count as notified at `now`. */
    takeServable(times: ServableTimes, limit: number): Promise<readonly string[]>
    /** Removes some of those from before the one instant, or after the other. */
    forget(noted: { readonly before: number; readonly after: number }, limit: number): Promise<void>
  }
  /** What an administrator wants of sessions that their device has not told of. Under the lock of the device. */
  readonly sessionCommands: {
    /** Takes the place of an earlier one for the same session. */
    note(deviceId: string, sessionId: string, command: SessionCommand['command'], at: number): Promise<void>
    count(deviceId: string): Promise<number>
    /** The one that waits for the session; it waits no longer. */
    take(deviceId: string, sessionId: string): Promise<SessionCommand['command'] | undefined>
    /** Drops those from before the instant. */
    forget(deviceId: string, before: number): Promise<void>
  }
  readonly offlinePolicies: EdgeReader['offlinePolicies'] & {
    save(record: OfflinePolicyRecord): Promise<void>
  }
  readonly cloudReserves: EdgeReader['cloudReserves'] & {
    save(reserve: CloudReserve): Promise<void>
  }
  readonly recoveries: EdgeReader['recoveries'] & {
    /** While one is under way already, all devices have to be heard from again. */
    begin(instanceId: string, since: number, unproven: Recovery['unproven']): Promise<void>
    /** Of every instance that there is. */
    beginAll(since: number, unproven: Recovery['unproven']): Promise<void>
    /** Where it waited for the sales marks of other nodes, all of them have been shown. */
    proveAll(): Promise<void>
    end(instanceId: string, at: number, by: string): Promise<void>
    /** The twin has heard that it was restored. Silence of devices from before says nothing: they may have been heard of. */
    restored(at: number): Promise<void>
  }
  readonly salesMarks: EdgeReader['salesMarks'] & {
    /** Inserts or replaces it. */
    save(mark: SalesMarkRecord): Promise<void>
    /** False when the database does not have this turn: it is older or newer than the file. */
    turn(id: string, from: number, seenAt: number): Promise<boolean>
    /** Those of nodes that were not seen since the instant; none that a recovery waits for. */
    forget(before: number): Promise<void>
    /** A node that has its own mark takes the nodes that have come since into the company. */
    acceptAll(): Promise<void>
  }
  readonly policyDocuments: EdgeReader['policyDocuments'] & {
    /** Keeps the first document of a revision and forgets those of older ones. */
    save(instanceId: string, revision: number, document: string): Promise<void>
    removeAll(): Promise<void>
  }
  readonly audit: EdgeReader['audit'] & {
    append(record: Omit<AuditRecord, 'detail'> & { readonly detail?: string }): Promise<void>
  }
  readonly signingKey: EdgeReader['signingKey'] & {
    /** Takes the place of the one that is registered. Under the lock of the keys. */
    register(thumbprint: string, now: number): Promise<void>
  }
}
