// The file of a ledger that has delivered what it held is small again, without anybody having waited for that.
import { randomBytes } from 'node:crypto'
import { existsSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import { DiskReserve } from '../../../../src/agent/platform/sqlite/disk-reserve.ts'
import { JournalHandler } from '../../../../src/agent/platform/sqlite/journal-handler.ts'
import { JournalStore } from '../../../../src/agent/platform/sqlite/journal-store.ts'
import { openDatabase } from '../../../../src/agent/platform/sqlite/open-database.ts'
import type { Segment } from '../../../../src/protocol/edge/sync.ts'
import { attach, callOf, entry, journalIn, payloadOf, SEAL, STAMP, temporaryDirectory } from '../../harness.ts'
import { fillDisk, smallDisk } from '../../../support/mounts.ts'

const A = 'line/i/a/0'
const MIB = 1024 * 1024

const longEntry = (n: number) => ({
  ...entry(n, [{ account: A, amount: 1n }]),
  body: JSON.stringify({
    n,
    kind: 'access',
    postings: [{ account: A, amount: '1' }],
    filler: randomBytes(600).toString('base64'),
  }),
})

describe('a ledger of 20,000 entries', () => {
  it('shrinks to within 4 MiB of its size before them once they are delivered, and still takes entries', async () => {
    const directory = temporaryDirectory()
    const path = join(directory, 'journal.db')
    const size = (): number => statSync(path).size
    const logSize = (): number => statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0
    const journal = await journalIn(directory, { limits: { retainedBytesMax: 100_000 } })
    await journal.read()
    await attach(journal, { [A]: 10n ** 9n })
    const before = size()
    for (let n = 1; n <= 20_000; n += 1_000) {
      await journal.append(
        Array.from({ length: 1_000 }, (_, index) => longEntry(n + index)),
        STAMP,
      )
    }
    for (let delivered = 0; delivered < 20_000;) {
      const { document, seq } = await journal.seal(SEAL)
      delivered += (payloadOf(document) as Segment).entries.bodies.length
      await journal.acknowledge(seq, null, null)
    }
    const full = size()
    expect(full).toBeGreaterThan(before + 10 * MIB)

    await expect.poll(() => size() + logSize(), { timeout: 20_000 }).toBeLessThan(before + 4 * MIB)
    expect(statSync(`${path}-disk-reserve`).size).toBe(256 * 1024)
    await journal.append([longEntry(20_001)], STAMP)
    expect((await journal.read()).accounts.get(A)?.used).toBe(20_001n)
    await journal.close()
    const read = new Database(path)
    expect(read.pragma('integrity_check', { simple: true })).toBe('ok')
    read.close()
  }, 60_000)
})

describe('housekeeping', () => {
  const pages = (database: Database.Database, what: string): number => Number(database.pragma(what, { simple: true }))

  /** A ledger with this many free pages, held by a handler whose disk has, or has not, the space that is set aside. */
  function withFreePages(free: number, fill: DiskReserve['fill'], directory = temporaryDirectory()) {
    const path = join(directory, 'journal.db')
    const database = openDatabase(path)
    const limits = {
      ...{ pagesMax: 100_000, diskReservePages: 64, retentionMs: 1, retainedBytesMax: 1, answersMax: 10 },
      ...{ recentEntries: 1_000, pastRulesBytesMax: 0, segmentEntriesMax: 1_000 },
    }
    const handler = new JournalHandler({
      path,
      open: () => new JournalStore(database, limits),
      diskReserve: { fill, release: () => true },
    })
    expect(handler.run(callOf('read', (store) => store.read(), { fillsDiskReserve: 'BEFORE' }))).toBeNull()
    database.exec(`CREATE TABLE filler (x); INSERT INTO filler VALUES (zeroblob(4096 * ${free})); DROP TABLE filler`)
    return { database, handler, path }
  }

  it('goes in steps of at most half a mebibyte, and leaves a mebibyte free', () => {
    const { database, handler } = withFreePages(1_000, () => true)
    let last = pages(database, 'freelist_count')
    expect(last).toBeGreaterThanOrEqual(1_000)
    let steps = 0
    while (handler.tidy()) {
      const left = pages(database, 'freelist_count')
      expect(last - left).toBeGreaterThan(0)
      expect(last - left).toBeLessThanOrEqual(530)
      last = left
      steps += 1
    }
    expect(steps).toBeGreaterThan(4)
    expect(last).toBe(1_024)
    database.close()
  })

  it('keeps the free pages and the log in place of the reserve on a full disk, until the reserve exists again', () => {
    let roomy = false
    const { database, handler, path } = withFreePages(1_000, () => roomy)
    while (handler.tidy());
    expect(pages(database, 'freelist_count')).toBe(1_024 + 2 * 64)
    expect(statSync(`${path}-wal`).size).toBeGreaterThan(MIB)
    roomy = true
    expect(handler.tidy()).toBe(false)
    while (handler.tidy());
    expect(pages(database, 'freelist_count')).toBe(1_024)
    expect(statSync(`${path}-wal`).size).toBe(0)
    database.close()
  })

  it('shortens the log if the disk otherwise lacks the space for the reserve', ({ skip }) => {
    const directory = smallDisk(skip, '8m')
    const reserve = join(directory, 'reserve')
    const diskReserve = new DiskReserve(reserve, 2 * MIB)
    let isFull = true
    const { database, handler, path } = withFreePages(250, (log) => !isFull && diskReserve.fill(log), directory)
    database.pragma('wal_checkpoint(PASSIVE)')
    const log = statSync(`${path}-wal`).size
    expect(log).toBeGreaterThan(MIB)
    fillDisk(directory, 2 * MIB - log)
    isFull = false
    while (handler.tidy());
    expect(existsSync(reserve)).toBe(false)
    rmSync(join(directory, 'filler'))
    fillDisk(directory, 2 * MIB - log + 65_536)
    while (handler.tidy());
    expect(statSync(`${path}-wal`).size).toBe(0)
    expect(statSync(reserve).size).toBe(2 * MIB)
    database.close()
  })

  it('copies a long log after the answer to a call, which does not wait for it', () => {
    const { database, handler } = withFreePages(1_000, () => true)
    const log = () => database.prepare('PRAGMA wal_checkpoint(NOOP)').get() as { log: bigint; checkpointed: bigint }
    expect(handler.run(callOf('saveClock', (store) => store.saveClock(STAMP), { sparesDiskReserve: true }))).toBeNull()
    expect(log().checkpointed).toBe(0n)
    expect(handler.answered()).toBe(true)
    expect(log().checkpointed).toBe(0n)
    handler.copyLog()
    expect(log().checkpointed).toBe(log().log)
    expect(handler.answered()).toBe(false)
    database.close()
  })

  it.each(['tidy', 'answered'] as const)(
    'that meets a failing disk (%s) is heard of by the next call, and by every one after it',
    (work) => {
      const { database, handler } = withFreePages(1_000, () => true)
      database.close()
      expect(handler[work]()).not.toBe(true)
      for (let call = 0; call < 2; call += 1)
        expect(handler.run(callOf('recent', (store) => store.recent(1)))).not.toBeNull()
    },
  )
})
