/**
 * A decision over the whole pool. What it will touch is found out first, without locks; then exactly that is locked, in the
 * order of ids, and the decision is made again on what is locked. It ends with the pools as they are to be written. Several requests at once on one account are decided one after another.
 */
import { type AccountId, parseAccount } from '../../core/account.ts'
import { MICRO_MAX } from '../../core/amount.ts'
import { decide, type Mode } from '../../core/decide.ts'
import { type AccessRequest, type Decision, exactly } from '../../core/decision.ts'
import type { HeldItem } from '../../core/session.ts'
import type { LoadedPolicy } from './load-policy.ts'
import { capOf, charge, free, newPool, refund } from './pool.ts'
import type { Pool } from './records.ts'
import type { Transaction } from './store.ts'

export interface PoolDecision {
  readonly decision: Decision
  /** Every pool that was looked at, after the refund and before the charge. */
  readonly before: ReadonlyMap<AccountId, Pool>
  /** The pools that refund and charge change, after both. To be saved if the decision is to have effect. */
  readonly changed: readonly Pool[]
}

/** @param refunded goes back before anything is charged */
export async function decideOverPools(
  tx: Transaction,
  loaded: LoadedPolicy,
  request: AccessRequest,
  mode: Mode,
  now: number,
  refunded: readonly HeldItem[] = [],
): Promise<PoolDecision> {
  const fresh = (account: AccountId): Pool => newPool(account, capIn(loaded, account))
  const decideOn = (pools: ReadonlyMap<AccountId, Pool>, roomOfUnknown: bigint) => {
    const unknown = new Set<AccountId>()
    const asked = new Set<AccountId>()
    const decision = decide(
      loaded.compiled,
      request,
      exactly(now),
      (account) => {
        asked.add(account)
        const pool = pools.get(account)
        if (pool === undefined) unknown.add(account)
        return { left: pool === undefined ? roomOfUnknown : free(pool), shortage: 'POOL' }
      },
      mode,
    )
    return { decision, asked, unknown }
  }

  // Supposing plenty looks only at the first line item that could serve; supposing nothing looks at all of them.
  const seen = new Map<AccountId, Pool>()
  let asked: ReadonlySet<AccountId> = new Set()
  for (const roomOfUnknown of [MICRO_MAX, MICRO_MAX, 0n, 0n]) {
    const attempt = decideOn(seen, roomOfUnknown)
    asked = attempt.asked
    if (attempt.unknown.size === 0) break
    const found = await tx.accounts.get([...attempt.unknown])
    for (const account of attempt.unknown) seen.set(account, found.get(account) ?? fresh(account))
  }

  const back = refundsByAccount(refunded)
  const locked = new Map<AccountId, Pool>()
  const exists = new Set<AccountId>()
  const lock = async (accounts: Iterable<AccountId>): Promise<void> => {
    const wanted = [...accounts]
    const pools = await tx.accounts.lock(wanted)
    for (const account of wanted) {
      const pool = pools.get(account)
      if (pool !== undefined) exists.add(account)
      locked.set(account, refund(pool ?? fresh(account), back.get(account) ?? 0n))
    }
  }
  await lock(new Set([...back.keys(), ...asked]))
  for (;;) {
    const { decision, unknown } = decideOn(locked, 0n)
    if (unknown.size > 0) {
      await lock(unknown)
      continue
    }
    const created = decision.postings.filter(({ account }) => !exists.has(account)).map(({ account }) => account)
    const opened = await tx.accounts.open(created.map((account) => ({ account, cap: capIn(loaded, account) })))
    for (const account of created) exists.add(account)
    const raced = [...opened.values()].filter((pool) => free(pool) !== free(locked.get(pool.account) ?? pool))
    for (const pool of raced) locked.set(pool.account, pool)
    if (raced.length > 0) continue

    const after = new Map(locked)
    for (const { account, amount } of decision.postings) {
      after.set(account, charge(after.get(account) ?? fresh(account), amount))
    }
    const touched = new Set([...back.keys(), ...decision.postings.map(({ account }) => account)])
    return { decision, before: locked, changed: [...after.values()].filter(({ account }) => touched.has(account)) }
  }
}

/** Gives back without deciding anything. Returns the pools after it, which are to be saved. */
export async function refundPools(tx: Transaction, refunded: readonly HeldItem[]): Promise<readonly Pool[]> {
  const back = refundsByAccount(refunded)
  const pools = await tx.accounts.lock([...back.keys()])
  return [...back].map(([account, amount]) => {
    const pool = pools.get(account)
    if (pool === undefined) throw new Error('invariant: what was charged has an account')
    return refund(pool, amount)
  })
}

function refundsByAccount(refunded: readonly HeldItem[]): ReadonlyMap<AccountId, bigint> {
  const back = new Map<AccountId, bigint>()
  for (const { parts } of refunded) {
    for (const { accounts, charged } of parts) {
      if (charged === 0n) continue
      for (const account of accounts) back.set(account, (back.get(account) ?? 0n) + charged)
    }
  }
  return back
}

function capIn({ lineItems }: LoadedPolicy, account: AccountId): Pool['capTarget'] {
  const lineItem = lineItems.get(parseAccount(account)?.lineItemId ?? '')
  return lineItem === undefined ? 0n : capOf(account, lineItem)
}
