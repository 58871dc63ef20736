/**
 * Reports each transaction's duration, outcome and committed usage to a watcher. Rolled back work is not reported, and
 * a watcher's failure affects no transaction.
 */
import type { DeliverySums } from './device-records.ts'
import type { UsageRecord } from './records.ts'
import type { Store, Transaction } from './store.ts'
import { withTransactions } from './with-transactions.ts'

export interface StoreWatcher {
  /** @param ms total duration, including waiting for locks */
  transaction(committed: boolean, ms: number): void
  usage(records: readonly UsageRecord[]): void
  /** Entries of a device. */
  delivery(sums: DeliverySums): void
}

/** @param stopwatch monotonic clock, ms */
export function watchStore(store: Store, watcher: StoreWatcher, stopwatch: () => number): Store {
  const tell = (call: () => void): void => {
    try {
      call()
    } catch {
      // The work is committed; a watcher must not fail it.
    }
  }
  return withTransactions(store, async (work) => {
    const begun = stopwatch()
    let written: Written = { records: [], deliveries: [] }
    try {
      const result = await store.transaction((tx) => {
        written = { records: [], deliveries: [] }
        return work(noting(tx, written))
      })
      tell(() => watcher.transaction(true, stopwatch() - begun))
      if (written.records.length > 0) tell(() => watcher.usage(written.records))
      for (const sums of written.deliveries) tell(() => watcher.delivery(sums))
      return result
    } catch (error) {
      tell(() => watcher.transaction(false, stopwatch() - begun))
      throw error
    }
  })
}

interface Written {
  readonly records: UsageRecord[]
  readonly deliveries: DeliverySums[]
}

function noting(tx: Transaction, written: Written): Transaction {
  const usage: Transaction['usage'] = {
    ...tx.usage,
    async append(records) {
      await tx.usage.append(records)
      written.records.push(...records)
    },
    async deliver(delivery) {
      await tx.usage.deliver(delivery)
      written.deliveries.push(delivery.sums)
    },
  }
  return { ...tx, usage }
}
