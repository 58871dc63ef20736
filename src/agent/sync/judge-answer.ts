/** Whether a signed answer belongs to the segment that was sent, and its result. */
import type { Grant, SyncAnswer } from '../../protocol/edge/sync.ts'

export interface SentSegment {
  readonly deviceId: string
  readonly epoch: number
  readonly seq: number
  readonly hash: string
}

export type Judgement =
  /** Answer to another segment: ignore it. */
  | { readonly kind: 'FOREIGN' }
  | { readonly kind: 'MERGED'; readonly answer: Extract<SyncAnswer, { outcome: 'MERGED' }> }
  /** Already merged, with later segments that this device has sealed. */
  | { readonly kind: 'KNOWN'; readonly seq: number }
  /** The cloud knows segments that this device has not sealed: its state was restored, or it is a copy. */
  | { readonly kind: 'RESTORED' }
  /** The cloud has lost the segments from `resendFrom` on. */
  | { readonly kind: 'BEHIND'; readonly resendFrom: number }
  | {
      readonly kind: 'FENCED'
      /** Billed: do not send it again. */
      readonly acknowledged: boolean
      readonly closed: boolean
      readonly forked: boolean
    }
  /** Invalid: nothing of it counts, and no segment can follow it. */
  | { readonly kind: 'REJECTED'; readonly problem: string }

/**
 * Rows are tried from the top.
 *
 * | answer   | condition                                        | result                   |
 * |----------|--------------------------------------------------|--------------------------|
 * | any      | another device or epoch                          | FOREIGN                  |
 * | MERGED   | seq and hash are those of the segment            | MERGED                   |
 * | KNOWN    | seq above the last one sealed here               | RESTORED                 |
 * | KNOWN    | seq at or above the segment                      | KNOWN                    |
 * | BEHIND   | seq below the segment before this one            | BEHIND                   |
 * | FENCED   | seq and hash are those of the segment, or forked | FENCED, acknowledged     |
 * | FENCED   | otherwise                                        | FENCED, not acknowledged |
 * | REJECTED | hash is that of the segment                      | REJECTED                 |
 * | any      | otherwise                                        | FOREIGN                  |
 *
 * @param lastSeq the last segment that this epoch has sealed
 */
export function judgeAnswer(answer: SyncAnswer, sent: SentSegment, lastSeq: number): Judgement {
  if (answer.deviceId !== sent.deviceId || answer.epoch !== sent.epoch) return { kind: 'FOREIGN' }
  switch (answer.outcome) {
    case 'MERGED':
      return answer.seq === sent.seq && answer.hash === sent.hash ? { kind: 'MERGED', answer } : { kind: 'FOREIGN' }
    case 'KNOWN':
      if (answer.seq > lastSeq) return { kind: 'RESTORED' }
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

/** Null unless the term is higher than any that this epoch received. */
export function newerGrant(grant: Grant | null, currentTerm: number): Grant | null {
  return grant !== null && grant.term > currentTerm ? grant : null
}
