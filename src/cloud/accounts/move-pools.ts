/** Every change of a device's counters goes through here, so that pool totals stay the sums over devices. */
import type { AccountId } from '../../core/accounts/account.ts'
import { MICRO_MAX, type Micro } from '../../core/pricing/amount.ts'
import { accountFor, bill, overrun, takeBack } from './pool.ts'
import type { Pool } from '../storage/records.ts'
import { type DeviceAccountRecord, billedOn, reservedOn } from '../storage/device-records.ts'

export interface AccountMove {
  readonly before: DeviceAccountRecord
  readonly after: DeviceAccountRecord
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
    const drawn = accountFor(reserved > 0n ? overrun(pool, reserved) : takeBack(pool, -reserved), shownAgain(move))
    moved.set(after.account, bill(drawn, billedOn(after) - billedOn(known)))
  }
  return { moves, before, after: moved }
}

/** Tokens that the device proves were granted before the cloud was restored. */
function shownAgain({ before, after }: AccountMove): Micro {
  const shown = after.granted - before.granted - (after.overspend - before.overspend)
  return after.unlimited || shown < 0n ? 0n : shown
}
