// Nodes with sales marks over one database: when they trust it, when they wait for each other, and when nothing is sold.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import { Sales } from '../../../../src/cloud/sync/recovery/sales.ts'
import { charge } from '../../../../src/cloud/accounts/pool.ts'
import type { SalesMarkRecord } from '../../../../src/cloud/storage/device-records.ts'
import type { Store } from '../../../../src/cloud/storage/store.ts'
import { DAY, INSTANCE, START, Twin } from '../twin.ts'
import { MarkInMemory } from './mark-in-memory.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)

let twin: Twin
beforeEach(async () => {
  twin = await Twin.open()
  await twin.setLineItem('ACT-1', { quantity: 1_000n })
})
afterEach(async () => twin[Symbol.asyncDispose]())

interface NodeOptions {
  readonly shared?: boolean
  readonly restored?: boolean
  readonly databaseTime?: number
  /** Happens while the node waits. */
  readonly meanwhile?: (waits: number) => Promise<unknown>
}

class Node {
  readonly file: MarkInMemory
  readonly recoveries: string[] = []
  readonly broken: unknown[] = []
  waits = 0
  readonly #names: string[]
  #sales: Sales | undefined

  constructor(file = new MarkInMemory(), ...names: string[]) {
    this.file = file
    this.#names = names
  }

  async start({ shared = true, restored = false, databaseTime, meanwhile }: NodeOptions = {}): Promise<this> {
    this.recoveries.length = 0
    this.waits = 0
    const store: Store = {
      ...twin.store,
      transaction: (work) =>
        twin.store.transaction((tx) => {
          return work({ ...tx, sweeps: { ...tx.sweeps, databaseTime: async () => databaseTime ?? null } })
        }),
    }
    this.#sales = new Sales({
      ...{ store, file: this.file, policies: twin.policies, shared, restored, now: twin.now },
      newId: () => this.#names.shift() ?? expect.unreachable('a name too many'),
      pause: async () => {
        this.waits += 1
        await meanwhile?.(this.waits)
      },
      onRecovery: (reason) => this.recoveries.push(reason),
      onBroken: (error) => this.broken.push(error),
    })
    await this.#sales.start()
    return this
  }

  get sales(): Sales {
    return this.#sales ?? expect.unreachable('it is not started')
  }

  get peers(): unknown {
    return JSON.parse(this.file.read()[1] ?? '') as unknown
  }

  async sell(tokens: bigint): Promise<void> {
    await this.sales.store.transaction(async (tx) => {
      const pool = (await tx.accounts.open([{ account: LINE, cap: 1_000n }])).get(LINE)
      if (pool === undefined) throw new Error('no pool')
      await tx.accounts.save([charge(pool, tokens)])
    })
  }
}

const records = (): Promise<readonly SalesMarkRecord[]> => twin.store.read((reader) => reader.edge.salesMarks.list())
const record = async (id: string) => (await records()).find((each) => each.id === id)
const change = async (id: string, part: Partial<SalesMarkRecord>) => {
  const before = await record(id)
  if (before === undefined) throw new Error(`no mark ${id}`)
  await twin.store.transaction((tx) => tx.edge.salesMarks.save({ ...before, ...part }))
}
const unproven = () =>
  twin.store.read(async (reader) => {
    const recovery = await reader.edge.recoveries.get(INSTANCE)
    return recovery === undefined ? 'NO RECOVERY' : recovery.unproven
  })

