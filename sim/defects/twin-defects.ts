/** Where defects hook into the cloud; see `device-defects.ts`. */
import type { Database } from '../../src/cloud/storage/sqlite/database.ts'
import type { OverCells } from '../../src/cloud/http/route-over-cells.ts'
import type { Answer, Call, Operation } from '../../src/cloud/http/operation.ts'
import { type CreateLoadedSyncs, createLoadedSyncs } from '../../src/cloud/sync/loaded-syncs.ts'
import type { Store, Transaction } from '../../src/cloud/storage/store.ts'

/** A process of the cloud. */
export interface Defective {
  readonly store: Store
  readonly now: () => number
}

export interface TwinDefects {
  store(store: Store, database: Database): Store
  transaction(tx: Transaction, database: Database): Transaction
  operation(operation: Operation, twin: Defective): Operation
  createLoadedSyncs: CreateLoadedSyncs
  /** The process starts. @param every runs work repeatedly until it reports that none is left */
  begin(twin: Defective, every: (ms: number, work: () => Promise<boolean> | Promise<void>) => void): void
  trustsClock(trusted: boolean): boolean
  /** Whether cells get what changes in the control cell. */
  copies(): boolean
  cells(over: OverCells): OverCells
  onCommit(database: Database): void
  /** The process ended; returns the database for the next one. */
  onTwinEnd(database: Database): Database
}

export const SOUND_TWIN: TwinDefects = {
  store: (store) => store,
  transaction: (tx) => tx,
  operation: (operation) => operation,
  createLoadedSyncs,
  begin: () => undefined,
  trustsClock: (trusted) => trusted,
  copies: () => true,
  cells: (over) => over,
  onCommit: () => undefined,
  onTwinEnd: (database) => database,
}

/** Body of a sync. */
export interface Delivered {
  readonly segment: string
}

/** The operation with this id in another form; others stay as they are. */
export function instead<Body>(
  id: 'attach' | 'sync' | 'announceDeviceKey',
  handle: (
    call: Call<{ readonly deviceId: string }, unknown, Body>,
    twin: Defective,
    work: () => Promise<Answer>,
  ) => Promise<Answer>,
): TwinDefects['operation'] {
  return (operation, twin) => {
    if (operation.id !== id) return operation
    const work = operation.handle
    return { ...operation, handle: (call) => handle(call as Parameters<typeof handle>[0], twin, () => work(call)) }
  }
}
