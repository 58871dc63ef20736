import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { claimStore } from '../../../src/cloud/storage/sqlite/claim-store.ts'
import { openDatabase } from '../../../src/cloud/storage/sqlite/database.ts'
import { hasData } from '../../../src/cloud/storage/sqlite/read-tables.ts'
import { flushOf, openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { USAGE_ROW_POSITIONS } from '../../../src/cloud/storage/records.ts'
import { orNull } from '../../../src/platform/or-null.ts'
import type { CodedError } from '../../../src/protocol/errors.ts'
import { fillDisk, readOnlyView, smallDisk } from '../../support/mounts.ts'
import { readerOf } from '../../../src/cloud/storage/sql/transaction.ts'
import { newEpoch } from '../../../src/cloud/devices/epochs.ts'
import { DEVICE, deliveriesSuite, delivery } from './deliveries.suite.ts'
import { fleetFiguresSuite } from './fleet-figures.suite.ts'
import { sqlOver } from './sql-over.ts'
import { device, storeSuite, usage } from './suite.ts'
import { syncReadsSuite } from './sync-reads.suite.ts'

const folder = mkdtempSync(join(tmpdir(), 'tallygate-store-'))
let count = 0
const newPath = (): string => join(folder, `${(count += 1)}.db`)
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const open = (path: string, onBroken: (error: unknown) => void = () => undefined) =>
  openSqliteStore({ path, check: true, onBroken })

storeSuite('the store on SQLite', async () => open(newPath()))
deliveriesSuite('the store on SQLite', async () => open(newPath()))
fleetFiguresSuite('the store on SQLite', async () => open(newPath()))
syncReadsSuite('the store on SQLite', async () => open(newPath()))

describe('a database file', () => {
  let path: string
  beforeEach(() => {
    path = newPath()
  })

  /** Of this process. */
  const openFiles = (): readonly string[] =>
    readdirSync('/proc/self/fd').flatMap((file) => orNull(() => readlinkSync(`/proc/self/fd/${file}`)) ?? [])

  const codeOf = (work: () => unknown): string => {
    try {
      work()
    } catch (error) {
      return (error as CodedError).code
    }
    return 'none'
  }

  it('is flushed at each commit, however often it is opened', async () => {
    for (let round = 0; round < 3; round += 1) {
      const database = openDatabase(path, { check: false })
      expect(database.pragma('synchronous', { simple: true })).toBe(2n)
      expect(database.pragma('journal_mode', { simple: true })).toBe('wal')
      expect(database.pragma('foreign_keys', { simple: true })).toBe(1n)
      expect(database.pragma('auto_vacuum', { simple: true })).toBe(2n)
      database.close()
    }
  })

  it('is searched for usage with few queries, however few records are missing on the page', async () => {
    const store = open(path)
    await store.transaction(async (tx) => {
      await tx.edge.devices.insert(device(DEVICE))
      await tx.edge.epochs.insert(newEpoch(DEVICE, 1, { now: 1, present: 1 }))
      for (let entry = 1; entry <= 300; entry += 1) await tx.usage.deliver(delivery(entry, [{}]))
    })
    await store.close()
    const database = new Sqlite(path).defaultSafeIntegers()
    let queries = 0
    const reader = readerOf(sqlOver(database, () => void (queries += 1)))
    const search = { fits: () => false }
    const newest = { instanceId: null, upTo: null, from: null, to: null, limit: 1, search }
    expect(await reader.usage.newest(newest)).toEqual({ records: [], rest: null })
    expect(queries).toBeLessThan(10)
    database.close()
  })

  it('shows its newest usage also at the end of all positions', async () => {
    const store = open(newPath())
    await store.transaction((tx) => tx.usage.passForgotten(2n ** 63n - 2n * USAGE_ROW_POSITIONS))
    await store.transaction((tx) => tx.usage.append([usage(1)]))
    const range = { upTo: null, instanceId: null, from: null, to: null, limit: 9 }
    const { records } = await store.read((reader) => reader.usage.newest(range))
    expect(records.map(({ record }) => record)).toEqual([usage(1)])
    await store.close()
  })

  it('is not written by another process while a transaction depends on its reads', async () => {
    const store = open(path)
    const other = new Sqlite(path, { timeout: 0 })
    const write = () => other.exec(`INSERT INTO configuration VALUES ('n', 'v', 1, 'k')`)
    await store.transaction(async (tx) => {
      await tx.configuration.list()
      expect(write).toThrow('locked')
    })
    write()
    other.close()
    await store.close()
  })

  it('is opened without a wait while another connection writes', async () => {
    await open(path).close()
    const other = new Sqlite(path)
    other.exec('BEGIN IMMEDIATE')
    const store = open(path)
    expect(await store.read((reader) => reader.configuration.list())).toEqual([])
    await store.close()
    other.close()
  })

  it('is readable by its owner only, like the files beside it, whatever the umask of the process is', async () => {
    const before = process.umask(0)
    try {
      const release = claimStore(`${path}.lock`)
      const store = open(path)
      for (const name of [path, `${path}-wal`, `${path}-shm`, `${path}.lock`]) {
        expect(statSync(name).mode & 0o777, name).toBe(0o600)
      }
      await store.close()
      release()
    } finally {
      process.umask(before)
    }
  })

  it('keeps committed changes over a restart', async () => {
    const instance = { id: 'i', shortName: 's', accountId: 'a', defaultInstance: true, created: 1, modified: 1 }
    const store = open(path)
    await store.transaction((tx) => tx.instances.insert(instance))
    await store.close()
    const again = open(path)
    expect(await again.read((reader) => reader.instances.get('i'))).toEqual(instance)
    await again.close()
  })

  it('is refused and left unchanged when a newer version wrote it', async () => {
    await open(path).close()
    const database = new Sqlite(path)
    database.pragma('user_version = 9999')
    database.close()
    expect(codeOf(() => open(path))).toBe('DATABASE_NEWER')
    const after = new Sqlite(path)
    expect(after.pragma('user_version', { simple: true })).toBe(9999)
    after.close()
  })

  it('is refused when it is no database', () => {
    writeFileSync(path, 'this is not a database, but it is long enough to be looked at as one. '.repeat(20))
    const before = readFileSync(path)
    expect(codeOf(() => open(path))).toBe('DATABASE_CORRUPT')
    expect(readFileSync(path)).toEqual(before)
  })

  it('is refused when it is the database of another program', () => {
    const other = new Sqlite(path)
    other.exec('CREATE TABLE notes (text TEXT)')
    other.close()
    const before = readFileSync(path)
    expect(codeOf(() => open(path))).toBe('DATABASE_CORRUPT')
    expect(readFileSync(path)).toEqual(before)
    expect(openFiles().filter((each) => each.startsWith(path))).toEqual([])
  })

  it('is refused when a part of it is missing', async () => {
    const store = open(path)
    await store.transaction(async (tx) => {
      for (let n = 0; n < 200; n += 1) {
        const id = `${n}`
        await tx.instances.insert({ id, shortName: id, accountId: id, defaultInstance: true, created: 1, modified: 1 })
      }
    })
    await store.close()
    truncateSync(path, Math.floor(statSync(path).size / 2))
    expect(codeOf(() => open(path))).toBe('DATABASE_CORRUPT')
  })

  it('is refused when its folder does not exist', () => {
    expect(codeOf(() => open(join(folder, 'nowhere', 'twin.db')))).toBe('STATE_UNWRITABLE')
  })

  it('is refused on a read-only file system, with that reason', ({ skip }) => {
    const directory = join(folder, 'read-only')
    mkdirSync(directory)
    openDatabase(join(directory, 'twin.db'), { check: false }).close()
    const place = readOnlyView(skip, directory)
    for (const [name, work] of [
      ['twin.db', (file: string) => openDatabase(file, { check: false })],
      ['twin.lock', claimStore],
    ] as const) {
      const message = `${join(place, name)}: the file system is read-only`
      expect(() => work(join(place, name))).toThrow(expect.objectContaining({ code: 'STATE_UNWRITABLE', message }))
    }
  })

  it('is refused on a full disk, and used once there is space', ({ skip }) => {
    const disk = smallDisk(skip, '4m')
    const freeSpace = fillDisk(disk)
    const file = join(disk, 'twin.db')
    expect(() => openDatabase(file, { check: false })).toThrow(
      expect.objectContaining({ code: 'STATE_UNWRITABLE', message: `${file}: database or disk is full` }),
    )
    freeSpace()
    openDatabase(file, { check: false }).close()
  })

  it.for([0, 4, 8, 16, 24, 32, 40, 64])('is refused with %i KiB left, or opened', async (left, { skip }) => {
    const disk = smallDisk(skip, '4m')
    const file = join(disk, 'twin.db')
    const first = open(file)
    await first.transaction((tx) => tx.configuration.save(setting))
    await first.close()
    const freeSpace = fillDisk(disk, left * 1_024)
    try {
      await open(file).close()
    } catch (error) {
      expect(error).toMatchObject({ code: 'STATE_UNWRITABLE' })
    }
    freeSpace()
    await open(file).close()
  })

  it('is refused while the disk has no space for the contents of its log', async ({ skip }) => {
    const disk = smallDisk(skip, '4m')
    const file = join(disk, 'twin.db')
    const first = open(file)
    await first.close()
    const writer = openDatabase(file, { check: false })
    writer.exec(
      `PRAGMA wal_autocheckpoint = 0; CREATE TABLE large (a BLOB); INSERT INTO large VALUES (zeroblob(200000))`,
    )
    // As a process that was killed leaves them.
    const copies = ['', '-wal'].map((suffix) => [file + suffix, readFileSync(file + suffix)] as const)
    writer.close()
    for (const [name, bytes] of copies) writeFileSync(name, bytes)
    const freeSpace = fillDisk(disk, 40 * 1_024)
    expect(() => open(file)).toThrow(expect.objectContaining({ code: 'STATE_UNWRITABLE' }))
    freeSpace()
    await open(file).close()
  })

  const setting = { name: 'n', value: 'v', modified: 1, updatedBy: 'k' }

  const never = () => {
    throw new Error('not expected')
  }

  /** A store whose flushes end as the test wants, after the first one. */
  const openFlushed = (flush: () => Promise<void>, onBroken: (error: unknown) => void = () => undefined) => {
    let count = 0
    const beside = async () => ((count += 1) === 1 ? undefined : flush())
    return openSqliteStore({ path, check: false, onBroken, flushes: { beside, here: never } })
  }

  it('stops a store for good when its log cannot be flushed, and answers nothing that a power cut could undo', async () => {
    const broken: unknown[] = []
    const store = openFlushed(
      () => Promise.reject(new Error('EIO')),
      (error) => broken.push(error),
    )
    const write = store.transaction((tx) => tx.configuration.save(setting))
    const failed = { code: 'DISK_FAILED', cause: { code: 'SQLITE_IOERR_FSYNC' } }
    await expect(write).rejects.toMatchObject(failed)
    expect(broken).toMatchObject([failed])
    await expect(store.read((reader) => reader.configuration.list())).rejects.toThrow('the store is broken')
    await store.close()
  })

  describe('whose commit all requests wait for', () => {
    let now = 0
    beforeEach(() => {
      now = 0
      vi.spyOn(performance, 'now').mockImplementation(() => now)
    })
    afterEach(() => vi.restoreAllMocks())

    /** @param ms how long each flush takes */
    const openQuiet = (ms: () => number, failsHere = false) => {
      const flushed: string[] = []
      let inProgress = 3
      const store = openSqliteStore({
        path,
        check: false,
        onBroken: () => undefined,
        requestsInProgress: () => inProgress,
        flushes: {
          beside: async () => {
            now += ms()
            flushed.push('beside')
          },
          here: () => {
            now += ms()
            flushed.push('here')
            if (failsHere) throw new Error('EIO')
          },
        },
      })
      const write = () =>
        store.transaction(async (tx) => {
          tx.serves(3)
          await tx.configuration.save(setting)
        })
      return { store, write, flushed, others: () => (inProgress = 4) }
    }

    it('flushes in the thread after a fast flush', async () => {
      const { store, write, flushed, others } = openQuiet(() => 0.5)
      await write()
      await write()
      others()
      await write()
      expect(flushed).toEqual(['beside', 'here', 'here', 'beside'])
      await store.close()
    })

    it('flushes beside the thread after a slow flush, until one is fast again', async () => {
      let ms = 0.5
      const { store, write, flushed } = openQuiet(() => ms)
      await write()
      ms = 5
      await write()
      await write()
      ms = 0.5
      await write()
      await write()
      expect(flushed).toEqual(['beside', 'here', 'here', 'beside', 'beside', 'here'])
      await store.close()
    })

    it('stops the store for good when that flush fails', async () => {
      const { store, write } = openQuiet(() => 0.5, true)
      await expect(write()).rejects.toMatchObject({ code: 'DISK_FAILED', cause: { code: 'SQLITE_IOERR_FSYNC' } })
      await expect(write()).rejects.toThrow('the store is broken')
      await store.close()
    })
  })

  it.for(['', '-wal'])('stops a store when another program removes a file (%j)', async (suffix) => {
    const broken: unknown[] = []
    const store = openSqliteStore({ path, check: false, onBroken: (error) => broken.push(error) })
    await store.transaction((tx) => tx.configuration.save(setting))
    rmSync(`${path}${suffix}`)
    const message = `${path}: ${path}${suffix} was removed or replaced by another program`
    const failed = { code: 'DISK_FAILED', message }
    await expect(store.transaction((tx) => tx.configuration.save(setting))).rejects.toMatchObject(failed)
    expect(broken).toMatchObject([failed])
    await store.close()
  })

  it.for(['finds it', 'stops before'])('is not mixed with the log of a replaced one, if the cloud %s', async (when) => {
    const open = () => openSqliteStore({ path, check: false, onBroken: () => undefined })
    const store = open()
    await store.transaction((tx) => tx.configuration.save(setting))
    copyFileSync(path, `${path}.backup`)
    renameSync(`${path}.backup`, path)
    const message = expect.stringContaining(`the log of the former one is now ${path}-wal.former`) as string
    const failed = { code: 'DISK_FAILED', message }
    if (when === 'finds it') {
      await expect(store.transaction((tx) => tx.configuration.save(setting))).rejects.toMatchObject(failed)
    }
    await store.close()
    const restored = open()
    expect(await restored.read((reader) => reader.configuration.list())).toEqual([])
    await restored.close()
  })

  it('is not flushed after a checkpoint that failed, even if a later one would succeed', async () => {
    const failed = new Sqlite.SqliteError('disk I/O error', 'SQLITE_IOERR_WRITE')
    const checkpoint = vi.fn().mockImplementationOnce(() => {
      throw failed
    })
    const log = { flush: vi.fn(async () => undefined) }
    const flush = flushOf(log, checkpoint)
    for (let time = 0; time < 2; time += 1) await expect(flush(1)).rejects.toBe(failed)
    expect(checkpoint).toHaveBeenCalledTimes(1)
    expect(log.flush).not.toHaveBeenCalled()
  })

  it('is not trusted when a flush succeeds after one that failed', async () => {
    let flushes = 0
    const store = openFlushed(async () => {
      flushes += 1
      if (flushes === 1) throw new Error('EIO')
    })
    const writes = ['a', 'b'].map((name) =>
      store.transaction(async (tx) => {
        await tx.configuration.save({ ...setting, name })
        // The next transaction needs a commit for itself.
        await tx.outbox.appendPolicies(1)
      }),
    )
    const failed = { reason: { code: 'DISK_FAILED' } }
    expect(await Promise.allSettled(writes)).toMatchObject([failed, failed])
    await store.close()
  })

  it.each(['returns', 'refuses'])(
    '%s after a read only when the commits that it may have seen are flushed',
    async (how) => {
      const flushed = Promise.withResolvers<undefined>()
      const begun = Promise.withResolvers<undefined>()
      const store = openFlushed(() => {
        begun.resolve(undefined)
        return flushed.promise
      })
      const write = store.transaction((tx) => tx.configuration.save(setting))
      await begun.promise
      const seen = Promise.withResolvers<unknown>()
      let isAnswered = false
      const read = store
        .read(async (reader) => {
          seen.resolve(await reader.configuration.list())
          if (how === 'refuses') throw new Error('refused')
        })
        .catch(() => undefined)
        .then(() => (isAnswered = true))
      expect(await seen.promise).toEqual([setting])
      for (let turn = 0; turn < 10; turn += 1) await new Promise((resolve) => setImmediate(resolve))
      expect(isAnswered).toBe(false)
      flushed.resolve(undefined)
      await Promise.all([write, read])
      await store.close()
    },
  )

  /** Files as a killed process leaves them: a commit is in the log only. */
  const leaveLog = () => {
    const original = newPath()
    const database = openDatabase(original, { check: false })
    database.exec(`INSERT INTO configuration VALUES ('n', 'v', 1, 'k')`)
    for (const suffix of ['', '-wal']) copyFileSync(`${original}${suffix}`, `${path}${suffix}`)
    database.close()
  }

  it.each(['empty', 'missing'])('is refused if it is %s beside its log, which stays', (kind) => {
    leaveLog()
    if (kind === 'empty') writeFileSync(path, '')
    else rmSync(path)
    const log = readFileSync(`${path}-wal`)
    expect(codeOf(() => open(path))).toBe('DATABASE_CORRUPT')
    expect(readFileSync(`${path}-wal`)).toEqual(log)
  })

  it('has no data if it is empty, so that a cloud with PostgreSQL starts beside it', () => {
    writeFileSync(path, '')
    expect(hasData(path)).toBe(false)
  })

  it('is read only when the commits that a killed process has left are flushed', async () => {
    leaveLog()
    const flushed = Promise.withResolvers<undefined>()
    const flushes = { beside: () => flushed.promise, here: never }
    const store = openSqliteStore({ path, check: false, onBroken: () => undefined, flushes })
    const seen = Promise.withResolvers<unknown>()
    let isAnswered = false
    const read = store
      .read(async (reader) => seen.resolve(await reader.configuration.list()))
      .then(() => (isAnswered = true))
    expect(await seen.promise).toEqual([setting])
    for (let turn = 0; turn < 10; turn += 1) await new Promise((resolve) => setImmediate(resolve))
    expect(isAnswered).toBe(false)
    flushed.resolve(undefined)
    await read
    await store.close()
  })

  it('begins a new log at the start: that of a failed disk may have a gap, behind which commits would be lost', async () => {
    leaveLog()
    const store = open(path)
    expect(statSync(`${path}-wal`).size).toBe(0)
    expect(await store.read((reader) => reader.configuration.list())).toEqual([setting])
    await store.close()
  })

  it('stops a store for good when a page of it turns out to be damaged', async () => {
    await open(path).close()
    const database = new Sqlite(path)
    const { page } = database
      .prepare<[], { page: number }>(`SELECT rootpage AS page FROM sqlite_schema WHERE name = 'rate_tables'`)
      .get()!
    database.close()
    const bytes = readFileSync(path)
    bytes.fill(0x5a, (page - 1) * 4096, page * 4096)
    writeFileSync(path, bytes)
    const broken: unknown[] = []
    const damaged = openSqliteStore({ path, check: false, onBroken: (error) => broken.push(error) })
    await expect(damaged.read((reader) => reader.rateTables.list())).rejects.toMatchObject({
      code: 'DATABASE_CORRUPT',
    })
    expect(broken).toHaveLength(1)
    await expect(damaged.read((reader) => reader.instances.get('i'))).rejects.toThrow('the store is broken')
    await damaged.close()
  })

  it.each([
    ['column', 'RENAME COLUMN turn TO turm'],
    ['table', 'RENAME TO sales_marka'],
  ])('is DATABASE_CORRUPT if the name of a %s in it is damaged', async (_, damage) => {
    await open(path).close()
    const database = new Sqlite(path)
    database.exec(`ALTER TABLE sales_marks ${damage}`)
    database.close()
    const store = open(path)
    const mark = { id: 'm', turn: 1, seenAt: 1, awaited: false, accepted: true }
    const saved = store.transaction((tx) => tx.edge.salesMarks.save(mark))
    await expect(saved).rejects.toMatchObject({ code: 'DATABASE_CORRUPT' })
    await store.close()
  })
})