describe('a node without a sales mark', () => {
  it('begins one where nothing was ever sold', async () => {
    const node = await new Node(undefined, 'a').start()
    expect([node.recoveries, node.waits]).toEqual([[], 0])
    expect(await records()).toEqual([{ id: 'a', turn: 1, seenAt: twin.time, awaited: false, accepted: true }])
  })

  it('sells nothing if the restore of the database is declared', async () => {
    const node = await new Node(undefined, 'a').start({ restored: true })
    expect(node.recoveries).toEqual(['store.restored is set, and there is no sales mark.'])
    expect(await unproven()).toBe('MARK')
  })

  it('joins while another one works, whose mark fits', async () => {
    const first = await new Node(undefined, 'a').start()
    const meanwhile = async (waits: number) => (waits === 3 ? first.sales.turn() : undefined)
    const second = await new Node(undefined, 'b').start({ meanwhile })
    expect([second.recoveries, second.waits]).toEqual([[], 3])
    expect(await record('b')).toMatchObject({ turn: 1, accepted: true, awaited: false })
    expect(await unproven()).toBe('NO RECOVERY')
  })

  it('waits 5 s for the other one, and then sells nothing', async () => {
    await new Node(undefined, 'a').start()
    const second = await new Node(undefined, 'b').start()
    expect([second.recoveries, second.waits]).toEqual([['The sales mark is missing.'], 20])
    expect(await unproven()).toBe('MARK')
    expect(await record('a')).toMatchObject({ awaited: true })
    expect(await record('b')).toMatchObject({ awaited: false, accepted: true })
  })

  it('waits for no other node if it has a separate database', async () => {
    await new Node(undefined, 'a').start({ shared: false })
    const again = await new Node(undefined, 'b').start({ shared: false })
    expect([again.recoveries, again.waits]).toEqual([['The sales mark is missing.'], 0])
    expect(await record('a')).toMatchObject({ awaited: false })
  })

  it('says that the mark is damaged', async () => {
    const node = await new Node(undefined, 'a', 'b').start()
    node.file.isDamaged = true
    await node.start({ shared: false })
    expect(node.recoveries).toEqual(['The sales mark is damaged.'])
  })
})

describe('a node with its sales mark', () => {
  it('continues with the next turn if the database agrees', async () => {
    const node = await new Node(undefined, 'a').start()
    await node.sell(10n)
    node.sales.close()
    await node.start()
    expect(node.recoveries).toEqual([])
    expect(await record('a')).toMatchObject({ turn: 2 })
    await node.sales.turn()
    expect(await record('a')).toMatchObject({ turn: 3 })
  })

  it('recovers if the restore is declared, and withholds nothing that the database knows', async () => {
    const node = await new Node(undefined, 'a').start()
    await node.sell(10n)
    await node.start({ restored: true })
    expect(node.recoveries).toEqual(['store.restored is set.'])
    expect(await unproven()).toBe(null)
    expect(await twin.pool(LINE)).toMatchObject({ charged: 10n, withheld: 0n })
  })

  it('forgets others that were not seen for 30 days', async () => {
    const node = await new Node(undefined, 'a').start()
    await new Node(undefined, 'b').start({ meanwhile: async () => node.sales.turn() })
    twin.time += 30 * DAY
    await node.start()
    expect((await records()).map(({ id }) => id)).toEqual(['a', 'b'])
    twin.time += 1
    await node.start()
    expect((await records()).map(({ id }) => id)).toEqual(['a'])
  })

  it('forgets no node at work because its own clock is ahead of that of the database', async () => {
    const node = await new Node(undefined, 'a').start()
    const other = await new Node(undefined, 'b').start({ meanwhile: async () => node.sales.turn() })
    const { time } = twin
    twin.time += 31 * DAY
    await node.start({ databaseTime: time })
    twin.time = time
    await other.sales.turn()
    expect(other.recoveries).toEqual([])
  })

  it('begins another one if its file is a copy of that of a node at work', async () => {
    const first = await new Node(undefined, 'a').start()
    const copied = new Node(first.file.copyTo('elsewhere'), 'b')
    await copied.start({ meanwhile: async () => first.sales.turn() })
    expect(copied.recoveries).toEqual([])
    expect((await records()).map(({ id }) => id)).toEqual(['a', 'b'])
  })

  it('continues with it in another place if no other node has it', async () => {
    const first = await new Node(undefined, 'a').start()
    const moved = await new Node(first.file.copyTo('elsewhere')).start()
    expect([moved.recoveries, moved.waits]).toEqual([[], 20])
    const again = await new Node(moved.file).start()
    expect(again.waits).toBe(0)
  })
})

