/** The rules of a device's instances as they stand in a transaction, and the pools that they give caps to. */
import { type AccountId, parseAccount } from '../../../core/account.ts'
import type { Micro } from '../../../core/amount.ts'
import type { LoadedPolicy, Policies } from '../load-policy.ts'
import { capOf } from '../pool.ts'
import type { Pool } from '../records.ts'
import type { Transaction } from '../store.ts'

/** By instance id. */
export type RulesInForce = ReadonlyMap<string, LoadedPolicy>

/** Nobody changes these rules before the transaction ends. */
export async function holdRules(
  tx: Transaction,
  policies: Pick<Policies, 'hold'>,
  instanceIds: readonly string[],
  now: number,
): Promise<RulesInForce> {
  const rules = new Map<string, LoadedPolicy>()
  for (const instanceId of [...instanceIds].sort()) {
    const loaded = await policies.hold(tx, instanceId, now)
    if (loaded !== undefined) rules.set(instanceId, loaded)
  }
  return rules
}

/** What of an account is kept for the cloud itself: of the pool of a line item, as its rules say. */
export function reservedOf(account: AccountId, rules: RulesInForce): Micro {
  const parsed = parseAccount(account)
  if (parsed?.kind !== 'line') return 0n
  return rules.get(parsed.instanceId)?.cloudReserves.get(parsed.lineItemId) ?? 0n
}

/** Locks the pools of these accounts; one that nobody has drawn on gets the cap of the rules, or none of any. */
export async function openPools(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
): Promise<ReadonlyMap<AccountId, Pool>> {
  return tx.accounts.open(
    [...new Set(accounts)].map((account) => {
      const parsed = parseAccount(account)
      const lineItem = parsed && rules.get(parsed.instanceId)?.lineItems.get(parsed.lineItemId)
      return { account, cap: lineItem === undefined ? 0n : capOf(account, lineItem) }
    }),
  )
}
