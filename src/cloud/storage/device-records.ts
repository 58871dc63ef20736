/** Records about devices, their epochs and their reports. Instants are POSIX ms, amounts micro-tokens; null: none. */
import type { AccountId } from '../../core/accounts/account.ts'
import { outstanding } from '../../core/accounts/grant.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import { type DeviceAccount, type EpochState, NO_DEVICE_ACCOUNT } from '../../core/sync/receive.ts'
import type { Label, Labels } from '../../protocol/edge/labels.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-suspension.ts'
import type { PublicJwk } from '../../protocol/signing.ts'
import type { UsageOperation } from './records.ts'

export interface DeviceKey {
  readonly publicKey: PublicJwk
  readonly thumbprint: string
}

export interface KnownDeviceKey extends DeviceKey {
  readonly device: Device
  /** `PAST`: replaced, or announced and superseded. */
  readonly state: 'CURRENT' | 'NEXT' | 'PAST'
}

export interface DeviceKeyRecord extends Pick<KnownDeviceKey, 'thumbprint' | 'state'> {
  /** POSIX ms. */
  readonly registeredAt: number
}

export interface Suspension extends DeviceSuspension {
  /** Name of the administration key, or its id. Not for devices. */
  readonly by: string
}

export interface Device {
  readonly id: string
  readonly name: string | null
  readonly publicKey: PublicJwk
  readonly thumbprint: string
  readonly keySince: number
  /** Announced; accepted as well, and replaces the current key at its first use. */
  readonly nextKey: DeviceKey | null
  /** Thumbprint of the key that an administrator requested to rotate; no effect once replaced. */
  readonly replaceKey: string | null
  /** Sorted. */
  readonly instanceIds: readonly string[]
  readonly enrolledAt: number
  readonly revokedAt: number | null
  readonly revokedBy: string | null
  readonly suspension: Suspension | null
  readonly lastSyncAt: number | null
  readonly software: string | null
  /** 0 before the first attach. */
  readonly epoch: number
  readonly backlog: number
  readonly appliedPolicies: readonly { readonly instanceId: string; readonly revision: number }[]
  readonly releaseRequested: boolean
  readonly clock: DeviceClock | null
  readonly labels: Labels
}

/** Whether the cloud hears from a device. The states exclude each other, in this order from the last to the first. */
export const CONTACTS = ['CURRENT', 'OVERDUE', 'NEVER', 'SUSPENDED', 'REVOKED'] as const
export type Contact = (typeof CONTACTS)[number]

/** Which devices to show; absent: all. */
export interface DeviceFilter {
  readonly instanceId?: string | undefined
  readonly contact?: ContactSince | undefined
  /** Start of the id or name, case-sensitive. */
  readonly search?: string | undefined
  /** The device has all of them. */
  readonly labels?: readonly Label[] | undefined
  /** Of the caller: devices that also serve another instance are left out. Null: all instances. */
  readonly scope?: ReadonlySet<string> | null | undefined
}

/** Some devices of a long list. */
export interface DevicePart {
  readonly devices: readonly Device[]
  /** Null: these are the last ones. */
  readonly last: bigint | null
}

export interface ContactSince {
  readonly state: Contact
  /** Devices that synced last before this instant are overdue, POSIX ms. */
  readonly overdueBefore: number
}

/** POSIX ms. */
export interface DeviceClock extends ClockReading {
  readonly takenAt: number
}

/** A restored cloud does not know all sales and grants of the instance. */
export interface Recovery {
  readonly instanceId: string
  /** Above those of all earlier recoveries of the store. */
  readonly number: number
  readonly since: number
  /**
   * Why the amount sold is unknown, so that nothing is sold: `NODE` until another node has shown its sales mark, `MARK`
   * until an administrator ends the recovery. Null: possible sales are withheld per account, and the rest is sold.
   */
  readonly unproven: 'MARK' | 'NODE' | null
  /** Null: in progress. */
  readonly endedAt: number | null
}

export interface AwaitedDevice {
  readonly deviceId: string
  /** Null: it has never attached. */
  readonly epoch: number | null
  readonly status: Epoch['status'] | null
}

export interface SalesMarkRecord {
  readonly id: string
  /** Counted in the file and here; if they differ, one of them is out of date. */
  readonly turn: number
  readonly seenAt: number
  readonly awaited: boolean
  /** It existed before the database had anything to lose, or another node with a mark has accepted it. */
  readonly accepted: boolean
}

/** Time of an event, POSIX ms. */
export interface Moment {
  /** The wall clock, which may be wrong. */
  readonly now: number
  /** Time for measuring inactivity: see `ClockGuard.present`. */
  readonly present: number
}

