/** The cells themselves are searched, and hits are remembered, because nothing moves to another cell. */
import { hash } from 'node:crypto'
import { CodedError } from '../../protocol/errors.ts'
import type { Reader, Store } from '../storage/store.ts'

export interface DirectoryCell {
  readonly name: string
  readonly store: Pick<Store, 'read'>
  readonly isOpen: boolean
}

export type Kind = 'instance' | 'device' | 'session' | 'account'

const HITS_MAX = 100_000

const HAS: Readonly<Record<Kind, (reader: Reader, id: string) => Promise<boolean>>> = {
  instance: async (reader, id) => (await reader.instances.get(id)) !== undefined,
  device: async (reader, id) => (await reader.edge.devices.get(id)) !== undefined,
  session: async (reader, id) => (await reader.sessions.get(id)) !== undefined,
  account: (reader, id) => reader.instances.hasAccount(id),
}

export class Directory<Cell extends DirectoryCell> {
  readonly #cells: readonly Cell[]
  readonly #hits = new Map<string, Cell>()
  readonly #asking = new Map<string, Promise<Cell | null>>()

  constructor(cells: readonly Cell[]) {
    this.#cells = cells
  }

  /** @throws CodedError if a cell does not respond, and no other one has it. CELL_REQUIRED for a session in several */
  async find(kind: Kind, id: string): Promise<Cell | null> {
    const key = `${kind} ${id}`
    const known = this.#hits.get(key)
    if (known !== undefined) return known
    const earlier = this.#asking.get(key)
    // It may have missed what was created since it began.
    const found = earlier === undefined ? null : await earlier
    if (found !== null) return found
    const asking = this.#ask(kind, id).finally(() => {
      if (this.#asking.get(key) === asking) this.#asking.delete(key)
    })
    this.#asking.set(key, asking)
    const cell = await asking
    if (cell !== null) this.#keep(key, cell)
    return cell
  }

  /** Of an account for which an instance is to be created. @throws CodedError if a cell does not respond, and no other one has it */
  async cellToCreateIn(accountId: string): Promise<Cell> {
    return (await this.find('account', accountId)) ?? this.cellForNew(accountId)
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

  async #ask(kind: Kind, id: string): Promise<Cell | null> {
    const answers = await Promise.allSettled(
      this.#cells.map(async (cell) => ((await cell.store.read((reader) => HAS[kind](reader, id))) ? cell : null)),
    )
    const found = answers.flatMap((answer) =>
      answer.status === 'fulfilled' && answer.value !== null ? [answer.value] : [],
    )
    const [cell, ...others] = found
    // Nodes with different settings may have put the instances of an account into several cells.
    if (others.length > 0 && kind !== 'account') {
      const names = found.map(({ name }) => name).join(', ')
      // A device chooses the ids of its sessions.
      if (kind === 'session') {
        throw new CodedError('CELL_REQUIRED', `The session ${id} is in several cells: ${names}.`)
      }
      throw new Error(`invariant: the ${kind} ${id} is in one cell, and not in ${names}`)
    }
    if (cell !== undefined) return cell
    const failed = answers.find((answer) => answer.status === 'rejected')
    if (failed !== undefined) throw failed.reason
    return null
  }

  #keep(key: string, cell: Cell): void {
    const [oldest] = this.#hits.keys()
    if (this.#hits.size >= HITS_MAX && oldest !== undefined) this.#hits.delete(oldest)
    this.#hits.set(key, cell)
  }
}
