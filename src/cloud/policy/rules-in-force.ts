/** The rules of a device's instances as they stand in a transaction, and the pools that they give caps to. */
import { type AccountId, parseAccount } from '../../core/accounts/account.ts'
import type { Micro } from '../../core/pricing/amount.ts'
import { unlistedLimitPeriod, unlistedPeriod } from '../accounts/calendar.ts'
import type { LoadedPolicy, Policies } from './load-policy.ts'
import { capOf, newPool } from '../accounts/pool.ts'
import type { Pool } from '../storage/records.ts'
import { PERIODS_FORGOTTEN_MAX } from '../devices/limits.ts'
import type { Epoch } from '../storage/device-records.ts'
import type { Transaction } from '../storage/store.ts'

/** By instance id. */
export type RulesInForce = ReadonlyMap<string, LoadedPolicy>

/** Nobody changes these rules before the transaction ends. */
export async function lockRulesOf(
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
  return tx.accounts.open([...new Set(accounts)].map((account) => ({ account, cap: capBy(rules, account) })))
}

/**
 * The same for what a device says: it opens no account that no rules have ever had, and that is not in the answer.
 */
export async function openListedPools(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
  epoch: Pick<Epoch, 'grantsForgotten'>,
): Promise<ReadonlyMap<AccountId, Pool>> {
  const { pools, unopened } = await lockListed(tx, rules, accounts, epoch)
  return unopened.length === 0 ? pools : new Map([...pools, ...(await openPools(tx, rules, unopened))])
}

/** As {@link openListedPools}, but opens none: a pool that nobody has drawn on is as it would be opened. */
export async function viewPools(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
  epoch: Pick<Epoch, 'grantsForgotten'>,
): Promise<ReadonlyMap<AccountId, Pool>> {
  const { pools, unopened } = await lockListed(tx, rules, accounts, epoch)
  return new Map([...pools, ...unopened.map((account) => [account, newPool(account, capBy(rules, account))] as const)])
}

interface Listed {
  /** Locked. */
  readonly pools: ReadonlyMap<AccountId, Pool>
  /** Those that nobody has drawn on, and that some rules have had. */
  readonly unopened: readonly AccountId[]
}

async function lockListed(
  tx: Transaction,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
  { grantsForgotten }: Pick<Epoch, 'grantsForgotten'>,
): Promise<Listed> {
  // No administrator can enter again which numbers the periods had that a restored cloud has forgotten.
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

/** The numbers below these are all that rules can have listed. */
interface ListedPeriods {
  readonly line: number
  readonly limit: number
}

/** Of any rules since the line item was mapped. Undefined: it never was. */
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
    // A restored cloud may have forgotten a limit: what is spent of it is spent of the line item too.
    limit: limit === undefined ? Infinity : unlistedLimitPeriod(limit, revision.listedAt),
  }
}

function capBy(rules: RulesInForce, account: AccountId): Micro | null {
  const parsed = parseAccount(account)
  const lineItem = parsed && rules.get(parsed.instanceId)?.lineItems.get(parsed.lineItemId)
  return lineItem === undefined ? 0n : capOf(account, lineItem)
}
