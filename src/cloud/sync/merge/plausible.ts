import type { AccountId } from '../../../core/accounts/account.ts'
import { METERED_MAX } from '../../../core/accounts/grant.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader } from '../../storage/store.ts'
import { type AccountMove, claimOf, isMetered } from '../../accounts/move-pools.ts'
import { type Epoch, overspendOn, reservedOn } from '../../storage/device-records.ts'

/**
 * Upper bound of devices' spending. Recorded grants are always plausible. Beyond them, copies and grants lost in a
 * restore may have spent the highest cap (or the amount sold, which the sales mark shows) once more, and essential line
 * items any amount. Metered use is bounded for each epoch. Allocations and limits may also take as much as their line
 * item, because requests use tokens of both: callers check this.
 *
 * @param pool after the move
 */
export type IsPlausible = (move: AccountMove, pool: Pool) => boolean

export async function plausibleBy(
  reader: Reader,
  accounts: Iterable<AccountId>,
  { grantsForgotten }: Pick<Epoch, 'grantsForgotten'>,
): Promise<IsPlausible> {
  const overspend = await reader.edge.deviceAccounts.overspendOf(accounts)
  return (move, { account, capTarget, capHighest, sold, withheld, charged, grantedOut, claimed }) => {
    const { before, after } = move
    if (isMetered(move) || capTarget === null) return reservedOn(after) <= METERED_MAX
    const overspent = overspendOn(after) - overspendOn(before)
    if (claimOf(move) <= overspent) return true
    const aboveAnyCap = (overspend.get(account) ?? 0n) + overspent
    // The device may have lost the proofs of forgotten grants.
    const isForgotten = grantsForgotten || withheld > 0n
    const highest = isForgotten && sold > capHighest ? sold : capHighest
    // Metered and imported use, and released tokens that were spent, can be above any cap.
    const onRecord = charged + grantedOut - claimed
    return (onRecord < highest ? onRecord : highest) + claimed <= 2n * highest + aboveAnyCap
  }
}
