/** Proofs for a cloud that has forgotten what it signed, as many as fit the body of one sync. */
import { PROOFS_MAX, PROOFS_TEXT_MAX, SYNC_BODY_BYTES_MAX } from '../../protocol/edge/sync.ts'

/** Bytes of a body without segment and proofs, and of each proof without its text. */
const BODY_FRAME_BYTES = 200
const PROOF_FRAME_BYTES = 3

interface Shown {
  readonly shown: string[]
  readonly rest: readonly string[]
}

/**
 * All are compact JWS, so a character is a byte. Skips a proof that fits no body with this segment. Several proofs are short
 * enough for a body with the longest segment.
 */
export function proofsBeside(segment: string, proofs: readonly string[]): Shown {
  const available = SYNC_BODY_BYTES_MAX - BODY_FRAME_BYTES - segment.length
  const shown: string[] = []
  let length = 0
  for (const [index, proof] of proofs.entries()) {
    if (proof.length + PROOF_FRAME_BYTES > available) continue
    length += proof.length
    const isTooMuch = shown.length === PROOFS_MAX || (shown.length > 0 && length > PROOFS_TEXT_MAX)
    if (isTooMuch) return { shown, rest: proofs.slice(index) }
    shown.push(proof)
  }
  return { shown, rest: [] }
}
