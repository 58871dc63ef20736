// The sales mark: never behind what was sent to any device or client, at the cost of a few flushes, and never larger than its limit.
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { limitAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../../src/core/pricing/amount.ts'
import { openMarkFile } from '../../../../src/cloud/platform/system/mark-file.ts'
import { charge, newPool } from '../../../../src/cloud/accounts/pool.ts'
import type { MarkFile } from '../../../../src/cloud/sync/recovery/mark-file.ts'
import { ACCOUNTS_MAX, SalesMark, markName } from '../../../../src/cloud/sync/recovery/sales-mark.ts'
import { Sales } from '../../../../src/cloud/sync/recovery/sales.ts'
import { openPostgresStore } from '../../../../src/cloud/storage/postgres/store.ts'
import type { Pool } from '../../../../src/cloud/storage/records.ts'
import { openSqliteStore } from '../../../../src/cloud/storage/sqlite/store.ts'
import type { Store } from '../../../../src/cloud/storage/store.ts'
import fc from '../../../support/fast-check.ts'
import { MarkInMemory } from './mark-in-memory.ts'
import { PostgresSchema } from '../../../support/postgres-schema.ts'
import { postgres } from '../../../support/servers.ts'

const ACCOUNT = lineAccount('64d2028c-ae87-4069-a624-66089d957ef9', 'ACT-1', 0)
const MICRO = 1_000_000n
const pool = newPool(ACCOUNT, 1_000n * MICRO)
const soldPool = (sold: bigint, account = ACCOUNT): Pool => ({ ...newPool(account, 1_000n * MICRO), sold })

/** Flushes end when the disk is fast again. */
class SlowToFlush extends MarkInMemory {
  isSlow = false
  readonly #awaited = Promise.withResolvers<undefined>()

  /** Something waits for the disk. */
  get awaited(): Promise<undefined> {
    return this.#awaited.promise
  }

  override async flushLater(): Promise<void> {
    if (!this.isSlow) return super.flushLater()
    this.#awaited.resolve(undefined)
    return new Promise(() => undefined)
  }
}

class WithoutPowerCuts extends MarkInMemory {
  override flush(): void {
    this.flushes += 1
  }
}

function read(file: MarkFile): SalesMark {
  const mark = SalesMark.read(file)
  if (typeof mark === 'string') throw new Error(`the mark is ${mark}`)
  return mark
}

/** How much can have been sold of an account, by what the mark says. */
const atMost = (mark: SalesMark, account = ACCOUNT): bigint =>
  [...mark.counts()].find(({ name }) => name === markName(account))?.atMost ?? 0n

/** One sale, as a transaction makes it. */
function sell(mark: SalesMark, before: Pool, amount: bigint): Pool {
  const after = charge(before, amount)
  mark.reserve([after])
  mark.note([after])
  return after
}

describe('a sales mark', () => {
  it('knows the exact sales after the process is killed', () => {
    const file = new MarkInMemory()
    let now = pool
    const mark = SalesMark.begin(file, 'one', 0)
    for (let n = 0; n < 100; n += 1) now = sell(mark, now, MICRO)
    expect(atMost(read(file))).toBe(100n * MICRO)
  })

  it('has counted a sale, at the latest, before the sale is committed', () => {
    const file = new MarkInMemory()
    const mark = SalesMark.begin(file, 'one', 0)
    mark.reserve([soldPool(10n)])
    file.powerCut()
    expect(atMost(read(file))).toBeGreaterThanOrEqual(10n)
    // It never took place.
    expect(read(file).soldOf(ACCOUNT)).toBe(0n)
  })

  it('never falls behind the responses, after any sales and any power cut', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.bigInt(1n, 200n * MICRO), fc.constantFrom('sell', 'kill', 'power', 'flush'))),
        (steps) => {
          const file = new MarkInMemory()
          let mark = SalesMark.begin(file, 'one', 0)
          let told = newPool(ACCOUNT, 100_000n * MICRO)
          for (const [amount, step] of steps) {
            if (step === 'sell') told = sell(mark, told, amount)
            else if (step === 'flush') mark.flush()
            else {
              if (step === 'power') file.powerCut()
              const next = read(file)
              expect(atMost(next)).toBeGreaterThanOrEqual(told.sold)
              expect(next.soldOf(ACCOUNT)).toBeLessThanOrEqual(told.sold)
              if (step === 'kill') expect(atMost(next)).toBe(told.sold)
              // The database has all of it.
              next.start([told], next.turn + 1, 0)
              mark = next
            }
          }
        },
      ),
    )
  })

  it('costs a few flushes for a whole quantity, in whatever portions it is sold', () => {
    for (const portion of [1n, 7n, 100n]) {
      const file = new MarkInMemory()
      const mark = SalesMark.begin(file, 'one', 0)
      let now = pool
      const before = file.flushes
      while (now.charged + portion * MICRO <= 1_000n * MICRO) now = sell(mark, now, portion * MICRO)
      expect(file.flushes - before).toBeLessThanOrEqual(14)
    }
  })

  it('costs ever fewer flushes where nothing is limited', () => {
    const file = new MarkInMemory()
    const mark = SalesMark.begin(file, 'one', 0)
    let now = newPool(ACCOUNT, null)
    for (let n = 0; n < 10_000; n += 1) now = sell(mark, now, 10n * MICRO)
    expect(file.flushes).toBeLessThan(20)
  })

  it('lets nothing be sold that it cannot show, and continues when the disk takes it again', () => {
    const file = new MarkInMemory()
    const mark = SalesMark.begin(file, 'one', 0)
    file.fails = true
    expect(() => mark.reserve([soldPool(10n)])).toThrow(expect.objectContaining({ code: 'NOT_RECORDED' }) as Error)
    file.fails = false
    mark.reserve([soldPool(10n)])
    file.fails = true
    // What is reserved has been sold: the count follows as soon as it can.
    mark.note([soldPool(10n)])
    expect(() => mark.reserve([soldPool(11n)])).toThrow(expect.objectContaining({ code: 'NOT_RECORDED' }) as Error)
    expect(read(file).soldOf(ACCOUNT)).toBe(0n)
    file.fails = false
    mark.reserve([soldPool(11n)])
    expect(read(file).soldOf(ACCOUNT)).toBe(10n)
  })

  it('keeps accounts with ids of any length apart', () => {
    const file = new MarkInMemory()
    const mark = SalesMark.begin(file, 'one', 0)
    const accounts = ['a', 'b'].map((letter) => lineAccount('64d2028c', letter.repeat(600), 0))
    for (const [index, account] of accounts.entries()) {
      mark.reserve([soldPool(BigInt(index + 1), account)])
      mark.note([soldPool(BigInt(index + 1), account)])
    }
    expect(accounts.map((account) => read(file).soldOf(account))).toEqual([1n, 2n])
  })

  it('counts up to the largest amount', () => {
    const file = new MarkInMemory()
    const mark = SalesMark.begin(file, 'one', 0)
    sell(mark, { ...newPool(ACCOUNT, null), sold: MICRO_MAX - 1n }, 5n)
    expect(atMost(read(file))).toBe(MICRO_MAX)
  })

  it('has room for a limited number of accounts, and says when one of a line item had to go', () => {
    const file = new WithoutPowerCuts()
    const mark = SalesMark.begin(file, 'one', 0)
    const limit = (n: number): string => limitAccount('64d2028c', 'ACT-1', { type: 'user', value: `u${n}` }, 0)
    const count = (account: string): void => {
      mark.reserve([soldPool(1n, account)])
      mark.note([soldPool(1n, account)])
    }
    count(ACCOUNT)
    for (let n = 0; n <= ACCOUNTS_MAX; n += 1) count(limit(n))
    expect(file.read().length).toBeLessThanOrEqual(ACCOUNTS_MAX + 3)
    expect([mark.soldOf(ACCOUNT), mark.soldOf(limit(0)), mark.soldOf(limit(ACCOUNTS_MAX))]).toEqual([1n, 0n, 1n])
    expect(read(file).isComplete).toBe(true)
    for (let n = 1; n <= ACCOUNTS_MAX; n += 1) count(lineAccount('64d2028c', 'ACT-1', n))
    expect(mark.soldOf(ACCOUNT)).toBe(0n)
    expect(read(file).isComplete).toBe(false)
    expect(file.read().length).toBeLessThanOrEqual(2 * ACCOUNTS_MAX + 3)
  })
})

