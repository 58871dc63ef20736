/** Pools of line items in their current period. */
import { lineAccount } from '../../core/accounts/account.ts'
import { periodAt } from '../../core/rules/compile.ts'
import type { LineItem } from '../../core/rules/policy.ts'
import { capOf, newPool, recoverable, used } from './pool.ts'
import type { Reader } from '../storage/store.ts'

export interface PoolUse {
  readonly lineItem: LineItem
  readonly used: bigint
  /** Quantity and overdraft, less what was used; null: unlimited. */
  readonly left: bigint | null
  readonly onDevices: bigint
  readonly resetAt: number | null
}

export async function poolsOf(
  reader: Pick<Reader, 'accounts'>,
  instanceId: string,
  lineItems: readonly LineItem[],
  now: number,
): Promise<readonly PoolUse[]> {
  const current = lineItems.map((lineItem) => {
    const period = periodAt(lineItem.periods, now) ?? lineItem.periods.at(-1)
    return { lineItem, period, account: lineAccount(instanceId, lineItem.id, period?.index ?? 0) }
  })
  const pools = await reader.accounts.get(current.map(({ account }) => account))
  return current.map(({ lineItem, period, account }) => {
    const pool = pools.get(account) ?? newPool(account, capOf(account, lineItem))
    const { overdraft, quantity } = lineItem
    const left = overdraft === 'UNLIMITED' ? null : quantity + overdraft - used(pool)
    return { lineItem, used: used(pool), left, onDevices: recoverable(pool), resetAt: period?.until ?? null }
  })
}
