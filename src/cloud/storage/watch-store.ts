/**
 * A store with somebody who watches: after each transaction it hears how long that took, whether it took effect, and which
 * usage it wrote. What a transaction wrote that was rolled back, or run again, is never told. The watcher decides nothing,
 * and a fault of it reaches nobody.
 */
import type { UsageRecord } from './records.ts'
import type { Store, Transaction } from './store.ts'

export interface StoreWatcher {
  /** @param ms from the call to its end, waiting for locks and other transactions included */
  transaction(committed: boolean, ms: number): void
  /** Usage that was committed. */
  usage(records: readonly UsageRecord[]): void
}

/** @param stopwatch any clock that only goes forward, ms */
export function watchStore(store: Store, watcher: StoreWatcher, stopwatch: () => number): Store {
  const tell = (call: () => void): void => {
    try {
      call()
    } catch {
      // The work is done, and its caller waits for the answer.
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
