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

function directoryOf(...cells: FakeCell[]) {
  const clock = { now: 0 }
  return { clock, directory: new Directory(cells, () => clock.now) }
}

describe('a directory of cells', () => {
  it.each(['instance', 'device', 'session', 'account'] as const)('finds the cell of the %s once', async (kind) => {
    const [north, south] = [new FakeCell('north'), new FakeCell('south', ['a'])]
    const { directory } = directoryOf(north, south)
    const found = await Promise.all([directory.find(kind, 'a'), directory.find(kind, 'a')])
    expect(found).toEqual([south, south])
    south.isAway = true
    expect(await directory.find(kind, 'a')).toBe(south)
    expect([north.reads, south.reads]).toEqual([1, 1])
  })

  it('searches an unknown id again after a second, or when it was created', async () => {
    const [north, south] = [new FakeCell('north'), new FakeCell('south')]
    const { clock, directory } = directoryOf(north, south)
    expect(await directory.find('instance', 'a')).toBeNull()
    south.ids.add('a')
    clock.now = 999
    expect(await directory.find('instance', 'a')).toBeNull()
    clock.now = 1_000
    expect(await directory.find('instance', 'a')).toBe(south)
    expect(await directory.find('instance', 'b')).toBeNull()
    north.ids.add('b')
    directory.forgetUnknown('b')
    expect(await directory.find('instance', 'b')).toBe(north)
  })

  it('does not remember an unknown account, to which a new instance may belong', async () => {
    const [north, south] = [new FakeCell('north'), new FakeCell('south')]
    const { directory } = directoryOf(north, south)
    expect(await directory.find('account', 'a')).toBeNull()
    south.ids.add('a')
    expect(await directory.find('account', 'a')).toBe(south)
  })

  it('does not guess while a cell is away, unless another one has the id', async () => {
    const [north, south] = [new FakeCell('north', ['a']), new FakeCell('south', ['b'])]
    const { directory } = directoryOf(north, south)
    south.isAway = true
    expect(await directory.find('instance', 'a')).toBe(north)
    const unreachable = { code: 'DATABASE_UNREACHABLE', details: { cell: 'south' } }
    await expect(directory.find('instance', 'b')).rejects.toMatchObject(unreachable)
    south.isAway = false
    expect(await directory.find('instance', 'b')).toBe(south)
  })

  it('refuses an id that two cells have', async () => {
    const { directory } = directoryOf(new FakeCell('north', ['a']), new FakeCell('south', ['a']))
    await expect(directory.find('instance', 'a')).rejects.toThrow('in north, south')
  })

  it('remembers a bounded number of unknown ids', async () => {
    const north = new FakeCell('north')
    const { directory } = directoryOf(north)
    for (let id = 0; id <= 10_000; id += 1) await directory.find('instance', `${id}`)
    expect(north.reads).toBe(10_001)
    await directory.find('instance', '1')
    expect(north.reads).toBe(10_001)
    await directory.find('instance', '0')
    expect(north.reads).toBe(10_002)
  })

  it('distributes new accounts over the open cells, the same in each node', () => {
    const cells = ['a', 'b', 'c'].map((name) => new FakeCell(name))
    const closed = new FakeCell('d', [], false)
    const accounts = Array.from({ length: 300 }, (_, index) => `account-${index}`)
    const { directory } = directoryOf(...cells, closed)
    const other = directoryOf(closed, ...cells.toReversed()).directory
    const chosen = accounts.map((account) => directory.cellForNew(account))
    expect(accounts.map((account) => other.cellForNew(account))).toEqual(chosen)
    for (const cell of cells) expect(chosen.filter((each) => each === cell).length).toBeGreaterThan(60)
    // Without a cell, only its accounts would go elsewhere.
    const fewer = directoryOf(...cells.slice(0, 2)).directory
    const stayed = accounts.filter((account, index) => fewer.cellForNew(account) === chosen[index])
    expect(stayed.length).toBe(chosen.filter((each) => each !== cells[2]).length)
  })
})
