/** Compares a sales mark with a database: do they share a history, and which one is older? */
import type { AccountId } from '../../../core/accounts/account.ts'
import { isLimitAccount } from '../../../core/accounts/account.ts'
import type { Micro } from '../../../core/pricing/amount.ts'
import type { Pool } from '../../storage/records.ts'
import type { Reader, Store } from '../../storage/store.ts'
import { type Count, type SalesMark, isHashed, markName } from './sales-mark.ts'

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

  const counts = [...mark.counts()]
  const soldIn = (name: string): Micro => pools.get(name)?.sold ?? 0n
  const hasGoneOn = own !== undefined && own.turn > mark.turn + TURNS_BEHIND_MAX
  const isMarkOlder = hasGoneOn || (!shared && counts.some(({ name, reserved }) => soldIn(name) > reserved))
  const isDatabaseOlder =
    own === undefined ||
    own.turn < turn ||
    settled < position ||
    counts.some(({ name }) => soldIn(name) < (counted.get(name) ?? 0n))

  const isOfAccount = ({ name }: Count): boolean => pools.has(name) || !isHashed(name)
  const sold = new Map(
    counts.filter(isOfAccount).map(({ name, atMost }) => [pools.get(name)?.account ?? name, atMost] as const),
  )
  // A mark unknown to the backup began after it. Only another mark can show earlier sales.
  const isFirstMark = own === undefined && (!shared || records.length === 0)
  const unknown =
    !mark.isComplete || isFirstMark || counts.some((count) => !isOfAccount(count) && !isLimitAccount(count.name))
  if (isMarkOlder) {
    const reason = 'The sales mark is an old copy: the database has gone on without it.'
    return { result: 'MARK_OLDER', reason, sold, unknown: true }
  }
  if (!isDatabaseOlder) return { result: 'AGREES', reason: null, sold, unknown }
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
