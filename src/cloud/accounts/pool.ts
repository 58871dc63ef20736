/**
 * The arithmetic of one account of the cloud. Invariant after every function: what the cloud charged plus what devices
 * hold is at most the cap in force. A cap that is lowered below what is out comes down only as tokens come back: nothing
 * is taken from a device that does not know. A step that would break this throws: it was checked before.
 */
import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import { type Micro, MICRO_MAX } from '../../core/pricing/amount.ts'
import type { Action, LineItem } from '../../core/rules/policy.ts'
import type { Pool } from '../storage/records.ts'

/** A pool that nobody has drawn on. @param cap null: metered only */
export function newPool(account: AccountId, cap: Micro | null): Pool {
  const spent = { charged: 0n, grantedOut: 0n, billedByDevices: 0n, sold: 0n, withheld: 0n }
  return { account, ...spent, capTarget: cap, capInForce: cap, capHighest: cap ?? 0n }
}

/** What the cloud can still charge or grant, >= 0n. Without a cap: what a 64-bit counter still holds. */
export function free(pool: Pool): Micro {
  const cap = pool.capTarget === null ? MICRO_MAX : pool.capTarget - pool.withheld
  const left = cap - pool.charged - pool.grantedOut
  return left > 0n ? left : 0n
}

/**
 * What devices can still be granted, >= 0n: they are never granted into what is reserved for the cloud, of which what the cloud
 * has charged is a part.
 */
export function freeForDevices(pool: Pool, reserved: Micro): Micro {
  const kept = reserved > pool.charged ? reserved - pool.charged : 0n
  const left = free(pool)
  return left > kept ? left - kept : 0n
}

/** What devices hold and have not spent, as far as they have reported: what they could return. */
export function recoverable(pool: Pool): Micro {
  const unspent = pool.grantedOut - pool.billedByDevices
  return unspent > 0n ? unspent : 0n
}

/** What counts as used: charged here and billed by devices. */
export function used(pool: Pool): Micro {
  return pool.charged + pool.billedByDevices
}

export function charge(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > free(pool)) throw new Error('invariant: a charge fits what is free')
  return { ...pool, charged: pool.charged + amount, sold: counted(pool.sold, amount) }
}

export function refund(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > pool.charged) throw new Error('invariant: a refund was charged before')
  return follow({ ...pool, charged: pool.charged - amount })
}

/** Hands tokens to a device. */
export function grantOut(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > free(pool)) throw new Error('invariant: a grant fits what is free')
  return { ...pool, grantedOut: pool.grantedOut + amount, sold: counted(pool.sold, amount) }
}

/** Tokens that a device returned, or that were settled. */
export function takeBack(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > pool.grantedOut) throw new Error('invariant: what comes back was granted before')
  return follow({ ...pool, grantedOut: pool.grantedOut - amount })
}

/**
 * Tokens that a device turns out to have had beyond what is on record: metered use, copies of it, grants from before the
 * store was restored. They are out, so the cap in force makes room for them.
 */
export function overrun(pool: Pool, amount: Micro): Pool {
  if (amount < 0n || amount > MICRO_MAX - pool.charged - pool.grantedOut) {
    throw new Error('invariant: an overrun fits a 64-bit counter')
  }
  return follow({ ...pool, grantedOut: pool.grantedOut + amount })
}

/**
 * More was sold than the store knows of, because it comes from a backup: the difference is withheld until something accounts
 * for it.
 *
 * @param sold what can have been sold of the account until now, at most
 */
export function withhold(pool: Pool, sold: Micro): Pool {
  const lost = sold - pool.sold
  return lost <= 0n ? pool : { ...pool, sold, withheld: counted(pool.withheld, lost) }
}

/** A device has shown that so much was granted to it after the backup: that is on record again. */
export function accountFor(pool: Pool, amount: Micro): Pool {
  if (amount < 0n) throw new Error('invariant: what a device was granted is no negative amount')
  return { ...pool, withheld: pool.withheld > amount ? pool.withheld - amount : 0n }
}

/** An administrator takes the risk that what is withheld was used. */
export function release(pool: Pool): Pool {
  return { ...pool, withheld: 0n }
}

/** A device's report of what it used less what it refunded since its last one; negative when it refunded more. */
export function bill(pool: Pool, amount: Micro): Pool {
  return { ...pool, billedByDevices: pool.billedByDevices + amount }
}

/** Another cap; in force at once when it is above what is out. @param cap null: metered only */
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

/** The cap of a line item's pool: quantity plus allowed overdraft; null when it is metered only. */
function lineItemCap(lineItem: Pick<LineItem, 'quantity' | 'overdraft'>): Micro | null {
  return lineItem.overdraft === 'UNLIMITED' ? null : lineItem.quantity + lineItem.overdraft
}

/** What of a line item gives caps to its accounts. */
export type Capped = Pick<LineItem, 'id' | 'quantity' | 'overdraft' | 'consumptionLimit'> & {
  readonly actions: readonly Pick<Action, 'id' | 'allocation'>[]
}

/**
 * The cap that a policy gives to an account of one of its line items: 0n for an action or a limit that is no longer there.
 */
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
