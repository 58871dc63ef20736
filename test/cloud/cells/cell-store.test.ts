import { describe, expect, it } from 'vitest'
import { CellStore } from '../../../src/cloud/cells/cell-store.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { type ErrorCode, CodedError } from '../../../src/protocol/errors.ts'

class FakeStore {
  failure: ErrorCode | null = null
  calls = 0
  closed = 0
  readonly #run = async <T>(work: (tx: never) => Promise<T>): Promise<T> => {
    this.calls += 1
    if (this.failure !== null) throw new CodedError(this.failure, 'details')
    return work({ cell: { get: async () => undefined } } as never)
  }
  readonly store = {
    read: this.#run,
    transaction: this.#run,
    onOutbox: (listener: () => void) => {
      this.wrote = listener
      return () => undefined
    },
    close: async () => void (this.closed += 1),
  } as Store
  wrote = (): void => undefined
}

const work = async (): Promise<string> => 'done'

describe('the store of a cell', () => {
  it('fails at once, and names the cell, until its database responds', async () => {
    const store = new CellStore('north')
    const unreachable = { code: 'DATABASE_UNREACHABLE', details: { cell: 'north' } }
    await expect(store.read(work)).rejects.toMatchObject(unreachable)
    await expect(store.transaction(work)).rejects.toMatchObject(unreachable)
    expect(await store.probe()).toBe(false)
    const { store: database } = new FakeStore()
    store.attach(database)
    expect([store.isUp, await store.read(work), await store.transaction(work)]).toEqual([true, 'done', 'done'])
  })

  it('uses a database that stops to respond only for probes, until it responds again', async () => {
    const store = new CellStore('north')
    const database = new FakeStore()
    store.attach(database.store)
    database.failure = 'DATABASE_UNREACHABLE'
    expect([await store.probe(), store.isUp]).toEqual([false, false])
    await expect(store.read(work)).rejects.toMatchObject({ code: 'DATABASE_UNREACHABLE' })
    expect(database.calls).toBe(1)
    database.failure = null
    expect([await store.probe(), await store.read(work)]).toEqual([true, 'done'])
  })

  it('stays in use if the database responds with another error', async () => {
    const store = new CellStore('north')
    const database = new FakeStore()
    store.attach(database.store)
    database.failure = 'OVERLOADED'
    await expect(store.probe()).rejects.toMatchObject({ code: 'OVERLOADED' })
    expect(store.isUp).toBe(true)
  })

  it('names the cell in errors of the database, and not in those of callers', async () => {
    const store = new CellStore('north')
    const database = new FakeStore()
    store.attach(database.store)
    database.failure = 'OUTCOME_UNKNOWN'
    await expect(store.transaction(work)).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN', details: { cell: 'north' } })
    database.failure = 'NOT_FOUND'
    await expect(store.transaction(work)).rejects.toMatchObject({ code: 'NOT_FOUND', details: {} })
  })

  it('forwards commits to listeners that came before the database, and closes it', async () => {
    const store = new CellStore(null)
    const database = new FakeStore()
    let calls = 0
    const stop = store.onOutbox(() => (calls += 1))
    store.attach(database.store)
    database.wrote()
    stop()
    database.wrote()
    expect(calls).toBe(1)
    await store.close()
    expect([database.closed, store.isUp]).toEqual([1, false])
  })
})
