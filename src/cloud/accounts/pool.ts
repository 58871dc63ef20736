/**
 * Arithmetic of one account. Invariant: cloud charges + tokens at devices <= cap in force. A lowered cap takes effect
 * as tokens return.
 */
import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import { type Micro, MICRO_MAX } from '../../core/pricing/amount.ts'
import type { Action, LineItem } from '../../core/rules/policy.ts'
import type { Pool } from '../storage/records.ts'

export function newPool(account: AccountId, cap: Micro | null): Pool {
  const spent = { charged: 0n, grantedOut: 0n, claimed: 0n, billedByDevices: 0n, sold: 0n, withheld: 0n }
  return { account, ...spent, capTarget: cap, capInForce: cap, capHighest: cap ?? 0n }
}

export function isSamePool(one: Pool, other: Pool | undefined): boolean {
  if (other === undefined) return false
  for (const key in one) if (one[key as keyof Pool] !== other[key as keyof Pool]) return false
  return true
}

/** Tokens that the cloud can charge or grant, >= 0n. Without a cap: the rest of a 64-bit counter. */
export function free(pool: Pool): Micro {
  const cap = pool.capTarget === null ? MICRO_MAX : pool.capTarget - pool.withheld
  const left = cap - pool.charged - pool.grantedOut
  return left > 0n ? left : 0n
}

/** Tokens that devices can be granted, >= 0n. Cloud charges count against the cloud's reserve first. */
export function freeForDevices(pool: Pool, reserved: Micro): Micro {
  const kept = reserved > pool.charged ? reserved - pool.charged : 0n
  const left = free(pool)
  return left > kept ? left - kept : 0n
}

/** Tokens that devices have not spent by their last reports, so they could return them. */
export function recoverable(pool: Pool): Micro {
  const unspent = pool.grantedOut - pool.billedByDevices
  return unspent > 0n ? unspent : 0n
}

/** @param pool undefined: nothing of the account was used yet */
export function used(pool: Pool | undefined): Micro {
  return pool === undefined ? 0n : pool.charged + pool.billedByDevices
}

export function charge(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > free(pool)) throw new Error('invariant: a charge fits what is free')
  return { ...pool, charged: pool.charged + amount, sold: counted(pool.sold, amount) }
}

export function refund(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > pool.charged) throw new Error('invariant: a refund was charged before')
  return follow({ ...pool, charged: pool.charged - amount })
}

export function grantOut(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > free(pool)) throw new Error('invariant: a grant fits what is free')
  return { ...pool, grantedOut: pool.grantedOut + amount, sold: counted(pool.sold, amount) }
}

export function takeBack(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > pool.grantedOut) throw new Error('invariant: what comes back was granted before')
  const grantedOut = pool.grantedOut - amount
  return follow({ ...pool, grantedOut, claimed: pool.claimed < grantedOut ? pool.claimed : grantedOut })
}

/** Tokens that a device had beyond the record: they are spent, so the cap in force rises with them. */
export function overrun(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > MICRO_MAX - pool.charged - pool.grantedOut) {
    throw new Error('invariant: an overrun fits a 64-bit counter')
  }
  return follow({ ...pool, grantedOut: pool.grantedOut + amount })
}

/** Part of an overrun that no grant on record explains. Without a cap, devices can use any amount. */
export function claim(pool: Pool, amount: Micro): Pool {
  return pool.capTarget === null ? pool : { ...pool, claimed: pool.claimed + amount }
}

/**
 * Use of another service that this one takes over: it is spent, so the cap in force rises with it.
 *
 * @param isRepeated withheld tokens are such use: it was taken over before, and a restored store has lost it
 */
export function takeOver(pool: Pool, amount: Micro, isRepeated: boolean): Pool {
  if (amount < 0n || amount > MICRO_MAX - pool.charged - pool.grantedOut) {
    throw new Error('invariant: use that is taken over fits a 64-bit counter')
  }
  const accounted = isRepeated ? accountFor(pool, amount) : pool
  const sold = counted(pool.sold, amount - (pool.withheld - accounted.withheld))
  return follow({ ...accounted, charged: pool.charged + amount, sold })
}

/** A restored store does not know all sales: withholds the difference. @param sold upper bound of all sales */
export function withhold(pool: Pool, sold: Micro): Pool {
  const lost = sold - pool.sold
  return lost <= 0n ? pool : { ...pool, sold, withheld: counted(pool.withheld, lost) }
}

/** A grant or use of after the backup is recorded again. */
export function accountFor(pool: Pool, amount: Micro): Pool {
  if (amount < 0n) throw new Error('invariant: what a device was granted is no negative amount')
  return { ...pool, withheld: pool.withheld > amount ? pool.withheld - amount : 0n }
}

/** An administrator accepts the risk that withheld tokens were used. */
export function release(pool: Pool): Pool {
  return { ...pool, withheld: 0n }
}

/** @param amount tokens used less tokens refunded since the last report; may be negative */
export function bill(pool: Pool, amount: Micro): Pool {
  return { ...pool, billedByDevices: pool.billedByDevices + amount }
}

/** Changes the cap; takes effect at once if it is above the tokens in use. @param cap null: metered only */
export function retarget(pool: Pool, cap: Micro | null): Pool {
  const capHighest = cap !== null && cap > pool.capHighest ? cap : pool.capHighest
  return follow({ ...pool, capTarget: cap, capHighest })
}

function counted(total: Micro, amount: Micro): Micro {
  return amount > MICRO_MAX - total ? MICRO_MAX : total + amount
}

function follow(pool: Pool): Pool {
  const out = pool.charged + pool.grantedOut
  const { capTarget } = pool
  return { ...pool, capInForce: capTarget === null || capTarget > out ? capTarget : out }
}

function lineItemCap(lineItem: Pick<LineItem, 'quantity' | 'overdraft'>): Micro | null {
  return lineItem.overdraft === 'UNLIMITED' ? null : lineItem.quantity + lineItem.overdraft
}

export type Capped = Pick<LineItem, 'id' | 'quantity' | 'overdraft' | 'consumptionLimit'> & {
  readonly actions: readonly Pick<Action, 'id' | 'allocation'>[]
}

export function capOf(account: AccountId, lineItem: Capped): Micro | null {
  const parsed = parseAccount(account)
  if (parsed?.lineItemId !== lineItem.id) throw new Error('invariant: the account is one of this line item')
  switch (parsed.kind) {
    case 'line':
      return lineItemCap(lineItem)
    case 'action':
      return lineItem.actions.find(({ id }) => id === parsed.actionId)?.allocation ?? 0n
    case 'limit':
      return lineItem.consumptionLimit?.limit ?? 0n
  }
}
