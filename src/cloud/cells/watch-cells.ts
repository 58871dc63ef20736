/** Looks after the cells: databases that did not respond, and copies of what the control cell has for all of them. */
import { CodedError, messageOf } from '../../protocol/errors.ts'
import { changeSharedRules } from '../policy/bump-policy-revision.ts'
import type { Keyring } from '../devices/keyring.ts'
import { type CellStore, isUnreachable } from './cell-store.ts'
import { copyShared } from './copy-shared.ts'
import type { Log } from '../../protocol/log.ts'

export interface WatchedCell {
  readonly name: string
  readonly store: CellStore
  readonly isStarted: boolean
  readonly clock: {
    /** Whether its database could be written the last time. */
    readonly isRecorded: boolean
  }
  /** Thumbprint of the signing key that its database knows. */
  readonly signingKey: string
  start(): Promise<void>
  claimSigningKey(): Promise<void>
  readonly metrics: { cell(isUp: boolean, isBehind: boolean): void }
}

export interface CellWatchDeps {
  /** The first one is the control cell. */
  readonly cells: readonly [WatchedCell, ...WatchedCell[]]
  readonly keys: Pick<Keyring, 'signer'>
  readonly now: () => number
  readonly log: Pick<Log, 'info' | 'warn'>
}

const AWAY = new CodedError('DATABASE_UNREACHABLE', 'does not respond')

export class CellWatch {
  readonly #deps: CellWatchDeps
  /** By cell: cells without an entry work. */
  readonly #problems = new Map<string, string>()
  readonly #behind = new Set<string>()

  constructor(deps: CellWatchDeps) {
    this.#deps = deps
    for (const cell of deps.cells.filter(({ isStarted }) => !isStarted)) this.#note(cell, 'database', AWAY)
  }

  /** For the readiness of the node. */
  get conditions(): readonly string[] {
    const { cells } = this.#deps
    return [
      ...cells.filter(({ store }) => !store.isUp).map(({ name }) => `CELL_UNREACHABLE ${name}`),
      ...cells.filter(({ clock }) => !clock.isRecorded).map(({ name }) => `CELL_UNWRITABLE ${name}`),
      ...[...this.#behind].map((name) => `CELL_BEHIND ${name}`),
    ]
  }

  /** Starts a cell whose database did not respond, and notices when it stops or begins to respond. */
  async probe(cell: WatchedCell): Promise<void> {
    try {
      if (!cell.isStarted) await cell.start()
      else if (!(await cell.store.probe())) throw AWAY
      this.#note(cell, 'database', null)
    } catch (error) {
      this.#note(cell, 'database', error)
    }
    this.#show(cell)
  }

  #show({ name, store, metrics }: WatchedCell): void {
    metrics.cell(store.isUp, this.#behind.has(name))
  }

  /** Copies to all cells that respond. The others follow when they do. */
  async copy(): Promise<void> {
    const [control, ...others] = this.#deps.cells
    await Promise.all(this.#deps.cells.map((cell) => this.#claim(cell)))
    await Promise.all(others.map((cell) => this.#copy(control, cell)))
    for (const cell of this.#deps.cells) this.#show(cell)
  }

  async #copy(control: WatchedCell, cell: WatchedCell): Promise<void> {
    try {
      await copyShared(control.store, cell.store, this.#deps.now)
      this.#behind.delete(cell.name)
      this.#note(cell, 'copy', null)
    } catch (error) {
      // Until the control cell responds, it is not known whether this one lacks anything.
      this.#behind.add(cell.name)
      this.#note(cell, 'copy', error)
    }
  }

  /** The node may have got another signing key while the cell was away. Its devices must learn of it. */
  async #claim(cell: WatchedCell): Promise<void> {
    if (!cell.store.isUp || cell.signingKey === this.#deps.keys.signer.keyId) return
    try {
      const before = cell.signingKey
      await cell.claimSigningKey()
      if (cell.signingKey === before) return
      await cell.store.transaction((tx) => changeSharedRules(tx, this.#deps.now(), async () => undefined))
    } catch (error) {
      this.#note(cell, 'signing key', error)
    }
  }

  #note({ name }: WatchedCell, what: string, error: unknown): void {
    const key = `${name}: ${what}`
    const problem = error === null ? undefined : messageOf(error)
    const before = this.#problems.get(key)
    if (problem === undefined) {
      this.#problems.delete(key)
      if (before !== undefined) this.#deps.log.warn({ cell: name }, `the ${what} of the cell works again`)
      return
    }
    this.#problems.set(key, problem)
    // The reason may differ from time to time.
    if (before !== undefined && (problem === before || isUnreachable(error))) return
    this.#deps.log.warn({ cell: name, err: error }, `the ${what} of the cell does not work`)
  }
}
