import type { AccountId } from '../../core/accounts/account.ts'
import type { Need, TopUpRequest, TopUps } from '../../core/accounts/grant.ts'
import { type Grant, SEGMENT_ACCOUNTS_MAX } from '../../protocol/edge/sync.ts'
import type { PoolBalances, PoolBalance } from '../access/local-decisions.ts'
import type { Demand } from '../ledger/demand.ts'

interface Carried {
  readonly needs: readonly Need[]
  readonly accounts: Iterable<AccountId>
}

/** Also accounts whose balance is queried, but none that are being returned. */
export function topUpsOf(
  demand: Pick<Demand, 'topUpRequests' | 'exhaustedAccounts'>,
  { needs, accounts }: Carried,
  givenBack: ReadonlySet<AccountId>,
  isReleasing: boolean,
): TopUps {
  const topUpRequests = new Map(
    [...accounts].map((account): [AccountId, TopUpRequest] => [account, { account, wanted: 0n }]),
  )
  for (const topUpRequest of isReleasing ? [] : demand.topUpRequests())
    if (!givenBack.has(topUpRequest.account)) topUpRequests.set(topUpRequest.account, topUpRequest)
  for (const account of demand.exhaustedAccounts())
    if (!topUpRequests.has(account)) topUpRequests.set(account, { account, wanted: 0n })
  return { needs, topUpRequests: [...topUpRequests.values()].slice(0, SEGMENT_ACCOUNTS_MAX) }
}

export function poolBalancesOf({ accounts }: Pick<Grant, 'accounts'>): PoolBalances {
  return new Map(
    accounts.map(({ account, unlimited, available, returnable = 0n }): [AccountId, PoolBalance] => [
      account,
      { available: unlimited ? 'UNLIMITED' : available, returnable },
    ]),
  )
}
