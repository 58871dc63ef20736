/** Every change of a device's counters goes through here, so that pool totals stay the sums over devices. */
import type { AccountId } from '../../core/accounts/account.ts'
import { MICRO_MAX, type Micro } from '../../core/pricing/amount.ts'
import { accountFor, bill, claim, overrun, takeBack } from './pool.ts'
import type { Pool } from '../storage/records.ts'
import { type DeviceAccountRecord, billedOn, reservedOn } from '../storage/device-records.ts'

export interface AccountMove {
  readonly before: DeviceAccountRecord
  readonly after: DeviceAccountRecord
  /** The cloud has signed the grant that it records. */
  readonly isProven?: true
}

export interface MovedPools {
  readonly moves: readonly AccountMove[]
  readonly before: ReadonlyMap<AccountId, Pool>
  readonly after: ReadonlyMap<AccountId, Pool>
}

/** Undefined when an amount exceeds the counters. */
export function movePools(before: ReadonlyMap<AccountId, Pool>, moves: readonly AccountMove[]): MovedPools | undefined {
  const moved = new Map<AccountId, Pool>()
  for (const move of moves) {
    const { before: known, after } = move
    const pool = before.get(after.account)
    if (pool === undefined) throw new Error('invariant: the pool of an account that moves was opened')
    if (billedOn(after) > reservedOn(after))
      throw new Error('invariant: billed tokens, including presumed ones, are reserved')
    const reserved = reservedOn(after) - reservedOn(known)
    if (reserved > MICRO_MAX - pool.charged - pool.grantedOut) return undefined
    const drawn = reserved > 0n ? claim(overrun(pool, reserved), claimOf(move)) : takeBack(pool, -reserved)
    moved.set(after.account, bill(accountFor(drawn, shownAgain(move)), billedOn(after) - billedOn(known)))
  }
  return { moves, before, after: moved }
}

/** Use without a limit. The writer of a branch may not have received the limit that ended the metering of the chain. */
export function isMetered({ before, after }: AccountMove): boolean {
  return before.metered || (before.wasMetered && after.branchUsed > before.branchUsed)
}

/** Tokens that the move reserves and that no grant on record explains. Metered use and released tokens are explained. */
export function claimOf(move: AccountMove): Micro {
  const { before, after, isProven } = move
  if (isMetered(move) || isProven === true) return 0n
  const claimed = reservedOn(after) - reservedOn(before) + after.released - before.released
  return claimed > 0n ? claimed : 0n
}

/** Tokens that the device proves were granted before the cloud was restored. */
function shownAgain({ before, after }: AccountMove): Micro {
  const shown = after.granted - before.granted - (after.overspend - before.overspend)
  return after.unlimited || shown < 0n ? 0n : shown
}
