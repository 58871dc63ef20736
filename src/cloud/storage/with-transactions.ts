import type { Pool } from './records.ts'
import type { Store, Transaction } from './store.ts'

/** The same store with other transactions. */
export function withTransactions(store: Store, transaction: Store['transaction']): Store {
  return {
    read: (work) => store.read(work),
    onOutbox: (listener) => store.onOutbox(listener),
    close: () => store.close(),
    transaction,
  }
}

/** A transaction that reports the pools that it locks and saves. */
export function watchPools(
  tx: Transaction,
  onLocked: (pool: Pool) => void,
  onSaved: (pool: Pool) => Promise<void> | void,
): Transaction {
  const locked = (pools: ReadonlyMap<string, Pool>): typeof pools => {
    pools.forEach(onLocked)
    return pools
  }
  return {
    ...tx,
    accounts: {
      ...tx.accounts,
      lock: async (accounts) => locked(await tx.accounts.lock(accounts)),
      open: async (wanted) => locked(await tx.accounts.open(wanted)),
      async save(pools) {
        await tx.accounts.save(pools)
        for (const pool of pools) await onSaved(pool)
      },
    },
  }
}
