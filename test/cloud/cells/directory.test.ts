import { describe, expect, it } from 'vitest'
import { Directory } from '../../../src/cloud/cells/directory.ts'
import type { Reader } from '../../../src/cloud/storage/store.ts'
import { CodedError } from '../../../src/protocol/errors.ts'

class FakeCell {
  readonly name: string
  readonly ids: Set<string>
  isAway = false
  reads = 0
  readonly isOpen: boolean
  readonly store = {
    read: async <T>(work: (reader: Reader) => Promise<T>): Promise<T> => {
      this.reads += 1
      if (this.isAway) throw new CodedError('DATABASE_UNREACHABLE', 'away', { details: { cell: this.name } })
      const get = async (id: string) => (this.ids.has(id) ? {} : undefined)
      const hasAccount = async (id: string) => this.ids.has(id)
      return work({
        instances: { get, hasAccount },
        sessions: { get },
        edge: { devices: { get } },
      } as unknown as Reader)
    },
  }

  constructor(name: string, ids: readonly string[] = [], isOpen = true) {
    this.name = name
    this.ids = new Set(ids)
    this.isOpen = isOpen
  }
}

describe('a directory of cells', () => {
  it.each(['instance', 'device', 'session', 'account'] as const)('finds the cell of the %s once', async (kind) => {
    const [north, south] = [new FakeCell('north'), new FakeCell('south', ['a'])]
    const directory = new Directory([north, south])
    const found = await Promise.all([directory.find(kind, 'a'), directory.find(kind, 'a')])
    expect(found).toEqual([south, south])
    south.isAway = true
    expect(await directory.find(kind, 'a')).toBe(south)
    expect([north.reads, south.reads]).toEqual([1, 1])
  })

  it.each(['instance', 'account'] as const)('searches an unknown %s again', async (kind) => {
    const [north, south] = [new FakeCell('north'), new FakeCell('south')]
    const directory = new Directory([north, south])
    const early = directory.find(kind, 'a')
    south.ids.add('a')
    const late = directory.find(kind, 'a')
    expect(await Promise.all([early, late])).toEqual([null, south])
  })

  it('does not guess while a cell is unreachable, unless another one has the id', async () => {
    const [north, south] = [new FakeCell('north', ['a']), new FakeCell('south', ['b'])]
    const directory = new Directory([north, south])
    south.isAway = true
    expect(await directory.find('instance', 'a')).toBe(north)
    const unreachable = { code: 'DATABASE_UNREACHABLE', details: { cell: 'south' } }
    await expect(directory.find('instance', 'b')).rejects.toMatchObject(unreachable)
    south.isAway = false
    expect(await directory.find('instance', 'b')).toBe(south)
  })

  it('refuses an id that two cells have', async () => {
    const directory = new Directory([new FakeCell('north', ['a']), new FakeCell('south', ['a'])])
    await expect(directory.find('instance', 'a')).rejects.toThrow('in north, south')
    // A device of one cell can take the id of a session in another one.
    await expect(directory.find('session', 'a')).rejects.toMatchObject({
      code: 'CELL_REQUIRED',
      message: 'The session a is in several cells: north, south.',
    })
  })

  it('takes the first of the cells that have an account: nodes with other settings may have created instances', async () => {
    const [north, south] = [new FakeCell('north', ['a']), new FakeCell('south', ['a'])]
    expect(await new Directory([north, south]).find('account', 'a')).toBe(north)
  })

  it('distributes new accounts over the open cells, the same in each node', () => {
    const cells = ['a', 'b', 'c'].map((name) => new FakeCell(name))
    const closed = new FakeCell('d', [], false)
    const accounts = Array.from({ length: 300 }, (_, index) => `account-${index}`)
    const directory = new Directory([...cells, closed])
    const other = new Directory([closed, ...cells.toReversed()])
    const chosen = accounts.map((account) => directory.cellForNew(account))
    expect(accounts.map((account) => other.cellForNew(account))).toEqual(chosen)
    for (const cell of cells) expect(chosen.filter((each) => each === cell).length).toBeGreaterThan(60)
    // Without a cell, only its accounts would go elsewhere.
    const fewer = new Directory(cells.slice(0, 2))
    const stayed = accounts.filter((account, index) => fewer.cellForNew(account) === chosen[index])
    expect(stayed.length).toBe(chosen.filter((each) => each !== cells[2]).length)
  })
})
