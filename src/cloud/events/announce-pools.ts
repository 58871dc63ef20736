/** Writes an event when a pool of a line item becomes low or exhausted: once for each period and capacity. */
import { type AccountId, isLineAccount, parseAccount } from '../../core/accounts/account.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import { used } from '../accounts/pool.ts'
import type { EventRecord, Pool } from '../storage/records.ts'
import type { Store, Transaction } from '../storage/store.ts'
import { watchPools, withTransactions } from '../storage/with-transactions.ts'

export interface PoolTerms {
  /** Percent of the capacity: with as much left, or less, a pool is low. */
  readonly lowPercent: () => number
  readonly now: () => number
}

type Level = 'enough' | 'low' | 'exhausted'

const LEVELS: readonly Level[] = ['enough', 'low', 'exhausted']

export function announcePools(store: Store, terms: PoolTerms): Store {
  return withTransactions(store, (work) => store.transaction((tx) => work(announcing(tx, terms))))
}

function announcing(tx: Transaction, { lowPercent, now }: PoolTerms): Transaction {
  const percent = BigInt(lowPercent())
  const levels = new Map<AccountId, Level>()
  const onLocked = (pool: Pool): void => void levels.set(pool.account, levelOf(pool, percent))
  return watchPools(tx, onLocked, async (pool) => {
    const level = levelOf(pool, percent)
    const before = levels.get(pool.account) ?? 'enough'
    levels.set(pool.account, level)
    if (level === 'enough' || LEVELS.indexOf(level) <= LEVELS.indexOf(before)) return
    await tx.events.append(poolEvent(pool, level, now()))
  })
}

function levelOf(pool: Pool, percent: bigint): Level {
  const { account, capTarget } = pool
  if (capTarget === null || capTarget === 0n || !isLineAccount(account)) return 'enough'
  const left = capTarget - used(pool)
  if (left <= 0n) return 'exhausted'
  return left * 100n <= capTarget * percent ? 'low' : 'enough'
}

function poolEvent(pool: Pool, level: Exclude<Level, 'enough'>, at: number): EventRecord {
  const parsed = parseAccount(pool.account)
  if (parsed?.kind !== 'line') throw new Error('invariant: only pools of line items have levels')
  const { instanceId, lineItemId, period } = parsed
  const capacity = pool.capTarget ?? 0n
  const left = capacity - used(pool)
  const amounts = { capacity: formatMicro(capacity), used: formatMicro(used(pool)), left: formatMicro(left) }
  return {
    id: `${pool.account}/${level}/${capacity}`,
    type: `line-item.${level}`,
    at,
    instanceId,
    deviceId: null,
    data: { instanceId, lineItemId, period, ...amounts },
  }
}
