/**
 * A node that serves two cells: the site is in one of them, and the other one, the control cell, has the rate tables and
 * the configuration. The product's directory, routes, copies and probes connect them.
 */
import { CellStore } from '../../src/cloud/cells/cell-store.ts'
import { claimCell } from '../../src/cloud/cells/claim-cell.ts'
import { Directory } from '../../src/cloud/cells/directory.ts'
import { CellWatch, type WatchedCell } from '../../src/cloud/cells/watch-cells.ts'
import type { OverCells, ServedCell } from '../../src/cloud/http/route-over-cells.ts'
import type { CheckDeps } from '../../src/cloud/http/route.ts'
import type { Operation } from '../../src/cloud/http/operation.ts'
import type { Store } from '../../src/cloud/storage/store.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { TwinDefects } from '../defects/twin-defects.ts'

interface CellsDeps {
  /** Of the databases. */
  readonly control: Store
  readonly site: Store
  readonly keys: CheckDeps['keys']
  readonly now: () => number
  readonly newId: () => string
  readonly defects: Pick<TwinDefects, 'copies'>
}

export class CellsOfNode {
  readonly #deps: CellsDeps
  readonly #watch: CellWatch
  readonly #control: WatchedCell
  readonly #site: WatchedCell
  readonly #started = Promise.withResolvers<undefined>()

  constructor(deps: CellsDeps) {
    const { keys, now } = deps
    this.#deps = deps
    this.#control = watched('north', deps.control, keys)
    this.#site = watched('south', deps.site, keys)
    const log = { info: () => undefined, warn: () => undefined }
    this.#watch = new CellWatch({ cells: [this.#control, this.#site], keys, now, log })
  }

  get control(): Store {
    return this.#control.store
  }

  async start(): Promise<void> {
    const { newId } = this.#deps
    const [control, site] = [this.#control, this.#site]
    const cloudId = await claimCell(control.store, { name: control.name, isControl: true, cloudId: newId() }).catch(
      (error: unknown) => {
        if (error instanceof CodedError && error.code === 'DATABASE_UNREACHABLE') return null
        throw error
      },
    )
    await claimCell(site.store, { name: site.name, isControl: false, cloudId })
    this.#started.resolve(undefined)
  }

  /** A round of the watch. */
  async look(): Promise<void> {
    await this.#watch.probe(this.#control)
    await this.#copy()
  }

  /** A change of what all cells have. @throws CodedError if the control cell does not respond */
  async change(work: (store: Store) => Promise<void>): Promise<void> {
    await this.#started.promise
    await work(this.#control.store)
    await this.#copy()
  }

  async #copy(): Promise<void> {
    if (this.#deps.defects.copies()) await this.#watch.copy()
  }

  /** @param served how each cell checks callers and what it serves */
  over(served: (store: Store) => CheckDeps & { readonly operations: readonly Operation[] }): OverCells {
    const cells = [this.#control, this.#site].map(({ name, store }): ServedCell => ({
      ...served(store),
      name,
      store,
      isOpen: true,
    })) as [ServedCell, ServedCell]
    return { cells, directory: new Directory(cells), copy: () => this.#copy() }
  }
}

/** The database, which does not respond for a time. */
export function respondingUnless(store: Store, isDown: () => boolean): Store {
  const requireUp = (): void => {
    if (isDown()) throw new CodedError('DATABASE_UNREACHABLE', 'The database does not respond.')
  }
  return {
    ...store,
    transaction: async (work) => {
      requireUp()
      return store.transaction(work)
    },
    read: async (work) => {
      requireUp()
      return store.read(work)
    },
  }
}

function watched(name: string, database: Store, { signer }: CheckDeps['keys']): WatchedCell {
  const store = new CellStore(name)
  store.attach(database)
  return {
    name,
    store,
    isStarted: true,
    clock: { isRecorded: true },
    signingKey: signer.keyId,
    start: async () => undefined,
    claimSigningKey: async () => undefined,
    metrics: { cell: () => undefined },
  }
}