describe('the turn of a node', () => {
  it('names the others in its mark, and accepts them', async () => {
    const node = await new Node(undefined, 'a').start()
    await twin.store.transaction((tx) =>
      tx.edge.salesMarks.save({ id: 'b', turn: 1, seenAt: twin.time, awaited: false, accepted: false }),
    )
    await node.sales.turn()
    expect(node.peers).toEqual(['b'])
    expect(await record('b')).toMatchObject({ accepted: true })
  })

  it('stops it if another one works with a copy of its mark', async () => {
    const node = await new Node(undefined, 'a').start()
    await change('a', { turn: 2 })
    // The answer to a turn may have been lost.
    await node.sales.turn()
    await change('a', { turn: 5 })
    await expect(node.sales.turn()).rejects.toMatchObject({ code: 'STATE_IN_USE' })
  })

  it.each([
    ['does not know it', async () => twin.store.transaction((tx) => tx.edge.salesMarks.forget(twin.time + 1))],
    ['has counted fewer of its turns', async () => change('a', { turn: 1 })],
  ])('begins a recovery if the database %s', async (_what, replace) => {
    const node = await new Node(undefined, 'a').start()
    await node.sales.turn()
    await node.sales.turn()
    await replace()
    await node.sales.turn()
    expect(node.recoveries).toEqual(['The database is older than the sales mark: it comes from a backup.'])
    expect(await unproven()).not.toBe('NO RECOVERY')
    await node.sales.turn()
    expect(node.recoveries).toHaveLength(1)
  })

  it('continues after its mark could not be written for a time', async () => {
    const node = await new Node(undefined, 'a').start()
    node.file.fails = true
    for (let turns = 0; turns < 3; turns += 1) {
      await expect(node.sales.turn()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    }
    node.file.fails = false
    await node.sales.turn()
    expect(await record('a')).toMatchObject({ turn: 3 })
    await node.start()
    expect(node.recoveries).toEqual([])
  })

  it('shows that its own database is older, also if nothing was sold since the backup', async () => {
    const node = await new Node(undefined, 'a').start({ shared: false })
    await node.sell(10n)
    const { turn = 0 } = (await record('a')) ?? {}
    await node.sales.turn()
    node.sales.close()
    await change('a', { turn })
    await node.start({ shared: false })
    expect(node.recoveries).toEqual(['The database is older than the sales mark: it comes from a backup.'])
    expect(await unproven()).toBe(null)
    await node.sell(10n)
  })

  it('does nothing before the start and after the end', async () => {
    const node = await new Node(undefined, 'a').start()
    node.sales.close()
    await node.sales.turn()
    await node.sales.flush()
    expect(await record('a')).toMatchObject({ turn: 1 })
    expect(node.broken).toEqual([])
  })
})

describe('nodes of a restored database', () => {
  /** Three nodes that know each other. */
  async function three(): Promise<readonly [Node, Node, Node]> {
    const a = await new Node(undefined, 'a').start()
    const meanwhile = async () => a.sales.turn()
    const b = await new Node(undefined, 'b').start({ meanwhile })
    const c = await new Node(undefined, 'c').start({ meanwhile })
    for (const node of [a, b, c]) await node.sales.turn()
    return [a, b, c]
  }

  it('sell nothing until each of them has shown its mark, at a turn or at its start', async () => {
    const [a, b, c] = await three()
    await a.start({ restored: true })
    expect(await unproven()).toBe('NODE')
    expect((await records()).map(({ id, awaited }) => [id, awaited])).toEqual([
      ['a', false],
      ['b', true],
      ['c', true],
    ])
    await b.sales.turn()
    expect(await unproven()).toBe('NODE')
    expect(await record('b')).toMatchObject({ awaited: false })
    await a.sales.turn()
    expect(await unproven()).toBe('NODE')
    const before = await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE))
    await c.start()
    expect(await unproven()).toBe(null)
    const after = await twin.store.read((reader) => reader.policyRevisions.get(INSTANCE))
    // Rules that other nodes keep must learn of it.
    expect(after?.revision).toBeGreaterThan(before?.revision ?? Infinity)
    expect(c.recoveries).toEqual([])
  })

  it('pass the lost positions of the usage once', async () => {
    const [a, b] = await three()
    const end = () => twin.store.read((reader) => reader.usage.end())
    await a.start({ restored: true })
    const passed = await end()
    await b.start({ restored: true })
    expect(b.recoveries).toEqual(['store.restored is set.'])
    expect(await end()).toBe(passed)
  })

  describe('that is restored again from the same backup', () => {
    const end = () => twin.store.read((reader) => reader.usage.end())
    const restore = async (backup: readonly SalesMarkRecord[]) => {
      await twin[Symbol.asyncDispose]()
      twin = await Twin.open()
      for (const each of backup) await twin.store.transaction((tx) => tx.edge.salesMarks.save(each))
    }
    const LATER = START + 1_000

    it('use no position again if the clock of the first node is behind', async () => {
      const [a, b, c] = await three()
      const backup = await records()
      await restore(backup)
      await a.start({ restored: true })
      for (const node of [b, c]) await node.start({ restored: true })
      const used = await end()
      await restore(backup)
      twin.time = LATER - 5_000
      await b.start({ restored: true })
      expect(await end()).toBeGreaterThan(used)
    })

    it('use no position again if the first node was at work only in the turns between', async () => {
      const [a, b] = await three()
      await restore(await records())
      await a.start({ restored: true })
      const backup = await records()
      await b.start()
      await b.sales.turn()
      const used = await end()
      await restore(backup)
      twin.time = LATER - 5_000
      await b.start({ restored: true })
      expect(await end()).toBeGreaterThan(used)
    })

    it('use no position again if the first node was not at work between, by the clock of the database', async () => {
      const [a, b] = await three()
      const backup = await records()
      await restore(backup)
      await a.start({ restored: true, databaseTime: START })
      const used = await end()
      await restore(backup)
      twin.time = LATER - 5_000
      await b.start({ restored: true, databaseTime: LATER })
      expect(await end()).toBeGreaterThan(used)
    })
  })

  it('wait for a node that only the mark of another one knows', async () => {
    const [a] = await three()
    await twin.store.transaction((tx) => tx.edge.salesMarks.forget(twin.time + 1))
    await a.start()
    expect(a.recoveries).toEqual(['The database is older than the sales mark: it comes from a backup.'])
    expect((await records()).map(({ id, turn, awaited }) => [id, turn > 0, awaited])).toEqual([
      ['a', true, false],
      ['b', false, true],
      ['c', false, true],
    ])
  })
})

