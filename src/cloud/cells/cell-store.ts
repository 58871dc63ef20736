/** While the database does not respond, every call fails at once. Errors of the database name the cell. */
import { CodedError } from '../../protocol/errors.ts'
import type { Reader, Store, Transaction } from '../storage/store.ts'

const HTTP_SERVER_ERROR = 500

export class CellStore implements Store {
  readonly #name: string | null
  readonly #listeners = new Set<() => void>()
  #store: Store | undefined
  #isUp = false

  /** @param name null: the cloud has one database, and no cells */
  constructor(name: string | null) {
    this.#name = name
  }

  get isUp(): boolean {
    return this.#isUp
  }

  attach(store: Store): void {
    this.#store = store
    store.onOutbox(() => this.#listeners.forEach((listener) => listener()))
    this.#isUp = true
  }

  detach(): void {
    this.#store = undefined
    this.#isUp = false
  }

  /** Whether an attached database responds now. @throws what reading it throws, except that it does not respond */
  async probe(): Promise<boolean> {
    const store = this.#store
    if (store === undefined) return false
    try {
      await store.read((reader) => reader.cell.get())
      this.#isUp = true
    } catch (error) {
      if (!isUnreachable(error)) throw error
      this.#isUp = false
    }
    return this.#isUp
  }

  async transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    const store = this.#responding()
    return this.#name === null ? store.transaction(work) : this.#naming(store.transaction(work))
  }

  async read<T>(work: (reader: Reader) => Promise<T>): Promise<T> {
    const store = this.#responding()
    return this.#name === null ? store.read(work) : this.#naming(store.read(work))
  }

  onOutbox(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  async close(): Promise<void> {
    const store = this.#store
    this.detach()
    await store?.close()
  }

  #responding(): Store {
    if (this.#store !== undefined && this.#isUp) return this.#store
    const message = `The database of the cell ${this.#name ?? ''} does not respond.`
    throw new CodedError('DATABASE_UNREACHABLE', message, { details: { cell: this.#name } })
  }

  async #naming<T>(work: Promise<T>): Promise<T> {
    try {
      return await work
    } catch (error) {
      if (!(error instanceof CodedError) || error.httpStatus < HTTP_SERVER_ERROR) throw error
      const { code, message, details } = error
      throw new CodedError(code, message, { cause: error, details: { ...details, cell: this.#name } })
    }
  }
}

export function isUnreachable(error: unknown): boolean {
  return error instanceof CodedError && error.code === 'DATABASE_UNREACHABLE'
}
