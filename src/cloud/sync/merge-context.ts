/** A segment on its way through one transaction, and how it is answered. */
import type { ChainFit } from '../../core/sync/receive.ts'
import type { SyncAnswerWire } from '../../protocol/edge/sync.ts'
import { signDocument } from '../../protocol/signing.ts'
import type { Policies } from '../policy/load-policy.ts'
import type { Store, Transaction } from '../storage/store.ts'
import type { KeyRing } from '../devices/key-ring.ts'
import type { OpenedSegment } from './open-segment.ts'
import type { Device, Epoch, Moment } from '../storage/device-records.ts'
import type { Proof } from './open-proofs.ts'
import type { EdgeTerms } from '../devices/terms.ts'
import type { Unbilled } from './merge/unbilled.ts'

/** What taking in a segment needs. */
export interface Sync {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly keys: KeyRing
  /** POSIX ms. */
  readonly now: () => number
  /** {@link Moment.present} */
  readonly present: () => number
  /** Whether what is old may be dropped: false while the clock is in doubt. */
  readonly trustsClock: () => boolean
  readonly terms: EdgeTerms
  readonly policies: Pick<Policies, 'hold'>
  /** A sync counts as a heartbeat of the sessions that the device has opened. */
  readonly heartbeat: (tx: Transaction, device: Device, now: number, locked: ReadonlySet<string>) => Promise<void>
}

export interface MergeContext extends Moment {
  readonly deps: Sync
  readonly tx: Transaction
  /** Locked. */
  readonly device: Device
  readonly epoch: Epoch
  readonly segment: OpenedSegment
  /** How its entries fit the chain of the epoch. */
  readonly fit: ChainFit
  /** Ids of the sessions that this transaction has locked: it touches no others. */
  readonly sessions: ReadonlySet<string>
  /** The answer that the twin gave to this segment before it was restored from a backup; null for none. */
  readonly proof: Proof | null
}

export type MergeResult =
  /** The signed answer, and what of the segment is not billed. */
  | { readonly taken: true; readonly answer: string; readonly unbilled: Unbilled | null }
  /**
   * In words for whoever looks after the device. It does not add up: `answer` is the signed refusal, and the device goes on
   * with the next epoch. It is malformed or not signed by the device: there is no answer, because software of another
   * version, or a better segment, may still set it right.
   */
  | {
      readonly taken: false
      readonly problem: string
      readonly details?: Readonly<Record<string, unknown>>
      readonly answer?: string
    }

/** What names an epoch in rows and answers. */
export function ownerOf({ deviceId, number }: Pick<Epoch, 'deviceId' | 'number'>): {
  readonly deviceId: string
  readonly epoch: number
} {
  return { deviceId, epoch: number }
}

/** Signed inside the transaction, to be stored with it: a transaction that runs twice only signs twice. */
export async function signAnswer({ keys }: Pick<Sync, 'keys'>, answer: SyncAnswerWire): Promise<string> {
  return signDocument('sync-answer', JSON.stringify(answer), keys.signer)
}
