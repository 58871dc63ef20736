/**
 * What the twin keeps of the edge: devices, their epochs, what they reported and what they hold. Instants are POSIX
 * milliseconds, amounts micro-tokens; null means that there is none.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { type DeviceAccount, type EpochState, NO_DEVICE_ACCOUNT } from '../../core/sync/receive.ts'
import type { DeviceSuspension } from '../../protocol/edge/device-hold.ts'
import type { PublicJwk } from '../../protocol/signing.ts'

export interface DeviceKey {
  readonly publicKey: PublicJwk
  /** RFC 7638. */
  readonly thumbprint: string
}

/** A key that a device has, had or has announced. */
export interface KnownDeviceKey extends DeviceKey {
  readonly device: Device
  /** `PAST`: it was replaced, or another one was announced in its place. */
  readonly state: 'CURRENT' | 'NEXT' | 'PAST'
}

export interface Device {
  readonly id: string
  readonly name: string | null
  readonly publicKey: PublicJwk
  /** RFC 7638, of the public key. */
  readonly thumbprint: string
  /** Since when it is the key of this device. */
  readonly keySince: number
  /** Announced by the device: taken as well, and in the place of the other one with its first use. Null: there is none. */
  readonly nextKey: DeviceKey | null
  /** Thumbprint of the key that an administrator wants replaced; of no effect once it has been. */
  readonly replaceKey: string | null
  /** In ascending order. */
  readonly instanceIds: readonly string[]
  readonly enrolledAt: number
  readonly revokedAt: number | null
  /** Id of the administration key that revoked it. */
  readonly revokedBy: string | null
  readonly suspension: DeviceSuspension | null
  /** When its last segment was taken in. */
  readonly lastSyncAt: number | null
  readonly software: string | null
  /** The current epoch; 0 before the first attach. */
  readonly epoch: number
  /** As of its last segment. */
  readonly backlog: number
  readonly appliedPolicies: readonly { readonly instanceId: string; readonly revision: number }[]
  /** It is asked to give back what it holds, until it has. */
  readonly releaseRequested: boolean
  /** What it knew of the time when it sealed its last segment; null before the first. */
  readonly clock: DeviceClock | null
}

/** POSIX ms. `latest` null: unbounded. */
export interface DeviceClock {
  readonly now: number
  readonly earliest: number
  readonly latest: number | null
  /** By the twin's clock, when the segment was taken in. */
  readonly takenAt: number
}

/** What is done to devices and sessions: the name of the order, as it stands in the audit. */
export type AuditedAction =
  | 'LOCK_DEVICE'
  | 'UNLOCK_DEVICE'
  | 'TERMINATE_DEVICE'
  | 'RELEASE_DEVICE'
  | 'REVOKE_DEVICE'
  | 'ROTATE_DEVICE_KEY'
  | 'REPLACE_DEVICE_KEY'
  | 'LOCK_SESSION'
  | 'UNLOCK_SESSION'
  | 'TERMINATE_SESSION'
  | 'NOTICE_RESTORE'
  | 'CONFIRM_CLOCK'
  | 'CONFIRM_SETTLEMENT'
  | 'SET_CLOUD_RESERVE'
  | 'END_RECOVERY'

/** Who did what: written in the transaction that does it. */
export interface AuditRecord {
  /** POSIX ms. */
  readonly at: number
  /**
   * Id of the administration key; of `REPLACE_DEVICE_KEY` that of the device's own key from before; of `NOTICE_RESTORE` `twin`.
   */
  readonly by: string
  readonly action: AuditedAction
  readonly deviceId: string | null
  readonly sessionId: string | null
  /** Of `SET_CLOUD_RESERVE`. Absent: it is about none. */
  readonly lineItem?: CloudReserve
  /** What it was about, where that is no device or session; null: nothing more. */
  readonly detail: string | null
}

/** The twin was restored from a backup, and does not know all that was sold and granted in the instance. */
export interface Recovery {
  readonly instanceId: string
  /** Devices have to be heard from since then. */
  readonly since: number
  /**
   * Why the twin does not know how much was sold, so that it sells nothing: `NODE` until another node has shown its sales
   * mark, `MARK` until an administrator ends the recovery. Null: what may have been sold is withheld from each account, and
   * the rest is sold.
   */
  readonly unproven: 'MARK' | 'NODE' | null
  /** Null: under way. */
  readonly endedAt: number | null
  /** Id of an administration key, or `twin`. */
  readonly endedBy: string | null
}