describe('the contents of a sales mark', () => {
  const other = lineAccount('64d2028c-ae87-4069-a624-66089d957ef9', 'ACT-2', 0)

  function begun(file = new MarkInMemory()): { readonly file: MarkInMemory; readonly mark: SalesMark } {
    return { file, mark: SalesMark.begin(file, 'one', 5) }
  }
  const count = (mark: SalesMark, pools: Pool[]): void => {
    mark.reserve(pools)
    mark.note(pools)
  }
  const namesOf = (mark: SalesMark): readonly string[] => [...mark.counts()].map(({ name }) => name)

  it('is empty at first', () => {
    const { file, mark } = begun()
    for (const each of [mark, read(file)]) {
      expect([each.id, each.turn, each.position, each.at, each.peers]).toEqual(['one', 0, 0n, 5, []])
      expect([each.isElsewhere, each.isComplete, [...each.counts()]]).toEqual([false, true, []])
    }
    file.powerCut()
    expect(read(file).id).toBe('one')
  })

  it('is missing or damaged if its file is, or if it has no header', () => {
    const file = new MarkInMemory()
    expect(SalesMark.read(file)).toBe('MISSING')
    file.write(0, 'no header')
    expect(SalesMark.read(file)).toBe('DAMAGED')
    file.isDamaged = true
    expect(SalesMark.read(file)).toBe('DAMAGED')
  })

  it('is exact on a machine that does not name its boots as long as the process runs, or once it was closed', () => {
    const file = new MarkInMemory()
    file.bootId = null
    const { mark } = begun(file)
    count(mark, [soldPool(10n)])
    expect(atMost(mark)).toBe(10n)
    expect(atMost(read(file))).toBe(10n + (1_000n * MICRO) / 64n)
    mark.close(7)
    expect(read(file).at).toBe(7)
    expect(atMost(read(file))).toBe(10n)
    const next = read(file)
    next.start([soldPool(10n)], 1, 8)
    expect(atMost(next)).toBe(10n)
    expect(atMost(read(file))).toBeGreaterThan(10n)
  })

  it('survives a power cut when it was closed', () => {
    const { file, mark } = begun()
    count(mark, [soldPool(10n)])
    mark.close(7)
    file.powerCut()
    expect([atMost(read(file)), read(file).soldOf(ACCOUNT), read(file).at]).toEqual([10n, 10n, 7])
  })

  it('is not closed while a sale is not written', () => {
    const { file, mark } = begun()
    mark.reserve([soldPool(10n)])
    file.fails = true
    mark.note([soldPool(10n)])
    file.fails = false
    const { flushes } = file
    mark.close(7)
    expect([file.flushes, read(file).at]).toEqual([flushes, 5])
    // The next sale writes it.
    mark.reserve([])
    expect(read(file).soldOf(ACCOUNT)).toBe(10n)
    mark.close(7)
    expect(read(file).at).toBe(7)
  })

  it('keeps the accounts that the database has, and reuses the places of the others', () => {
    const { file, mark } = begun()
    count(mark, [soldPool(10n), soldPool(20n, other)])
    const size = file.read().length
    const next = read(file)
    next.start([soldPool(25n, other)], 3, 9)
    file.powerCut()
    const third = read(file)
    for (const each of [next, third]) {
      expect([each.turn, each.at, namesOf(each), each.soldOf(other)]).toEqual([3, 9, [markName(other)], 25n])
    }
    count(third, [soldPool(1n)])
    expect(file.read().length).toBe(size)
    expect([read(file).soldOf(ACCOUNT), read(file).soldOf(other)]).toEqual([1n, 25n])
  })

  it('is at home where it went on', () => {
    const { file, mark } = begun()
    count(mark, [soldPool(10n)])
    const copy = file.copyTo('there')
    const moved = read(copy)
    expect(moved.isElsewhere).toBe(true)
    moved.start([soldPool(10n)], 1, 0)
    expect([moved.isElsewhere, read(copy).isElsewhere]).toEqual([false, false])
  })

  it('names the last ten peers with its turn', () => {
    const { file, mark } = begun()
    const peers = Array.from({ length: 12 }, (_, index) => `peer-${index}`)
    mark.turned(4, 6, peers)
    for (const each of [mark, read(file)]) {
      expect([each.turn, each.at, each.peers]).toEqual([4, 6, peers.slice(2)])
    }
    // What is written later does not forget them.
    count(mark, [soldPool(10n)])
    mark.turned(5, 6, [])
    expect([read(file).turn, read(file).peers]).toEqual([5, []])
  })

  it('names a position of exported records before they leave, and never an earlier one', () => {
    const { file, mark } = begun()
    mark.name(12n)
    file.powerCut()
    expect(read(file).position).toBe(12n)
    const { flushes } = file
    mark.name(12n)
    mark.name(11n)
    expect([file.flushes, mark.position]).toEqual([flushes, 12n])
  })

  it('is flushed later only if something was written', async () => {
    const { file, mark } = begun()
    const flushesOf = async (): Promise<number> => {
      const { flushes } = file
      await mark.flushLater(30)
      return file.flushes - flushes
    }
    expect(await flushesOf()).toBe(0)
    mark.reserve([soldPool(10n)])
    expect(await flushesOf()).toBe(0)
    mark.note([soldPool(10n)])
    expect(await flushesOf()).toBe(1)
    expect(await flushesOf()).toBe(0)
    expect([read(file).at, read(file).soldOf(ACCOUNT)]).toEqual([30, 10n])
    mark.turned(1, 31, [])
    mark.flush()
    expect(await flushesOf()).toBe(0)
    file.powerCut()
    expect(read(file).turn).toBe(1)
  })

  it('reserves in steps that double, from a 64th to an eighth of the cap', () => {
    const { file, mark } = begun()
    const reservedAt = (sold: bigint): bigint => {
      const { flushes } = file
      mark.reserve([{ ...newPool(ACCOUNT, 6_400n), sold }])
      mark.note([{ ...newPool(ACCOUNT, 6_400n), sold }])
      const [each] = [...mark.counts()]
      expect(file.flushes - flushes).toBe(sold === 101n || sold === 1_702n ? 0 : 1)
      return (each?.reserved ?? 0n) - sold
    }
    expect(reservedAt(1n)).toBe(100n)
    expect(reservedAt(101n)).toBe(0n)
    expect(reservedAt(102n)).toBe(200n)
    expect(reservedAt(303n)).toBe(400n)
    expect(reservedAt(902n)).toBe(800n)
    expect(reservedAt(1_702n)).toBe(0n)
    expect(reservedAt(1_703n)).toBe(800n)
  })

  it('reserves between 64 and a million tokens where nothing is limited, up to the largest amount', () => {
    const { mark } = begun()
    const reservedAt = (sold: bigint): bigint => {
      mark.reserve([{ ...newPool(ACCOUNT, null), sold }])
      mark.note([{ ...newPool(ACCOUNT, null), sold }])
      return [...mark.counts()][0]?.reserved ?? 0n
    }
    expect(reservedAt(1n)).toBe(64n * MICRO + 1n)
    let sold = 1n
    for (let n = 0; n < 20; n += 1) sold = reservedAt(sold) + 1n
    expect(reservedAt(sold)).toBe(sold + 1_000_000n * MICRO)
    const last = MICRO_MAX - 1_000_000n * MICRO
    expect(reservedAt(last)).toBe(MICRO_MAX)
    expect(reservedAt(MICRO_MAX)).toBe(MICRO_MAX)
  })

  it('does not take a smaller count for a sale', () => {
    const { file, mark } = begun()
    count(mark, [soldPool(10n)])
    mark.note([soldPool(9n)])
    // Never reserved here.
    mark.note([soldPool(9n, other)])
    expect([mark.soldOf(ACCOUNT), read(file).soldOf(ACCOUNT), mark.soldOf(other)]).toEqual([10n, 10n, 0n])
  })
})

