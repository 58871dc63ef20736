/**
 * Upper bound of devices' spending. Recorded grants are always plausible. Beyond them, copies and grants lost in a
 * restore may have spent the highest cap once more, and essential line items any amount. More is fabricated. A restore
 * may also have lost a higher cap: then the amount sold, which the sales mark shows, is the bound.
 */
import { type AccountId, parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader } from '../../storage/store.ts'
import type { AccountMove } from '../../accounts/move-pools.ts'
import { type Epoch, overspendOn } from '../../storage/device-records.ts'
import type { RulesInForce } from '../../policy/rules-in-force.ts'

/**
 * @param move of one epoch
 * @param pool after the move
 * @param raised by how much the move exceeds recorded grants
 */
export type IsPlausible = (move: AccountMove, pool: Pool, raised: Micro) => boolean

export async function plausibleBy(
  reader: Reader,
  rules: RulesInForce,
  accounts: Iterable<AccountId>,
  { grantsForgotten }: Pick<Epoch, 'grantsForgotten'>,
): Promise<IsPlausible> {
  const overspend = await reader.edge.deviceAccounts.overspendOf(accounts)
  return ({ before, after }, { account, capTarget, capHighest, sold, charged, grantedOut }, raised) => {
    if (raised <= 0n || before.metered || capTarget === null || !isRuled(rules, account)) return true
    const aboveAnyCap = (overspend.get(account) ?? 0n) + overspendOn(after) - overspendOn(before)
    const highest = grantsForgotten && sold > capHighest ? sold : capHighest
    return charged + grantedOut <= 2n * highest + aboveAnyCap
  }
}

/**
 * An unknown allocation or limit may be an earlier one. Its spending also counts for the line item, which bounds it.
 */
function isRuled(rules: RulesInForce, account: AccountId): boolean {
  const parsed = parseAccount(account)
  if (parsed === undefined || parsed.kind === 'line') return true
  const lineItem = rules.get(parsed.instanceId)?.lineItems.get(parsed.lineItemId)
  if (parsed.kind === 'limit') return lineItem !== undefined && lineItem.consumptionLimit !== null
  return lineItem?.actions.some(({ id, allocation }) => id === parsed.actionId && allocation !== null) === true
}
