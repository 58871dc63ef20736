/** The rules that a transaction has locked, by instance, and the pools and caps that follow from them. */
import { type AccountId, instanceIdOf, parseAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { unlistedLimitPeriod, unlistedPeriod } from '../accounts/calendar.ts'
import { type LoadedPolicy, reserveOf } from './load-policy.ts'
import { capOf, newPool } from '../accounts/pool.ts'
import type { Pool } from '../storage/records.ts'
import type { Epoch } from '../storage/device-records.ts'
import type { Transaction } from '../storage/store.ts'

/** How far above the last listed period a restored cloud accepts one. */
const PERIODS_FORGOTTEN_MAX = 10_000

export type RulesInForce = ReadonlyMap<string, LoadedPolicy>

/** The highest cap that rules on devices may contain. Amounts in micro-tokens. */
export type OverspendCapOf = (instanceId: string, lineItemId: string) => Micro

export function overspendCapOf(rules: RulesInForce): OverspendCapOf {
  return (instanceId, lineItemId) => rules.get(instanceId)?.overspendCapsMax.get(lineItemId) ?? 0n
}

export function reserveInForce(account: AccountId, rules: RulesInForce): Micro {
  const loaded = rules.get(instanceIdOf(account))
  return loaded === undefined ? 0n : reserveOf(account, loaded)
}

/** Locks the pools of these accounts; a new pool gets its cap from the rules, else 0n. */
export async function openPools(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
): Promise<ReadonlyMap<AccountId, Pool>> {
  return tx.accounts.open([...new Set(accounts)].map((account) => ({ account, cap: capInForce(rules, account) })))
}

/** As {@link openPools}, for accounts named by a device: omits accounts that no rules have ever had. */
export async function openListedPools(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
  epoch: Pick<Epoch, 'grantsForgotten'>,
): Promise<{ readonly pools: ReadonlyMap<AccountId, Pool>; readonly added: readonly AccountId[] }> {
  const { pools, unopened } = await lockListed(tx, rules, accounts, epoch)
  if (unopened.length === 0) return { pools, added: [] }
  return { pools: new Map([...pools, ...(await openPools(tx, rules, unopened))]), added: unopened }
}

/** As {@link openListedPools}, but creates no pools: it returns those that are missing as they would be created. */
export async function lockListedPools(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
  epoch: Pick<Epoch, 'grantsForgotten'>,
): Promise<ReadonlyMap<AccountId, Pool>> {
  const { pools, unopened } = await lockListed(tx, rules, accounts, epoch)
  return new Map([
    ...pools,
    ...unopened.map((account) => [account, newPool(account, capInForce(rules, account))] as const),
  ])
}

async function lockListed(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
  { grantsForgotten }: Pick<Epoch, 'grantsForgotten'>,
) {
  // A restored cloud has forgotten period numbers, and an administrator cannot enter them again.
  const forgotten = grantsForgotten ? PERIODS_FORGOTTEN_MAX : 0
  const wanted = [...new Set(accounts)]
  const pools = await tx.accounts.lock(wanted)
  const periods = new Map<string, ListedPeriods | undefined>()
  const unopened: AccountId[] = []
  for (const account of wanted) {
    const parsed = parseAccount(account)
    if (pools.has(account) || parsed === undefined || !rules.has(parsed.instanceId)) continue
    const key = `${parsed.instanceId}/${parsed.lineItemId}`
    if (!periods.has(key)) periods.set(key, await listedPeriods(tx, parsed.instanceId, parsed.lineItemId))
    const listed = periods.get(key)
    if (listed !== undefined && (parsed.kind === 'action' || parsed.period < listed[parsed.kind] + forgotten))
      unopened.push(account)
  }
  return { pools, unopened }
}

/** All period numbers that rules can have listed are below these. */
interface ListedPeriods {
  readonly line: number
  readonly limit: number
}

/** Over all rules since the line item was mapped. Undefined: never mapped. */
async function listedPeriods(
  tx: Transaction,
  instanceId: string,
  lineItemId: string,
): Promise<ListedPeriods | undefined> {
  const lineItem = await tx.lineItems.get(instanceId, lineItemId)
  const revision = await tx.policyRevisions.get(instanceId)
  if (lineItem === undefined || revision === undefined) return undefined
  const limit = await tx.consumptionLimits.get(instanceId, lineItemId)
  return {
    line: unlistedPeriod(lineItem.calendar, lineItem.start, revision.listedAt),
    // A restored cloud may have forgotten a limit; its usage also counts for the line item.
    limit: limit === undefined ? Infinity : unlistedLimitPeriod(limit, revision.listedAt),
  }
}

export function capInForce(rules: RulesInForce, account: AccountId): Micro | null {
  const loaded = rules.get(instanceIdOf(account))
  return loaded === undefined ? 0n : capByPolicy(loaded, account)
}

export function capByPolicy({ lineItems }: Pick<LoadedPolicy, 'lineItems'>, account: AccountId): Micro | null {
  const lineItem = lineItems.get(parseAccount(account)?.lineItemId ?? '')
  return lineItem === undefined ? 0n : capOf(account, lineItem)
}
