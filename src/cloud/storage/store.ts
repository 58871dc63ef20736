/**
 * The store. `sql/transaction.ts` lists what a reader and a transaction can do, and both databases share it. A transaction
 * commits all or nothing, durably. Nodes may share a store, so a transaction locks what its decision depends on, reads it, and
 * keeps the locks until it ends. `lock` is exclusive and `lockShared` is shared; `lockSome` and `lockSomeShared` lock several.
 * The sequence of the locks avoids deadlocks:
 *
 *   1 devices, by id, each with its epochs, entries and accounts
 *   2 sessions, by id
 *   3 rules: of all instances, then of each, by id. `upgrade` never waits with a shared lock: the transaction restarts
 *     unless it runs alone
 *   4 accounts: line items first, then by id. An earlier one needed later must be free, else the transaction restarts. An
 *     account's lock covers its shortages
 *   5 inserts: outbox, documents, and last the usage records and events, whose tables an export locks
 */
import type { Transaction, readerOf } from './sql/transaction.ts'

export type { Transaction } from './sql/transaction.ts'

export interface Store {
  /**
   * Runs `work` in a transaction. `work` may rerun after a conflict, so it has no effects outside `tx` and awaits only
   * `tx`. A throw rolls back and is passed on.
   */
  transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T>
  read<T>(work: (reader: Reader) => Promise<T>): Promise<T>
  /** Calls the listener after each commit of this node that wrote to the outbox. Returns a function that stops it. */
  onOutbox(listener: () => void): () => void
  close(): Promise<void>
}

export type Reader = ReturnType<typeof readerOf>
