/**
 * What an answer to a segment means for the device. The answer is signed by the cloud; this says whether it belongs to the
 * segment that was sent, and what follows from it. Nothing that does not belong changes anything.
 */
import type { Grant, SyncAnswer } from '../../protocol/edge/sync.ts'

export interface SentSegment {
  readonly deviceId: string
  readonly epoch: number
  readonly seq: number
  readonly hash: string
}

export type Judgement =
  /** It answers something else: ignore it. */
  | { readonly kind: 'FOREIGN' }
  /** The segment is merged. */
  | { readonly kind: 'MERGED'; readonly answer: Extract<SyncAnswer, { outcome: 'MERGED' }> }
  /** The segment was merged before, and others after it that this device has sealed. */
  | { readonly kind: 'KNOWN'; readonly seq: number }
  /** The cloud knows segments that this device has not sealed: its state went back in time, or it is a copy. */
  | { readonly kind: 'RESTORED'; readonly seq: number }
  /** The cloud has lost the segments from `resendFrom` on. */
  | { readonly kind: 'BEHIND'; readonly resendFrom: number }
  /** The epoch is over. */
  | {
      readonly kind: 'FENCED'
      /** Billed: the segment need not be sent again. */
      readonly acknowledged: boolean
      readonly closed: boolean
      readonly forked: boolean
    }
  /** The segment does not add up: nothing of it counts, and nothing can follow it. */
  | { readonly kind: 'REJECTED'; readonly problem: string }

/**
 * Rows are tried from the top.
 *
 * | answer | condition                                        | meaning                     |
 * |--------|--------------------------------------------------|-----------------------------|
 * | any    | another device or epoch                    | FOREIGN                     |
 * | MERGED | seq and hash are those of the segment            | MERGED                      |
 * | KNOWN  | seq above the last one sealed here               | RESTORED                    |
 * | KNOWN  | seq at or above the segment                      | KNOWN                       |
 * | BEHIND | seq below the segment before this one            | BEHIND                      |
 * | FENCED | seq and hash are those of the segment, or forked | FENCED, acknowledged        |
 * | FENCED | otherwise                                        | FENCED, not acknowledged    |
 * | REJECTED | hash is that of the segment                    | REJECTED                    |
 * | any    | otherwise                                        | FOREIGN                     |
 *
 * @param lastSeq the last segment that this epoch has sealed
 */
export function judgeAnswer(answer: SyncAnswer, sent: SentSegment, lastSeq: number): Judgement {
  if (answer.deviceId !== sent.deviceId || answer.epoch !== sent.epoch) return { kind: 'FOREIGN' }
  switch (answer.outcome) {
    case 'MERGED':
      return answer.seq === sent.seq && answer.hash === sent.hash ? { kind: 'MERGED', answer } : { kind: 'FOREIGN' }
    case 'KNOWN':
      if (answer.seq > lastSeq) return { kind: 'RESTORED', seq: answer.seq }
      return answer.seq >= sent.seq ? { kind: 'KNOWN', seq: answer.seq } : { kind: 'FOREIGN' }
    case 'BEHIND':
      return answer.seq < sent.seq - 1 ? { kind: 'BEHIND', resendFrom: answer.seq + 1 } : { kind: 'FOREIGN' }
    case 'FENCED': {
      const { closed, forked } = answer
      const acknowledged = forked || (answer.seq === sent.seq && answer.hash === sent.hash)
      return { kind: 'FENCED', acknowledged, closed, forked }
    }
    case 'REJECTED':
      return answer.hash === sent.hash ? { kind: 'REJECTED', problem: answer.problem } : { kind: 'FOREIGN' }
  }
}

/** The grant of an answer if it is news: a device takes only a higher term than it ever took in this epoch. */
export function newerGrant(grant: Grant | null, termHeld: number): Grant | null {
  return grant !== null && grant.term > termHeld ? grant : null
}
