/**
 * How much devices can have spent of an account. What was granted on record is always plausible, whatever has become of the
 * rules since. Beyond that, copies of devices, and devices that remember grants from before the store was restored, may
 * have had the whole cap once more, by the highest cap that the account ever had; and essential line items are used above
 * any cap. More than that is made up, and must not use up what other devices need.
 */
import { type AccountId, parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader } from '../../storage/store.ts'
import type { AccountMove } from '../../accounts/move-pools.ts'
import { overspendOn } from '../../storage/device-records.ts'
import type { RulesInForce } from '../../policy/rules-in-force.ts'

/**
 * @param move of one epoch
 * @param pool after the move
 * @param raised by how much the move goes beyond what was granted on record
 */
export type IsPlausible = (move: AccountMove, pool: Pool, raised: Micro) => boolean

/** @param accounts all that will be asked about */
export async function plausibleBy(
  reader: Reader,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
): Promise<IsPlausible> {
  const overspend = await reader.edge.deviceAccounts.overspendOf(accounts)
  return ({ before, after }, { account, capTarget, capHighest, charged, grantedOut }, raised) => {
    if (raised <= 0n || before.metered || capTarget === null || !isRuled(rules, account)) return true
    const aboveAnyCap = (overspend.get(account) ?? 0n) + overspendOn(after) - overspendOn(before)
    return charged + grantedOut <= 2n * capHighest + aboveAnyCap
  }
}

/**
 * An allocation or a limit that the rules do not have may be one that they had: whoever spends of it spends of the line item,
 * and that is what bounds it.
 */
function isRuled(rules: RulesInForce, account: AccountId): boolean {
  const parsed = parseAccount(account)
  if (parsed === undefined || parsed.kind === 'line') return true
  const lineItem = rules.get(parsed.instanceId)?.lineItems.get(parsed.lineItemId)
  if (parsed.kind === 'limit') return lineItem !== undefined && lineItem.consumptionLimit !== null
  return lineItem?.actions.some(({ id, allocation }) => id === parsed.actionId && allocation !== null) === true
}
