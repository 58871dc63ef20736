/**
 * Reports each transaction's duration, outcome and committed usage to a watcher. Rolled back work is not reported, and
 * a watcher's failure affects no transaction.
 */
import type { UsageRecord } from './records.ts'
import type { Store, Transaction } from './store.ts'

export interface StoreWatcher {
  /** @param ms total duration, including waiting for locks */
  transaction(committed: boolean, ms: number): void
  usage(records: readonly UsageRecord[]): void
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
  return {
    read: (work) => store.read(work),
    onOutbox: (listener) => store.onOutbox(listener),
    close: () => store.close(),
    async transaction(work) {
      const begun = stopwatch()
      let written: UsageRecord[] = []
      try {
        const result = await store.transaction((tx) => {
          written = []
          return work(noting(tx, written))
        })
        tell(() => watcher.transaction(true, stopwatch() - begun))
        if (written.length > 0) tell(() => watcher.usage(written))
        return result
      } catch (error) {
        tell(() => watcher.transaction(false, stopwatch() - begun))
        throw error
      }
    },
  }
}

function noting(tx: Transaction, written: UsageRecord[]): Transaction {
  const append = async (records: readonly UsageRecord[]): Promise<void> => {
    await tx.usage.append(records)
    written.push(...records)
  }
  return { ...tx, usage: { ...tx.usage, append } }
}