export type FenceReason = 'SUPERSEDED' | 'FORKED' | 'REJECTED' | 'REVOKED' | 'SILENT' | 'TERMINATED'

/**
 * `CHARGED`: outstanding tokens count as used. `RELEASED`: they returned to the pool, although they may have been used.
 */
export type Settlement = 'CHARGED' | 'RELEASED'

/** The life of a ledger between two attaches. Never deleted: it distinguishes a retry from a second writer. */
export interface Epoch extends EpochState {
  readonly deviceId: string
  readonly number: number
  readonly createdAt: number
  readonly fencedAt: number | null
  readonly fenceReason: FenceReason | null
  readonly quietSince: number
  readonly settlement: Settlement | null
  readonly settledAt: number | null
  readonly rejected: boolean
  /** The device has proof of segments or grants that a restored cloud lost. */
  readonly grantsForgotten: boolean
  /** Of the last grant; 0 before the first. */
  readonly term: number
  /** The newest recovery in which it has reported; 0: none. */
  readonly recovery: number
  /** Nonce of its attach; null: a restored cloud learned of it from a segment. */
  readonly nonce: string | null
  readonly attachAnswer: string | null
}

/** The numbers are of sessions that have not ended. */
export interface EpochWithSessionCount {
  readonly epoch: Epoch
  /** In the cloud. */
  readonly ownSessions: number
  readonly keepsSessions: boolean
}

export interface EpochWithSessionPresence {
  readonly epoch: Epoch | undefined
  /** Whether the device may have sessions that have not ended. */
  readonly hasSessions: boolean
}

export interface MergedSegment {
  readonly deviceId: string
  readonly epoch: number
  readonly seq: number
  readonly hash: string
  /** The signed segment and the signed response; null: it is not the last one of its epoch. */
  readonly signed: { readonly document: string; readonly answer: string } | null
}

export type LastSegment = MergedSegment & { readonly signed: NonNullable<MergedSegment['signed']> }

/** A signed segment that was not merged, or that contained undelivered entries. */
export interface Evidence {
  readonly deviceId: string
  readonly epoch: number
  readonly kind: 'FORK' | 'REJECTED' | 'UNDELIVERED_RANGE'
  readonly seq: number
  readonly hash: string
  /** Hash of the merged segment with the same seq, if any. */
  readonly recordedHash: string | null
  readonly recordedDocument: string | null
  readonly problem: string | null
  readonly document: string
  readonly receivedAt: number
}

/** Billed once: its hash covers it and all earlier entries. */
export interface LedgerEntry {
  readonly n: number
  readonly hash: string
  /** The JSON text of an `entryBody` of the edge protocol, as signed. */
  readonly text: string
}

/** Entries that one segment brought and that were billed together. Stored compressed, among the usage records. */
export interface Delivery {
  readonly deviceId: string
  readonly epoch: number
  readonly segment: number
  /** Written by another writer than the merged chain's; else the entries have no gaps, and their hashes chain. */
  readonly branch: boolean
  /** Hash before the first entry; not used for a branch. */
  readonly previousHash: string
  readonly entries: readonly LedgerEntry[]
  /** Numbers of the entries whose usage records an earlier delivery has: a branch's, which now join the chain. */
  readonly billedBefore: readonly number[]
  readonly inputs: DeliveryInputs
  readonly sums: DeliverySums
}

/** The cloud's part of the usage records of a delivery, as of its merge. */
export interface DeliveryInputs {
  readonly writeTime: number
  /** By instance. */
  readonly accountIds: ReadonlyMap<string, string>
  /** Quantities of known line items, by `<instance>/<line item>`. */
  readonly quantities: ReadonlyMap<string, Micro>
  /** Tokens used before the first entry, by account. */
  readonly used: ReadonlyMap<AccountId, Micro>
}

/** Of the usage records of a delivery. */
export interface DeliverySums {
  readonly records: number
  /** Of all entries; null: several. */
  readonly instanceId: string | null
  /** Earliest and latest usage, POSIX ms. */
  readonly from: number
  readonly to: number
  readonly lines: readonly UsageSum[]
  readonly refunds: number
  /** Entries that charge the next interval of a session, by result. */
  readonly automaticCharges: { readonly charged: number; readonly refused: number }
}

export interface UsageSum {
  readonly operation: UsageOperation
  readonly status: string
  readonly records: number
  readonly tokens: Micro
}

