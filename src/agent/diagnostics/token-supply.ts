/** Line items that run low or are used up, and that the cloud cannot refill now. */
import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import { roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import type { Supply } from '../ledger/demand.ts'
import type { HealthCondition } from '../runtime/health.ts'

/** Tokens that last for less than this are running low, ms. */
export const LOW_MS = 24 * 3_600_000

/** So is less than this part of a quantity, whose use is not known. */
const LOW_PART = 20n

/** @param connected the cloud refills whatever its pool has */
export function tokenConditions(
  supplies: readonly Supply[],
  connected: boolean,
  now: number,
): readonly HealthCondition[] {
  return supplies.flatMap((supply): readonly HealthCondition[] => {
    const code = connected && !supply.exhausted ? null : codeOf(supply)
    if (code === null) return []
    const lineItem = nameOf(supply.account)
    return [{ subject: `tokens of ${lineItem}`, code, message: messageOf(supply, lineItem, connected), since: now }]
  })
}

function codeOf({ left, quantity, lastsMs }: Supply): 'TOKENS_USED_UP' | 'TOKENS_LOW' | null {
  if (left === 0n) return 'TOKENS_USED_UP'
  const isLow = lastsMs === null ? left * LOW_PART < quantity : lastsMs < LOW_MS
  return isLow ? 'TOKENS_LOW' : null
}

function messageOf({ left, lastsMs, exhausted }: Supply, lineItem: string, connected: boolean): string {
  const why = exhausted ? 'its pool in the cloud has no more' : 'the cloud is out of reach'
  if (left === 0n) return `The tokens of the line item ${lineItem} are used up, and ${why}.`
  const lasts = lastsMs === null ? '' : `, enough for about ${roughly(lastsMs)} at the current rate`
  const refill = connected
    ? `${why[0]?.toUpperCase() ?? ''}${why.slice(1)}.`
    : `The device is offline, so they are not refilled.`
  return `The line item ${lineItem} has ${tokensInWords(left)} tokens left on this device${lasts}. ${refill}`
}

function nameOf(account: AccountId): string {
  const parsed = parseAccount(account)
  return parsed?.kind === 'line' ? parsed.lineItemId : account
}
