/**
 * What the twin keeps of the edge: devices, their incarnations, what they reported and what they hold. Instants are POSIX
 * milliseconds, amounts micro-tokens; null means that there is none.
 */
import type { AccountId } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import { type DeviceAccount, type IncarnationState, NO_DEVICE_ACCOUNT } from '../../../core/receive.ts'
import type { PublicJwk } from '../../../protocol/signing.ts'

export interface Device {
  readonly id: string
  readonly name: string | null
  readonly publicKey: PublicJwk
  /** RFC 7638, of the public key. */
  readonly thumbprint: string
  /** In ascending order. */
  readonly instanceIds: readonly string[]
  readonly enrolledAt: number
  readonly revokedAt: number | null
  /** When its last segment was taken in. */
  readonly lastSyncAt: number | null
  readonly software: string | null
  /** The current incarnation; 0 before the first attach. */
  readonly incarnation: number
  /** As of its last segment. */
  readonly backlog: number
  readonly appliedPolicies: readonly { readonly instanceId: string; readonly revision: number }[]
  /** It is asked to give back what it holds, until it has. */
  readonly releaseAsked: boolean
}

export type FenceReason = 'SUPERSEDED' | 'FORKED' | 'REJECTED' | 'REVOKED'

/** One life of a device's ledger. Never deleted: it is what tells a repetition from a second writer. */
export interface Incarnation extends IncarnationState {
  readonly deviceId: string
  readonly number: number
  readonly createdAt: number
  readonly fencedAt: number | null
  readonly fenceReason: FenceReason | null
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

/** A merged segment. Document and answer are kept for the last one of an incarnation only. */
export interface MergedSegment {
  readonly deviceId: string
  readonly incarnation: number
  readonly seq: number
  readonly hash: string
  readonly document: string | null
  readonly answer: string | null
  readonly receivedAt: number
}

/** A segment that was not merged, or that brought arrears of an earlier incarnation, as the device signed it. */
export interface Evidence {
  readonly deviceId: string
  readonly incarnation: number
  readonly kind: 'FORK' | 'REJECTED' | 'ARREARS'
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
  readonly incarnation: number
  readonly n: number
  readonly hash: string
  readonly seq: number
  /** Of another writer than the one whose chain was merged. */
  readonly branch: boolean
  /** JSON text as the device recorded it. */
  readonly body: string
}

/** One account on one incarnation. */
export interface DeviceAccountRecord extends DeviceAccount {
  readonly deviceId: string
  readonly incarnation: number
  readonly account: AccountId
  /** Charged by other writers with this identity. */
  readonly branchUsed: Micro
}

export function newDeviceAccount(deviceId: string, incarnation: number, account: AccountId): DeviceAccountRecord {
  return { ...NO_DEVICE_ACCOUNT, deviceId, incarnation, account, branchUsed: 0n }
}

/** What is billed to the account for the incarnation, all writers together. */
export function billedOn({ used, refunded, branchUsed }: DeviceAccountRecord): Micro {
  return used - refunded + branchUsed
}

/** What the pool must hold back for the incarnation: what it may still spend, or what was spent if copies spent more. */
export function heldOn(record: DeviceAccountRecord): Micro {
  const [out, spent] = [record.granted - record.returned, billedOn(record)]
  return out > spent ? out : spent
}

/** A used enrollment token. */
export interface EnrollmentRecord {
  /** Of the token. */
  readonly jti: string
  readonly thumbprint: string
  readonly deviceId: string
  readonly at: number
}
