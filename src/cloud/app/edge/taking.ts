/** A segment on its way through one transaction, and how it is answered. */
import type { ChainFit } from '../../../core/receive.ts'
import type { SyncAnswerWire } from '../../../protocol/edge/sync.ts'
import { signDocument } from '../../../protocol/signing.ts'
import type { Policies } from '../load-policy.ts'
import type { Store, Transaction } from '../store.ts'
import type { KeyRing } from './key-ring.ts'
import type { OpenedSegment } from './open-segment.ts'
import type { Device, Incarnation, Moment } from './records.ts'
import type { Proof } from './open-proofs.ts'
import type { EdgeTerms } from './terms.ts'
import type { Unbilled } from './unbilled.ts'

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

export interface Taking extends Moment {
  readonly deps: Sync
  readonly tx: Transaction
  /** Locked. */
  readonly device: Device
  readonly incarnation: Incarnation
  readonly segment: OpenedSegment
  /** How its entries fit the chain of the incarnation. */
  readonly fit: ChainFit
  /** Ids of the sessions that this transaction has locked: it touches no others. */
  readonly sessions: ReadonlySet<string>
  /** The answer that the twin gave to this segment before it was restored from a backup; null for none. */
  readonly proof: Proof | null
}

export type Taken =
  /** The signed answer, and what of the segment is not billed. */
  | { readonly taken: true; readonly answer: string; readonly unbilled: Unbilled | null }
  /**
   * In words for whoever looks after the device. It does not add up: `answer` is the signed refusal, and the device goes on
   * with the next incarnation. It is malformed or not signed by the device: there is no answer, because software of another
   * version, or a better segment, may still set it right.
   */
  | {
      readonly taken: false
      readonly problem: string
      readonly facts?: Readonly<Record<string, unknown>>
      readonly answer?: string
    }

/** What names an incarnation in rows and answers. */
export function ownerOf({ deviceId, number }: Pick<Incarnation, 'deviceId' | 'number'>): {
  readonly deviceId: string
  readonly incarnation: number
} {
  return { deviceId, incarnation: number }
}

/** Signed inside the transaction, to be stored with it: a transaction that runs twice only signs twice. */
export async function signAnswer({ keys }: Pick<Sync, 'keys'>, answer: SyncAnswerWire): Promise<string> {
  return signDocument('sync-answer', JSON.stringify(answer), keys.signer)
}
