/**
 * What goes beside a segment to a cloud that has forgotten what it signed: as much as the body of one sync holds, in the order
 * in which it is to be shown. The rest goes with the segments after it.
 */
import { PROOFS_MAX, SYNC_BODY_BYTES_MAX } from '../../protocol/edge/sync.ts'

/** Of a body, without its segment and the proofs, and of each proof, without its text, bytes. */
const BODY_FRAME_BYTES = 200
const PROOF_FRAME_BYTES = 3

export interface Shown {
  readonly shown: string[]
  /** Still to be shown. */
  readonly rest: readonly string[]
}

/** All of them compact JWS: a character is a byte. One that no body holds beside this segment is passed over. */
export function proofsBeside(segment: string, proofs: readonly string[]): Shown {
  const available = SYNC_BODY_BYTES_MAX - BODY_FRAME_BYTES - segment.length
  const shown: string[] = []
  let left = available
  for (const [index, proof] of proofs.entries()) {
    const bytes = proof.length + PROOF_FRAME_BYTES
    if (bytes > available) continue
    if (bytes > left || shown.length === PROOFS_MAX) return { shown, rest: proofs.slice(index) }
    shown.push(proof)
    left -= bytes
  }
  return { shown, rest: [] }
}
