/** What a decision takes from which account, item by item, and whether tokens were missing. */
import { type AccountId, type Posting, parseAccount } from '../accounts/account.ts'
import type { Mode } from './decide.ts'
import type { Decision, ChargeShare, RefusalReason } from './decision.ts'
import type { Need } from '../accounts/grant.ts'

/** Finds the accounts that a part of the decision was charged to. */
export function payingAccounts({ postings }: Decision): (share: ChargeShare) => readonly AccountId[] {
  const touched = postings.map(({ account }) => ({ account, parsed: parseAccount(account) }))
  return ({ lineItemId, actionId }) =>
    touched
      .filter(
        ({ parsed }) => parsed?.lineItemId === lineItemId && (parsed.kind !== 'action' || parsed.actionId === actionId),
      )
      .map(({ account }) => account)
}

/**
 * What would have to be there for the decision: each item by itself where items are granted one by one, all of them together
 * otherwise. In the order in which they are charged.
 */
export function needsOf(decision: Decision, mode: Mode): readonly Need[] {
  if (decision.postings.length === 0) return []
  if (mode === 'ALL_OR_NOTHING') return [decision.postings]
  const accountsOf = payingAccounts(decision)
  return decision.items.flatMap((item): Need[] => {
    if (item.outcome !== 'GRANTED') return []
    const need = item.shares.flatMap((share): Posting[] =>
      share.charged > 0n ? accountsOf(share).map((account) => ({ account, amount: share.charged })) : [],
    )
    return need.length > 0 ? [need] : []
  })
}

const SHORT: ReadonlySet<string> = new Set<RefusalReason>([
  'INSUFFICIENT_TOKENS',
  'ALLOCATION_EXHAUSTED',
  'CONSUMPTION_LIMIT_REACHED',
  'GRANT_EXHAUSTED',
  'GRANT_EXPIRED',
])

/** Whether the item was refused because tokens were missing. */
export function isShortItem(item: Decision['items'][number]): boolean {
  return item.outcome === 'REFUSED' && SHORT.has(item.reason)
}

/** Whether something was refused because tokens were missing. */
export function isShort({ items }: Decision): boolean {
  return items.some(isShortItem)
}
