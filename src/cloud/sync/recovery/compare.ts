/** Compares a sales mark with a database: do they share a history, and which one is older? */
import type { AccountId } from '../../../core/accounts/account.ts'
import { isLimitAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader, Store } from '../../storage/store.ts'
import { type SalesMark, isHashed, markName } from './sales-mark.ts'

export interface Comparison {
  readonly result: 'AGREES' | 'DATABASE_OLDER' | 'MARK_OLDER'
  readonly reason: string | null
  readonly sold: ReadonlyMap<AccountId, Micro>
  /** Other accounts may have been sold from as well, or more than `sold`. */
  readonly unknown: boolean
}

/** A power cut may lose a turn that was written to the file after the database, and the next one. */
const TURNS_BEHIND_MAX = 2

/** @param shared other nodes sell too: counts beyond the mark may be theirs */
export async function compare(
  store: Pick<Store, 'read' | 'transaction'>,
  mark: SalesMark,
  shared: boolean,
): Promise<Comparison> {
  // Taken before the database is read: sales that this node counts during the reads may be missing in their results.
  const { turn, position } = mark
  const counted = new Map([...mark.counts()].map(({ name, sold }) => [name, sold]))
  const records = await store.read((reader) => reader.edge.salesMarks.list())
  const own = records.find(({ id }) => id === mark.id)
  const settled = await store.transaction((tx) => tx.usage.settled())
  const pools = await store.read((reader) => poolsOf(reader, mark))

  const sold = new Map<AccountId, Micro>()
  // A mark unknown to the backup began after it. Only another mark can show earlier sales.
  let unknown = !mark.isComplete || (own === undefined && (!shared || records.length === 0))
  let older = own === undefined || own.turn < turn || settled < position
  let newer = own !== undefined && own.turn > mark.turn + TURNS_BEHIND_MAX
  for (const count of mark.counts()) {
    const pool = pools.get(count.name)
    const known = pool?.sold ?? 0n
    older ||= known < (counted.get(count.name) ?? 0n)
    newer ||= !shared && known > count.reserved
    if (pool !== undefined || !isHashed(count.name)) sold.set(pool?.account ?? count.name, count.atMost)
    else unknown ||= !isLimitAccount(count.name)
  }
  if (newer) {
    const reason = 'The sales mark is an old copy: the database has gone on without it.'
    return { result: 'MARK_OLDER', reason, sold, unknown: true }
  }
  if (!older) return { result: 'AGREES', reason: null, sold, unknown }
  const reason = 'The database is older than the sales mark: it comes from a backup.'
  return { result: 'DATABASE_OLDER', reason, sold, unknown }
}

export async function poolsOf(reader: Reader, mark: SalesMark): Promise<ReadonlyMap<string, Pool>> {
  const names = [...mark.counts()].map(({ name }) => name)
  const pools = new Map<string, Pool>(await reader.accounts.get(names.filter((name) => !isHashed(name))))
  const instances = new Set(names.filter(isHashed).map((name) => name.split('/')[1] ?? ''))
  for (const instanceId of instances) {
    for (const pool of await reader.accounts.ofInstance(instanceId)) {
      const name = markName(pool.account)
      if (isHashed(name)) pools.set(name, pool)
    }
  }
  return pools
}