export interface DeviceAccountRecord extends DeviceAccount {
  readonly deviceId: string
  readonly epoch: number
  readonly account: AccountId
  /** Metered at any time: another writer may still meter it. */
  readonly wasMetered: boolean
  readonly branchUsed: Micro
  /** The part of it above the grants by the offline policy; per epoch at most the policy's cap. */
  readonly branchOverspend: Micro
  /** Settled as used, without evidence; shrinks as evidence arrives. */
  readonly presumed: Micro
  /** Settled as unused, without evidence; may turn out to be spent. */
  readonly released: Micro
}

export function newDeviceAccount(deviceId: string, epoch: number, account: AccountId): DeviceAccountRecord {
  return {
    ...NO_DEVICE_ACCOUNT,
    deviceId,
    epoch,
    account,
    wasMetered: false,
    branchUsed: 0n,
    branchOverspend: 0n,
    presumed: 0n,
    released: 0n,
  }
}

export function spentOn({ used, refunded, branchUsed }: DeviceAccountRecord): Micro {
  return used - refunded + branchUsed
}

export function billedOn(record: DeviceAccountRecord): Micro {
  return spentOn(record) + record.presumed
}

/**
 * Tokens that the pool reserves for the epoch: the grant, or the spending where copies or a settled device exceeded it.
 */
export function reservedOn(record: DeviceAccountRecord): Micro {
  const [out, spent] = [outstanding(record) - record.released, spentOn(record)]
  return out > spent ? out : spent
}

export function overspendOn({ overspend, branchOverspend }: DeviceAccountRecord): Micro {
  return overspend + branchOverspend
}

/** Tokens that the device may have spent without reporting it. */
export function unaccountedOn(record: DeviceAccountRecord): Micro {
  const open = outstanding(record) - spentOn(record)
  return open < 0n ? 0n : open
}

/** Settles everything still open on the account of a settled epoch, after new reports. */
export function settled(record: DeviceAccountRecord, settlement: Settlement | null): DeviceAccountRecord {
  if (settlement === null) return record
  const open = unaccountedOn(record)
  return settlement === 'CHARGED'
    ? { ...record, presumed: open, released: 0n }
    : { ...record, presumed: 0n, released: open }
}

/** Cloud users that can be short of tokens: clients, sessions due for renewal, the cloud's reserve. */
export const CLOUD_CLIENTS = 'cloud/clients'
export const CLOUD_RENEWALS = 'cloud/renewals'
export const CLOUD_RESERVE = 'cloud/reserve'

/** An account could not serve a need, or a request for tokens in advance. */
export interface Shortage {
  readonly account: AccountId
  readonly who: string
  /** Missing tokens; 0n: only tokens in advance are missing, or the need has been met. */
  readonly lacking: Micro
  /** Free tokens of the pool that suffice to serve it. */
  readonly enough: Micro
  /** Balance that other devices may keep; null: no recall. */
  readonly keep: Micro | null
  readonly since: number
  readonly at: number
  readonly recalledAt: number | null
  readonly notifiedAt: number | null
}

/** Unspent tokens of an account on devices, by their last reports. */
export interface Returnable {
  /** On devices that synced lately. */
  readonly inContact: Micro
  readonly all: Micro
}

export const NOTHING_RETURNABLE: Returnable = { inContact: 0n, all: 0n }

export interface Recall {
  readonly account: AccountId
  readonly keep: Micro
}

export interface EnrollmentRecord {
  readonly jti: string
  readonly thumbprint: string
  readonly deviceId: string
  readonly at: number
}

export interface OfflinePolicyRecord {
  readonly instanceId: string
  readonly lineItemId: string
  /** 0n: refuse. */
  readonly overspendCap: Micro
  /** The highest of all revisions: a device may use an old one until it syncs. */
  readonly overspendCapMax: Micro
}

export interface CloudReserve {
  readonly instanceId: string
  readonly lineItemId: string
  /** 0n: none. */
  readonly tokens: Micro
}

/** Shortages of an account: the asking one's, and figures of all others. */
export interface Shortages {
  readonly own: Shortage | undefined
  /** Free tokens that others are short of now and that are recalled for them. */
  readonly othersLacking: Micro
  /** When tokens were last recalled for another one. */
  readonly othersRecalledAt: number | null
}

export const NO_SHORTAGES: Shortages = { own: undefined, othersLacking: 0n, othersRecalledAt: null }

/**
 * Bounds on both sides: a note after the present comes from a clock that was ahead, and would stay recent until then.
 */
export interface NotedTimes {
  /** Exclusive. */
  readonly since: number
  /** Inclusive. */
  readonly until: number
}

export interface ShortTimes extends NotedTimes {
  /** Others count as short now if noted later. */
  readonly shortSince: number
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
