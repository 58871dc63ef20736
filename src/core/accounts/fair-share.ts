/**
 * How one pool is shared when it may not be enough for everyone, as arithmetic without I/O. The rule in words:
 * docs/decisions/fair-sharing.md.
 */
import type { AccountId } from './account.ts'
import type { Micro } from '../pricing/amount.ts'
import { type Need, type TopUpRequest, sumPostings } from './grant.ts'

/** One account at the moment at which a grant is sized. */
export interface Supply {
  /** The balance that the device has. */
  readonly available: Micro
  /** What the pool can give to a waiting request. */
  readonly free: Micro
  /** What of it can be given in advance, because no one else was refused for want of it. */
  readonly spare: Micro
  /** The fair share of one device: everything that is not spent, divided by the devices. */
  readonly share: Micro
}

export interface GrantSizes {
  /** Only accounts of which something is granted. */
  readonly granted: ReadonlyMap<AccountId, Micro>
  readonly unmet: readonly Need[]
  /** What the requests that were served will charge. */
  readonly spoken: ReadonlyMap<AccountId, Micro>
}

/**
 * How much to add to the grants of a device.
 *
 * Waiting requests come first, in their order. Each gets what its accounts lack, from all of them or from none: a request
 * that the pools cannot pay moves nothing, and those behind it are looked at all the same. Then the balance is raised in
 * advance, up to what the device would like and at most to its fair share.
 *
 * @param supplyOf `UNLIMITED`: not counted down; undefined: nothing of it may be granted
 */
export function sizeGrants(
  needs: readonly Need[],
  topUpRequests: readonly TopUpRequest[],
  supplyOf: (account: AccountId) => Supply | 'UNLIMITED' | undefined,
): GrantSizes {
  const granted = new Map<AccountId, Micro>()
  const spoken = new Map<AccountId, Micro>()
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
      const missing = atLeastNothing(of(spoken, account) + amount - supply.available - of(granted, account))
      if (missing > atLeastNothing(supply.free) - of(granted, account)) return false
      lacking.push([account, missing])
    }
    for (const [account, missing] of lacking) add(granted, account, missing)
    for (const [account, amount] of shares) add(spoken, account, amount)
    return true
  }
  const unmet = needs.filter((need) => !serve(need))

  for (const { account, wanted } of topUpRequests) {
    const supply = supplyOf(account)
    if (supply === undefined || supply === 'UNLIMITED') continue
    const { available: held, free, spare, share } = supply
    const target = wanted < share ? wanted : share
    const lacking = target - held - of(granted, account)
    const left = (spare < free ? spare : free) - of(granted, account)
    add(granted, account, lacking < left ? lacking : left)
  }
  return { granted, unmet, spoken }
}

/**
 * How much the devices that are asked to return tokens may keep: the highest level at which those above it give back what
 * is lacking, so that those who hold most give first. Never above the fair share; 0n where all that they hold is not enough.
 *
 * @param balances the balances of the devices that can be asked
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