describe('the file of a sales mark', () => {
  function path(): string {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-mark-'))
    onTestFinished(() => rmSync(directory, { recursive: true, force: true }))
    return join(directory, 'sales.mark')
  }

  function open(at: string) {
    const file = openMarkFile(at)
    onTestFinished(() => file.close())
    return file
  }

  it('is missing at first, then contains the last write, readable by its owner only', () => {
    const at = path()
    expect(open(at).read()).toBe('MISSING')
    const mark = SalesMark.begin(open(at), 'one', 5)
    mark.reserve([soldPool(10n)])
    mark.note([soldPool(10n)])
    const again = read(open(at))
    expect([again.id, again.at, again.soldOf(ACCOUNT)]).toEqual(['one', 5, 10n])
    expect(again.isElsewhere).toBe(false)
    expect(statSync(at).mode & 0o077).toBe(0)
  })

  it('knows that it is a copy', () => {
    const at = path()
    SalesMark.begin(open(at), 'one', 0)
    const copy = path()
    writeFileSync(copy, readFileSync(at))
    expect(read(open(copy)).isElsewhere).toBe(true)
  })

  it.each([0, 8, 100, 511, 513, 1_200])('is damaged when byte %i is another one', (index) => {
    const at = path()
    const mark = SalesMark.begin(open(at), 'one', 0)
    mark.reserve([soldPool(10n)])
    const bytes = readFileSync(at)
    bytes.writeUInt8(bytes.readUInt8(index) ^ 4, index)
    writeFileSync(at, bytes)
    expect(SalesMark.read(open(at))).toBe('DAMAGED')
  })

  it('ignores the remains of a write that was cut off', () => {
    const at = path()
    const mark = SalesMark.begin(open(at), 'one', 0)
    mark.reserve([soldPool(10n)])
    mark.note([soldPool(10n)])
    writeFileSync(at, Buffer.concat([readFileSync(at), Buffer.alloc(512), Buffer.from('half')]))
    expect(atMost(read(open(at)))).toBe(10n)
  })
})