export interface AwaitedDevice {
  readonly deviceId: string
  /** Null: it has never attached. */
  readonly epoch: number | null
  readonly status: Epoch['status'] | null
}

/** What the database knows of the sales mark of a node. */
export interface SalesMarkRecord {
  readonly id: string
  /** Counted up in the file and here: where the two differ, one of them is older than the other. */
  readonly turn: number
  readonly seenAt: number
  /** Recovery waits for what it shows. */
  readonly awaited: boolean
  /** It was there before the database had anything to lose, or a node that has its own mark has accepted it. */
  readonly accepted: boolean
}

/** When something happens to an epoch, POSIX ms. */
export interface Moment {
  /** By the wall clock, which may be wrong. */
  readonly now: number
  /** The time by which silence is counted: see `ClockGuard.present`. */
  readonly present: number
}

export type FenceReason = 'SUPERSEDED' | 'FORKED' | 'REJECTED' | 'REVOKED' | 'SILENT' | 'TERMINATED'

/** `CHARGED`: what was out counts as used. `RELEASED`: it went back to the pool, at the risk that it was used. */
export type Settlement = 'CHARGED' | 'RELEASED'

/** One life of a device's ledger. Never deleted: it is what tells a repetition from a second writer. */
export interface Epoch extends EpochState {
  readonly deviceId: string
  readonly number: number
  readonly createdAt: number
  readonly fencedAt: number | null
  readonly fenceReason: FenceReason | null
  /** When it was last heard of, or fenced, by {@link Moment.present}. */
  readonly quietSince: number
  /** How it was settled after it had been silent for too long; null while it has not been. */
  readonly settlement: Settlement | null
  readonly settledAt: number | null
  /** Two writers continued its chain. */
  readonly forked: boolean
  /** A segment of it did not add up. */
  readonly rejected: boolean
  /** The device knows of segments or grants that the twin does not: the twin was restored. */
  readonly grantsForgotten: boolean
  /** Of the last grant; 0 before the first. */
  readonly term: number
  /** The attach that made it; null when the twin, restored, learned of it from a segment. */
  readonly nonce: string | null
  /** The signed answer to that attach. */
  readonly attachAnswer: string | null
}

/** A merged segment. Document and answer are kept for the last one of an epoch only. */
export interface MergedSegment {
  readonly deviceId: string
  readonly epoch: number
  readonly seq: number
  readonly hash: string
  readonly document: string | null
  readonly answer: string | null
  readonly receivedAt: number
}

/** A segment that was not merged, or that brought the undelivered range of an earlier epoch, as the device signed it. */
export interface Evidence {
  readonly deviceId: string
  readonly epoch: number
  readonly kind: 'FORK' | 'REJECTED' | 'UNDELIVERED_RANGE'
  readonly seq: number
  readonly hash: string
  /** Hash of the merged segment with the same seq, where there is one. */
  readonly recordedHash: string | null
  /** The merged segment that it contradicts, where it is still kept. */
  readonly recordedDocument: string | null
  /** What does not add up. */
  readonly problem: string | null
  readonly document: string
  readonly receivedAt: number
}

/** A ledger entry of a device that is billed, once: its hash covers it and everything before it. */
export interface LedgerEntry {
  readonly deviceId: string
  readonly epoch: number
  readonly n: number
  readonly hash: string
  readonly seq: number
  /** Of another writer than the one whose chain was merged. */
  readonly branch: boolean
  /** JSON text as the device recorded it. */
  readonly body: string
}

/** One account on one epoch. */
export interface DeviceAccountRecord extends DeviceAccount {
  readonly deviceId: string
  readonly epoch: number
  readonly account: AccountId
  /** Charged by other writers with this identity. */
  readonly branchUsed: Micro
  /** How much of that was above the grants by the offline policy of the line item: of the whole epoch, at most its cap. */
  readonly branchOverspend: Micro
  /** Settled as used, without evidence; falls as evidence comes in. */
  readonly presumed: Micro
  /** Settled as unused, without evidence: what may still turn out to have been spent. */
  readonly released: Micro
}

