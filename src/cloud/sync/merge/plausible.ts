import type { AccountId } from '../../../core/accounts/account.ts'
import { METERED_MAX, METERED_OF_DEVICE_MAX } from '../../../core/accounts/grant.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader } from '../../storage/store.ts'
import { type AccountMove, type MovedPools, claimOf, isMetered } from '../../accounts/move-pools.ts'
import { type Epoch, overspendOn, reservedOn } from '../../storage/device-records.ts'

/**
 * Upper bound of devices' spending. Recorded grants are always plausible. Beyond them, copies and grants lost in a
 * restore may have spent the highest cap (or the amount sold, which the sales mark shows) once more, and essential line
 * items any amount. Metered use is bounded for each epoch, and for each device. Allocations and limits may also take as much as their line
 * item, because requests use tokens of both: callers check this.
 *
 * @param pool after the move
 */
export type IsPlausible = (move: AccountMove, pool: Pool) => boolean

export async function plausibleBy(
  reader: Reader,
  accounts: Iterable<AccountId>,
  epoch: Pick<Epoch, 'deviceId' | 'number' | 'grantsForgotten'>,
): Promise<IsPlausible> {
  const listed = [...accounts]
  const { deviceAccounts } = reader.edge
  const overspend = await deviceAccounts.overspendOf(listed)
  const ofOtherEpochs = await deviceAccounts.reservedInOtherEpochs(epoch, listed)
  return (move, { account, capTarget, capHighest, sold, withheld, charged, grantedOut, claimed }) => {
    const { before, after } = move
    if (isMetered(move) || capTarget === null) {
      const reserved = reservedOn(after)
      return reserved <= METERED_MAX && reserved + (ofOtherEpochs.get(account) ?? 0n) <= METERED_OF_DEVICE_MAX
    }
    const overspent = overspendOn(after) - overspendOn(before)
    if (claimOf(move) <= overspent) return true
    const aboveAnyCap = (overspend.get(account) ?? 0n) + overspent
    // The device may have lost the proofs of forgotten grants.
    const isForgotten = epoch.grantsForgotten || withheld > 0n
    const highest = isForgotten && sold > capHighest ? sold : capHighest
    // Metered and imported use, and released tokens that were spent, can be above any cap.
    const onRecord = charged + grantedOut - claimed
    return (onRecord < highest ? onRecord : highest) + claimed <= 2n * highest + aboveAnyCap
  }
}

/** Whether metered use leaves space in the counters of pools for other devices. Reads only for counters that one device could fill. */
export async function leavesSpace(
  reader: Reader,
  epoch: Pick<Epoch, 'deviceId' | 'number'>,
  { moves, after: pools }: Pick<MovedPools, 'moves' | 'after'>,
): Promise<boolean> {
  const rising = moves.filter((move) => {
    const { before, after } = move
    const pool = pools.get(after.account)
    if (pool === undefined || reservedOn(after) <= reservedOn(before)) return false
    return (isMetered(move) || pool.capTarget === null) && pool.charged + pool.grantedOut > METERED_OF_DEVICE_MAX
  })
  if (rising.length === 0) return true
  const accounts = rising.map(({ after }) => after.account)
  const ofOtherEpochs = await reader.edge.deviceAccounts.reservedInOtherEpochs(epoch, accounts)
  return rising.every(
    ({ after }) => reservedOn(after) + (ofOtherEpochs.get(after.account) ?? 0n) <= METERED_OF_DEVICE_MAX,
  )
}
