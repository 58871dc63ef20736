/**
 * Top-up requests as a segment carries them. They are wishes: one that no cloud could read would keep everything else in the
 * segment from being read, so amounts are bounded by what a counter holds, and what goes beyond the limits of the wire is left
 * out.
 */
import { ACCOUNT_ID_MAX } from '../../../core/account.ts'
import { countable } from '../../../core/amount.ts'
import type { Need, Want } from '../../../core/grant.ts'
import {
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_NEEDS_BYTES_MAX,
  SEGMENT_NEEDS_MAX,
  SEGMENT_WANTS_BYTES_MAX,
  type SegmentWire,
} from '../../../protocol/edge/sync.ts'

/**
 * In order, as many as one segment takes; the needs of waiting requests have the first place.
 *
 * @param bytesLeft what the rest of the segment leaves of its size
 */
export function segmentTopUps(
  { needs, wants }: { readonly needs: readonly Need[]; readonly wants: readonly Want[] },
  bytesLeft: number,
): Pick<SegmentWire, 'needs' | 'wants'> {
  const writtenNeeds = upTo(
    needs.map((need) => need.map(({ account, amount }) => ({ account, amount: String(countable(amount)) }))),
    { count: SEGMENT_NEEDS_MAX, bytes: Math.min(bytesLeft, SEGMENT_NEEDS_BYTES_MAX) },
  )
  const taken = Buffer.byteLength(JSON.stringify(writtenNeeds))
  const writtenWants = upTo(
    wants
      .filter(({ account }) => account.length <= ACCOUNT_ID_MAX)
      .map(({ account, wanted }) => ({ account, wanted: String(countable(wanted)) })),
    { count: SEGMENT_ACCOUNTS_MAX, bytes: Math.min(bytesLeft - taken, SEGMENT_WANTS_BYTES_MAX) },
  )
  return { needs: writtenNeeds, wants: writtenWants }
}

function upTo<T>(all: readonly T[], most: { readonly count: number; readonly bytes: number }): T[] {
  const written: T[] = []
  let bytes = 0
  for (const each of all) {
    bytes += Buffer.byteLength(JSON.stringify(each)) + 1
    if (written.length >= most.count || bytes > most.bytes) break
    written.push(each)
  }
  return written
}