describe('a sale', () => {
  it('withholds the tokens whose sale the database has forgotten, and then succeeds', async () => {
    const node = await new Node(undefined, 'a').start({ shared: false })
    await node.sell(300n)
    await twin.store.transaction(async (tx) => {
      const pool = (await tx.accounts.lock([LINE])).get(LINE)
      if (pool !== undefined) await tx.accounts.save([{ ...pool, charged: 100n, sold: 100n }])
    })
    await node.sell(50n)
    expect(node.recoveries).toEqual(['The database is older than the sales mark: it comes from a backup.'])
    expect(await twin.pool(LINE)).toMatchObject({ charged: 150n, withheld: 200n, sold: 350n })
    await expect(node.sell(651n)).rejects.toThrow('invariant')
    await node.sell(650n)
    expect(node.recoveries).toHaveLength(1)
  })

  it('is not made if the mark cannot be written', async () => {
    const node = await new Node(undefined, 'a').start()
    node.file.fails = true
    await expect(node.sell(10n)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    node.file.fails = false
    await node.sell(10n)
    expect(await twin.pool(LINE)).toMatchObject({ charged: 10n })
  })

  it('reports a mark that cannot be flushed', async () => {
    const node = await new Node(undefined, 'a').start()
    await node.sell(10n)
    node.file.fails = true
    await node.sales.flush()
    expect(node.broken).toMatchObject([{ code: 'NOT_RECORDED' }])
  })

  it('waits for the start, and fails with it', async () => {
    const node = new Node(undefined, 'a')
    node.file.fails = true
    await expect(node.start()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await expect(node.sell(1n)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
  })
})
