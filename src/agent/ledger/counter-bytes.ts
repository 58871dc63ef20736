/** How much of a segment the counters of an account take: whoever fills a segment counts by it, and none comes out too large. */
import type { AccountId } from '../../core/accounts/account.ts'

/** Their JSON is at most so many bytes: the id, three numbers of up to 19 digits, and the names of the four. */
export function counterBytesMax(account: AccountId): number {
  return Buffer.byteLength(JSON.stringify(account)) + 110
}
