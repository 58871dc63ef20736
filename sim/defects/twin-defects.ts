/** Where defects hook into the cloud; see `device-defects.ts`. */
import type { Database } from '../../src/cloud/storage/sqlite/database.ts'
import type { attach } from '../../src/cloud/sync/attach.ts'
import type { sync } from '../../src/cloud/sync/sync.ts'
import type { Store, Transaction } from '../../src/cloud/storage/store.ts'

export interface TwinDefects {
  store(store: Store, database: Database): Store
  transaction(tx: Transaction, database: Database): Transaction
  attach(work: typeof attach): typeof attach
  sync(work: typeof sync): typeof sync
  /** The process starts. @param every runs work repeatedly until it reports that none is left */
  begin(
    twin: { readonly store: Store; readonly now: () => number },
    every: (ms: number, work: () => Promise<boolean>) => void,
  ): void
  trustsClock(trusted: boolean): boolean
  onCommit(database: Database): void
  /** The process ended; returns the database for the next one. */
  onTwinEnd(database: Database): Database
}

export const SOUND_TWIN: TwinDefects = {
  store: (store) => store,
  transaction: (tx) => tx,
  attach: (work) => work,
  sync: (work) => work,
  begin: () => undefined,
  trustsClock: (trusted) => trusted,
  onCommit: () => undefined,
  onTwinEnd: (database) => database,
}
