/**
 * Wants as a segment carries them. A want is a wish: one that no cloud could read would keep everything else in the segment
 * from being read, so amounts are bounded by what a counter holds, and what goes beyond the limits of the wire is left out.
 */
import { ACCOUNT_ID_MAX } from '../../../core/account.ts'
import { MICRO_MAX, type Micro } from '../../../core/amount.ts'
import type { Want } from '../../../core/grant.ts'
import { SEGMENT_ACCOUNTS_MAX, SEGMENT_WANTS_BYTES_MAX, type SegmentWire } from '../../../protocol/edge/sync.ts'

/**
 * In order, as many as one segment takes.
 *
 * @param bytesLeft what the rest of the segment leaves of its size
 */
export function segmentWants(wants: readonly Want[], bytesLeft: number): SegmentWire['wants'] {
  const bytesMax = Math.min(bytesLeft, SEGMENT_WANTS_BYTES_MAX)
  const written: SegmentWire['wants'] = []
  let bytes = 0
  for (const { account, atLeast, wanted } of wants) {
    if (written.length >= SEGMENT_ACCOUNTS_MAX) break
    if (account.length > ACCOUNT_ID_MAX) continue
    const want = { account, atLeast: countable(atLeast), wanted: countable(wanted) }
    bytes += Buffer.byteLength(JSON.stringify(want)) + 1
    if (bytes > bytesMax) break
    written.push(want)
  }
  return written
}

function countable(amount: Micro): string {
  return String(amount < MICRO_MAX ? amount : MICRO_MAX)
}