export function newDeviceAccount(deviceId: string, epoch: number, account: AccountId): DeviceAccountRecord {
  return {
    ...NO_DEVICE_ACCOUNT,
    deviceId,
    epoch,
    account,
    branchUsed: 0n,
    branchOverspend: 0n,
    presumed: 0n,
    released: 0n,
  }
}

/** What is known to be spent of the account on the epoch, all writers together. */
export function spentOn({ used, refunded, branchUsed }: DeviceAccountRecord): Micro {
  return used - refunded + branchUsed
}

/** What is billed to the account for the epoch: what is known to be spent, and what is presumed to be. */
export function billedOn(record: DeviceAccountRecord): Micro {
  return spentOn(record) + record.presumed
}

/**
 * What the pool must hold back for the epoch: what it may still spend, or what was spent if copies, or a device that
 * was settled as silent, have spent more.
 */
export function reservedOn(record: DeviceAccountRecord): Micro {
  const [out, spent] = [record.granted - record.returned - record.released, spentOn(record)]
  return out > spent ? out : spent
}

/** What was spent above the grants by the offline policy, by all writers. */
export function overspendOn({ overspend, branchOverspend }: DeviceAccountRecord): Micro {
  return overspend + branchOverspend
}

/** How much more is known to be spent than was granted: by copies, or by the offline policy. */
export function overspentOn(record: DeviceAccountRecord): Micro {
  const above = spentOn(record) - (record.granted - record.returned)
  return above > 0n ? above : 0n
}

/** What is out and not accounted for: what the device may have spent without saying so. */
export function unaccountedOn(record: DeviceAccountRecord): Micro {
  const open = record.granted - record.returned - spentOn(record)
  return open < 0n ? 0n : open
}

/** The account of a settled epoch, after whatever has become known of it: all that is still open is settled. */
export function settled(record: DeviceAccountRecord, settlement: Settlement | null): DeviceAccountRecord {
  if (settlement === null) return record
  const open = unaccountedOn(record)
  return settlement === 'CHARGED'
    ? { ...record, presumed: open, released: 0n }
    : { ...record, presumed: 0n, released: open }
}

/** Who of the cloud itself is short of tokens: its clients, its sessions that are soon due, or what is reserved for it. */
export const CLOUD_CLIENTS = 'cloud/clients'
export const CLOUD_RENEWALS = 'cloud/renewals'
export const CLOUD_RESERVE = 'cloud/reserve'

/** Someone got less of an account than it needed, or than it wanted to hold in advance. */
export interface Shortage {
  readonly account: AccountId
  /** Id of a device, or one of the names above. */
  readonly who: string
  /** So many tokens it needs; 0n: it only wanted to hold some in advance, or has got what it needed since. */
  readonly lacking: Micro
  /** From so many free tokens of the pool on it can be served. */
  readonly enough: Micro
  /** What other devices may keep of the account; null: nothing is recalled from them. */
  readonly keep: Micro | null
  /** When it began to lack what it needs. */
  readonly since: number
  /** When it was last noted. */
  readonly at: number
  /** When devices were last notified that tokens are recalled; null: never. */
  readonly recalledAt: number | null
  /** When it was last notified that there are tokens again; null: never. */
  readonly notifiedAt: number | null
}

/** Others need what the device holds of the account beyond `keep`. */
export interface Recall {
  readonly account: AccountId
  readonly keep: Micro
}

/** A used enrollment token. */
export interface EnrollmentRecord {
  /** Of the token. */
  readonly jti: string
  readonly thumbprint: string
  readonly deviceId: string
  readonly at: number
}

/** What devices may spend of a line item above their grants when they cannot ask. */
export interface OfflinePolicyRecord {
  readonly instanceId: string
  readonly lineItemId: string
  /** 0n: refuse. */
  readonly overspendCap: Micro
  /** The highest that any revision of the rules has had: a device may decide by an old one until it syncs. */
  readonly overspendCapMax: Micro
}

/** Tokens of a line item, in each period, that devices are never granted: they are kept for the cloud's own clients. */
export interface CloudReserve {
  readonly instanceId: string
  readonly lineItemId: string
  /** 0n: none. */
  readonly tokens: Micro
}
