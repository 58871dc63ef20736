/**
 * Leads from an id to the cell that has it. There is no table: the cells themselves are searched, and hits are remembered,
 * because nothing moves to another cell. Unknown ids are remembered for a second.
 */
import { hash } from 'node:crypto'
import type { Reader, Store } from '../storage/store.ts'

export interface DirectoryCell {
  readonly name: string
  readonly store: Pick<Store, 'read'>
  /** Whether it gets new accounts. */
  readonly isOpen: boolean
}

export type Kind = 'instance' | 'device' | 'session' | 'account'

const HITS_MAX = 100_000
const UNKNOWN_MAX = 10_000
const UNKNOWN_MS = 1_000

const HAS: Readonly<Record<Kind, (reader: Reader, id: string) => Promise<boolean>>> = {
  instance: async (reader, id) => (await reader.instances.get(id)) !== undefined,
  device: async (reader, id) => (await reader.edge.devices.get(id)) !== undefined,
  session: async (reader, id) => (await reader.sessions.get(id)) !== undefined,
  account: (reader, id) => reader.instances.hasAccount(id),
}

export class Directory<Cell extends DirectoryCell> {
  readonly #cells: readonly Cell[]
  readonly #now: () => number
  readonly #hits = new Map<string, Cell>()
  /** When they expire. */
  readonly #unknown = new Map<string, number>()
  readonly #asking = new Map<string, Promise<Cell | null>>()

  /** @param now monotonic, ms */
  constructor(cells: readonly Cell[], now: () => number) {
    this.#cells = cells
    this.#now = now
  }

  /**
   * Null: no cell has it.
   * @throws CodedError if a cell does not respond, and no other one has it
   */
  async find(kind: Kind, id: string): Promise<Cell | null> {
    const key = `${kind} ${id}`
    const known = this.#hits.get(key)
    if (known !== undefined) return known
    if ((this.#unknown.get(key) ?? -Infinity) > this.#now()) return null
    const asking =
      this.#asking.get(key) ??
      this.#ask(kind, id)
        .then((found) => this.#keep(kind, key, found))
        .finally(() => this.#asking.delete(key))
    this.#asking.set(key, asking)
    return asking
  }

  /** The cell of an account without instances: the same on all nodes with the same settings. */
  cellForNew(accountId: string): Cell {
    const weighed = this.#cells
      .filter(({ isOpen }) => isOpen)
      .map((cell) => ({ cell, weight: hash('sha256', `${cell.name}\n${accountId}`) }))
    const [first] = weighed.sort((one, other) => (one.weight < other.weight ? 1 : -1))
    if (first === undefined) throw new Error('invariant: a cell gets new accounts')
    return first.cell
  }

  /** An instance was created. */
  forgetUnknown(instanceId: string): void {
    this.#unknown.delete(`instance ${instanceId}`)
  }

  async #ask(kind: Kind, id: string): Promise<Cell | null> {
    const answers = await Promise.allSettled(
      this.#cells.map(async (cell) => ((await cell.store.read((reader) => HAS[kind](reader, id))) ? cell : null)),
    )
    const found = answers.flatMap((answer) =>
      answer.status === 'fulfilled' && answer.value !== null ? [answer.value] : [],
    )
    const [cell, ...others] = found
    if (others.length > 0) {
      const names = found.map(({ name }) => name).join(', ')
      throw new Error(`invariant: the ${kind} ${id} is in one cell, and not in ${names}`)
    }
    if (cell !== undefined) return cell
    const failed = answers.find((answer) => answer.status === 'rejected')
    if (failed !== undefined) throw failed.reason
    return null
  }

  #keep(kind: Kind, key: string, cell: Cell | null): Cell | null {
    if (cell !== null) {
      shorten(this.#hits, HITS_MAX)
      this.#hits.set(key, cell)
    } else if (kind !== 'account') {
      shorten(this.#unknown, UNKNOWN_MAX)
      this.#unknown.set(key, this.#now() + UNKNOWN_MS)
    }
    return cell
  }
}

/** Removes the oldest entry of a full map. */
function shorten(map: Map<string, unknown>, max: number): void {
  const [oldest] = map.keys()
  if (map.size >= max && oldest !== undefined) map.delete(oldest)
}
