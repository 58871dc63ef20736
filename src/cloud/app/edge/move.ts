/**
 * What changes on one incarnation mean for the pools: what is held back for the device, and what is billed by it. Every
 * change of a device's counters goes through here, so that the totals of a pool stay the sums over its devices.
 */
import { type AccountId, parseAccount } from '../../../core/account.ts'
import { MICRO_MAX, type Micro } from '../../../core/amount.ts'
import { bill, overrun, takeBack } from '../pool.ts'
import type { Pool } from '../records.ts'
import type { Reader } from '../store.ts'
import type { RulesInForce } from './rules-in-force.ts'
import { type DeviceAccountRecord, billedOn, heldOn } from './records.ts'

export interface AccountMove {
  readonly before: DeviceAccountRecord
  readonly after: DeviceAccountRecord
}

/** The pools afterwards, those that moved; undefined when an amount is larger than any counter can hold. */
export function movePools(
  pools: ReadonlyMap<AccountId, Pool>,
  moves: readonly AccountMove[],
): ReadonlyMap<AccountId, Pool> | undefined {
  const moved = new Map<AccountId, Pool>()
  for (const { before, after } of moves) {
    const pool = pools.get(after.account)
    if (pool === undefined) throw new Error('invariant: the pool of an account that moves was opened')
    if (billedOn(after) > heldOn(after)) throw new Error('invariant: what is billed, or presumed, is held')
    const held = heldOn(after) - heldOn(before)
    if (held > MICRO_MAX - pool.charged - pool.grantedOut) return undefined
    const drawn = held > 0n ? overrun(pool, held) : takeBack(pool, -held)
    moved.set(after.account, bill(drawn, billedOn(after) - billedOn(before)))
  }
  return moved
}

/**
 * Pools of which more is out than can be, if it is not on record. Copies of devices, and devices that remember grants from
 * before the store was restored, may have had the whole cap once more, and arrears that the offline policy allows are above
 * any cap; beyond that somebody makes up numbers. An allocation or a limit that the rules do not have may be one that they had:
 * whoever spends of it spends of the line item, and that is what bounds it.
 *
 * @param moved the pools after the moves
 */
export async function beyondBelief(
  reader: Reader,
  rules: RulesInForce,
  moved: ReadonlyMap<AccountId, Pool>,
  moves: readonly AccountMove[],
): Promise<ReadonlySet<AccountId>> {
  const doubted = new Map<AccountId, Micro>()
  for (const { account, capTarget, charged, grantedOut } of moved.values()) {
    if (capTarget === null || charged + grantedOut <= 2n * capTarget || !isRuled(rules, account)) continue
    doubted.set(account, charged + grantedOut - 2n * capTarget)
  }
  if (doubted.size === 0) return new Set()
  const arrears = new Map(await reader.edge.deviceAccounts.arrearsOf(doubted.keys()))
  for (const { before, after } of moves) {
    arrears.set(after.account, (arrears.get(after.account) ?? 0n) + after.arrears - before.arrears)
  }
  return new Set([...doubted].filter(([account, excess]) => excess > (arrears.get(account) ?? 0n)).map(([id]) => id))
}

function isRuled(rules: RulesInForce, account: AccountId): boolean {
  const parsed = parseAccount(account)
  if (parsed === undefined || parsed.kind === 'line') return true
  const lineItem = rules.get(parsed.instanceId)?.lineItems.get(parsed.lineItemId)
  if (parsed.kind === 'limit') return lineItem !== undefined && lineItem.consumptionLimit !== null
  return lineItem?.actions.some(({ id, allocation }) => id === parsed.actionId && allocation !== null) === true
}
