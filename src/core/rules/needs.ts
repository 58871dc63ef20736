import { type AccountId, type Posting, parseAccount } from '../accounts/account.ts'
import type { Mode } from './decide.ts'
import type { Decision, ChargeShare } from './decision.ts'
import { isShortage } from './refusal-reasons.ts'
import type { Need } from '../accounts/grant.ts'

export function payingAccounts({ postings }: Decision): (share: ChargeShare) => readonly AccountId[] {
  const touched = postings.map(({ account }) => ({ account, parsed: parseAccount(account) }))
  const byLineItem = Map.groupBy(touched, ({ parsed }) => parsed?.lineItemId)
  return ({ lineItemId, actionId }) =>
    (byLineItem.get(lineItemId) ?? [])
      .filter(({ parsed }) => parsed?.kind !== 'action' || parsed.actionId === actionId)
      .map(({ account }) => account)
}

/** In charging sequence: one need per item where items are granted separately, otherwise one for all. */
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

export function isShortItem(item: Decision['items'][number]): boolean {
  return item.outcome === 'REFUSED' && isShortage(item.reason)
}

export function isShort({ items }: Decision): boolean {
  return items.some(isShortItem)
}
