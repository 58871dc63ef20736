import { type AccountId, parseAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader } from '../../storage/store.ts'
import type { AccountMove } from '../../accounts/move-pools.ts'
import { type Epoch, overspendOn } from '../../storage/device-records.ts'

/**
 * Upper bound of devices' spending. Recorded grants are always plausible. Beyond them, copies and grants lost in a
 * restore may have spent the highest cap (or the amount sold, which the sales mark shows) once more, and essential line
 * items any amount. Allocations and limits need no bound, because what uses them uses a line item's tokens too.
 *
 * @param raised by how much the move exceeds recorded grants
 */
export type IsPlausible = (move: AccountMove, pool: Pool, raised: Micro) => boolean

export async function plausibleBy(
  reader: Reader,
  accounts: Iterable<AccountId>,
  { grantsForgotten }: Pick<Epoch, 'grantsForgotten'>,
): Promise<IsPlausible> {
  const overspend = await reader.edge.deviceAccounts.overspendOf(accounts)
  return ({ before, after }, { account, capTarget, capHighest, sold, withheld, charged, grantedOut }, raised) => {
    if (raised <= 0n || before.metered || capTarget === null || parseAccount(account)?.kind !== 'line') return true
    const aboveAnyCap = (overspend.get(account) ?? 0n) + overspendOn(after) - overspendOn(before)
    // The device may have lost the proofs of forgotten grants.
    const isForgotten = grantsForgotten || withheld > 0n
    const highest = isForgotten && sold > capHighest ? sold : capHighest
    return charged + grantedOut <= 2n * highest + aboveAnyCap
  }
}
