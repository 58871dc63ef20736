import type { AccountId } from '../../core/accounts/account.ts'

/**
 * Upper bound of the JSON of an account's counters: the id, three numbers of up to 19 digits, and the names of the
 * four.
 */
export function counterBytesMax(account: AccountId): number {
  return Buffer.byteLength(JSON.stringify(account)) + 110
}