/** Tests of a node over a store that others use too. */
function sharedStoreSuite(open: () => Promise<Store>): void {
  it('continues after a power cut during which its disk was slow, without a recovery', async () => {
    const store = await open()
    onTestFinished(() => store.close())
    const file = new SlowToFlush()
    const recoveries: string[] = []
    const start = async (): Promise<Sales> => {
      const sales = new Sales({
        store,
        file,
        policies: { of: async () => undefined },
        shared: true,
        restored: false,
        now: () => 0,
        newId: () => 'one',
        pause: async () => undefined,
        onRecovery: (reason) => recoveries.push(reason),
        onBroken: (error) => expect.unreachable(String(error)),
      })
      await sales.start()
      return sales
    }
    const sales = await start()
    file.isSlow = true
    for (let turns = 0; turns < 10; turns += 1) await Promise.race([sales.turn(), file.awaited])
    file.powerCut()
    await start()
    expect(recoveries).toEqual([])
  })
}

describe('a node that shares its database, on SQLite', () => {
  sharedStoreSuite(async () => {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-mark-'))
    onTestFinished(() => rmSync(directory, { recursive: true, force: true }))
    return openSqliteStore({ path: join(directory, 'store.db'), check: true, onBroken: () => undefined })
  })
})

describe('a node that shares its database, on PostgreSQL', () => {
  const server = postgres()
  sharedStoreSuite(async () => {
    const schema = await PostgresSchema.create(server.url)
    onTestFinished(() => schema[Symbol.asyncDispose]())
    return openPostgresStore({ url: schema.url, limits: {}, onConnectionLost: () => undefined })
  })
})
