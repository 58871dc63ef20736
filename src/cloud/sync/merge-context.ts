/** What the steps of a merge share: the segment with what is locked for it, and the result. */
import { type AccountId, instanceIdOf } from '../../core/accounts/account.ts'
import type { ChainFit } from '../../core/sync/receive.ts'
import type { SyncAnswerWire } from '../../protocol/edge/sync.ts'
import { signDocument } from '../../protocol/signing.ts'
import type { Policies } from '../policy/load-policy.ts'
import type { RulesInForce } from '../policy/rules-in-force.ts'
import type { Store, Transaction } from '../storage/store.ts'
import type { Keyring } from '../devices/keyring.ts'
import type { OpenedSegment } from './open-segment.ts'
import type { Device, Epoch, Moment } from '../storage/device-records.ts'
import type { Proof } from './open-proofs.ts'
import type { EdgeTerms } from '../devices/terms.ts'
import type { GiveWay } from '../runtime/give-way.ts'

export interface SyncDeps {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly keys: Keyring
  readonly now: () => number
  readonly present: () => number
  /** False while the clock is in doubt: then nothing is deleted for its age. */
  readonly trustsClock: () => boolean
  /** Absent: long work never gives way to other events. */
  readonly giveWay?: GiveWay
  readonly terms: EdgeTerms
  readonly policies: Pick<Policies, 'lockSomeShared'>
  readonly heartbeat: (tx: Transaction, device: Device, now: number, locked: ReadonlySet<string>) => Promise<void>
}

export interface MergeContext extends Moment {
  readonly deps: SyncDeps
  readonly tx: Transaction
  readonly device: Device
  readonly epoch: Epoch
  readonly segment: OpenedSegment
  readonly fit: ChainFit
  /** Ids of the sessions locked by this transaction: it touches no others. */
  readonly sessions: ReadonlySet<string>
  /** Whether the device may have sessions that have not ended, also others than these. */
  readonly hasSessions: boolean
  /** The cloud's response to this segment before it was restored; null: none. */
  readonly proof: Proof | null
  /** Counts the pools that the segment opens, also if it is rejected. */
  readonly opened: { pools: number }
}

export interface MergeUnderRules extends MergeContext {
  readonly rules: RulesInForce
}

/** Entries that cannot be billed and are kept as evidence; reported to device and administrator. */
export interface Unbilled {
  readonly entries: number
  readonly problem: string
}

export type MergeResult =
  | { readonly accepted: true; readonly answer: string; readonly unbilled: Unbilled | null }
  /** Inconsistent: `answer` is the signed refusal. Malformed: none, because a later segment may correct it. */
  | {
      readonly accepted: false
      readonly problem: string
      readonly details?: Readonly<Record<string, unknown>>
      readonly answer?: string
    }

export function ownerOf({ deviceId, number }: Pick<Epoch, 'deviceId' | 'number'>): {
  readonly deviceId: string
  readonly epoch: number
} {
  return { deviceId, epoch: number }
}

/** Whether the account belongs to an instance of the device. */
export function isServed(account: AccountId, { instanceIds }: Pick<Device, 'instanceIds'>): boolean {
  return instanceIds.includes(instanceIdOf(account))
}

/** Signed inside the transaction and stored with it; a rerun only signs again. */
export async function signAnswer({ keys }: Pick<SyncDeps, 'keys'>, answer: SyncAnswerWire): Promise<string> {
  return signDocument('sync-answer', JSON.stringify(answer), keys.signer)
}
