/** Arithmetic of sharing a pool; see docs/decisions/fair-sharing.md. */
import type { AccountId } from './account.ts'
import type { Micro } from '../pricing/amount.ts'
import { type Need, type TopUpRequest, sumPostings } from './grant.ts'

export interface Supply {
  readonly available: Micro
  /** What the pool can give to a waiting request. */
  readonly free: Micro
  /** The part of it that can be given in advance, because no other device was refused it. */
  readonly spare: Micro
  /** One device's fair share: all unspent tokens, divided by the devices. */
  readonly share: Micro
}

export interface GrantSizes {
  readonly granted: ReadonlyMap<AccountId, Micro>
  readonly unmet: readonly Need[]
  /** Tokens that the met requests will charge. */
  readonly claimed: ReadonlyMap<AccountId, Micro>
}

/**
 * How much to add to a device's grants. Waiting requests come first, in sequence: each gets what its accounts lack,
 * from all of them or none. Then balances are raised to the requested target, at most to the fair share.
 *
 * @param supplyOf `UNLIMITED`: not counted; undefined: cannot be granted
 */
export function sizeGrants(
  needs: readonly Need[],
  topUpRequests: readonly TopUpRequest[],
  supplyOf: (account: AccountId) => Supply | 'UNLIMITED' | undefined,
): GrantSizes {
  const granted = new Map<AccountId, Micro>()
  const claimed = new Map<AccountId, Micro>()
  const of = (sums: ReadonlyMap<AccountId, Micro>, account: AccountId): Micro => sums.get(account) ?? 0n
  const add = (sums: Map<AccountId, Micro>, account: AccountId, amount: Micro): void => {
    if (amount > 0n) sums.set(account, of(sums, account) + amount)
  }

  const serve = (need: Need): boolean => {
    const shares = [...sumPostings(need)]
    const lacking: [AccountId, Micro][] = []
    for (const [account, amount] of shares) {
      const supply = supplyOf(account)
      if (supply === 'UNLIMITED') continue
      if (supply === undefined) return false
      const missing = atLeastNothing(of(claimed, account) + amount - supply.available - of(granted, account))
      if (missing > atLeastNothing(supply.free) - of(granted, account)) return false
      lacking.push([account, missing])
    }
    for (const [account, missing] of lacking) add(granted, account, missing)
    for (const [account, amount] of shares) add(claimed, account, amount)
    return true
  }
  const unmet = needs.filter((need) => !serve(need))

  for (const { account, wanted } of topUpRequests) {
    const supply = supplyOf(account)
    if (supply === undefined || supply === 'UNLIMITED') continue
    const { available, free, spare, share } = supply
    const target = wanted < share ? wanted : share
    const lacking = target - available - of(granted, account)
    const left = (spare < free ? spare : free) - of(granted, account)
    add(granted, account, lacking < left ? lacking : left)
  }
  return { granted, unmet, claimed }
}

/**
 * How much devices keep in a recall: the highest level at which those above it return what is lacking, at most the fair
 * share. 0n if all their tokens are not enough.
 */
export function recallLevel(balances: readonly Micro[], share: Micro, lacking: Micro): Micro {
  const returned = (level: Micro): Micro =>
    balances.reduce((sum, available) => (available > level ? sum + available - level : sum), 0n)
  let low = 0n
  let high = atLeastNothing(share)
  while (low < high) {
    const level = (low + high + 1n) / 2n
    if (returned(level) >= lacking) low = level
    else high = level - 1n
  }
  return low
}

function atLeastNothing(amount: Micro): Micro {
  return amount > 0n ? amount : 0n
}
