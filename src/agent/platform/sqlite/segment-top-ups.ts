import { ACCOUNT_ID_MAX } from '../../../core/accounts/account.ts'
import { countable } from '../../../core/pricing/amount.ts'
import type { TopUps } from '../../../core/accounts/grant.ts'
import {
  SEGMENT_ACCOUNTS_MAX,
  SEGMENT_NEEDS_BYTES_MAX,
  SEGMENT_NEEDS_MAX,
  SEGMENT_TOP_UPS_BYTES_MAX,
  type SegmentWire,
} from '../../../protocol/edge/sync.ts'

/** As many as fit, waiting requests first. An invalid amount would make the whole segment unreadable. */
export function segmentTopUps(
  { needs, topUpRequests }: TopUps,
  bytesLeft: number,
): Pick<SegmentWire, 'needs' | 'topUpRequests'> {
  const writtenNeeds = upTo(
    needs.map((need) => need.map(({ account, amount }) => ({ account, amount: String(countable(amount)) }))),
    { count: SEGMENT_NEEDS_MAX, bytes: Math.min(bytesLeft, SEGMENT_NEEDS_BYTES_MAX) },
  )
  const taken = Buffer.byteLength(JSON.stringify(writtenNeeds))
  const writtenTopUps = upTo(
    topUpRequests
      .filter(({ account }) => account.length <= ACCOUNT_ID_MAX)
      .map(({ account, wanted }) => ({ account, wanted: String(countable(wanted)) })),
    { count: SEGMENT_ACCOUNTS_MAX, bytes: Math.min(bytesLeft - taken, SEGMENT_TOP_UPS_BYTES_MAX) },
  )
  return { needs: writtenNeeds, topUpRequests: writtenTopUps }
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
