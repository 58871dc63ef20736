// The usage in PostgreSQL is divided by row numbers: nothing is lost or doubled, and what is archived gives its space back.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { zstd } from '../../../src/cloud/platform/archive/compression.ts'
import { archiveDirectory } from '../../../src/cloud/platform/archive/directory.ts'
import { type PostgresStore, openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { newEpoch } from '../../../src/cloud/devices/epochs.ts'
import { type ArchiveUsageDeps, archiveUsage } from '../../../src/cloud/usage/archive/archive-usage.ts'
import { PostgresSchema, runSql } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { openTwin } from '../harness.ts'
import { rowsOfRecords } from '../../../src/cloud/storage/sql/packed-usage.ts'
import { DEVICE, delivery } from './deliveries.suite.ts'
import { device, usage } from './suite.ts'
import { usageIn } from '../usage/list-usage.ts'

const server = postgres()
/** Numbers of the smallest partition. */
const SIZE = 262_144

/** The body of a row with one record. */
const RECORD = String.raw`\x${rowsOfRecords([usage(1)])[0]!.body.toString('hex')}`

describe('partitions of the usage', () => {
  let schema: PostgresSchema
  let store: PostgresStore
  let folder: string
  const clients: pg.Client[] = []
  const open = () => openPostgresStore({ url: schema.url, onConnectionLost: () => undefined })
  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'tallygate-partitions-'))
    schema = await PostgresSchema.create(server.url)
    store = await open()
    await store.transaction(async (tx) => {
      await tx.edge.devices.insert(device(DEVICE))
      await tx.edge.epochs.insert(newEpoch(DEVICE, 1, { now: 1, present: 1 }))
    })
  })
  afterEach(async () => {
    await Promise.all(clients.splice(0).map((client) => client.end()))
    await store.close()
    await schema[Symbol.asyncDispose]()
    rmSync(folder, { recursive: true, force: true })
  })

  const connect = async (): Promise<pg.Client> => {
    const client = new pg.Client({ connectionString: schema.url })
    await client.connect()
    clients.push(client)
    return client
  }
  /** The next row gets the number after it. */
  const lastNumber = (number: number) => runSql(schema.url, `SELECT setval('usage_seq_seq', ${number})`)
  /** So many rows. */
  const append = (count: number) =>
    store.transaction((tx) =>
      tx.usage.append(Array.from({ length: count }, (_, n) => usage(n, { instanceId: `${n}` }))),
    )
  const deliver = (first: number) => store.transaction((tx) => tx.usage.deliver(delivery(first, [{}, {}])))
  const partitions = async () => {
    const rows = await runSql<{ name: string }>(
      schema.url,
      `SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'usage'::regclass ORDER BY inhrelid`,
    )
    return rows.map(({ name }) => name).filter((name) => name !== 'usage_rest')
  }
  /** Numbers of the rows of each partition. */
  const rows = async () => {
    const found = await runSql<{ name: string; numbers: string[] }>(
      schema.url,
      `SELECT tableoid::regclass::text AS name, array_agg(seq ORDER BY seq)::text[] AS numbers FROM usage GROUP BY tableoid`,
    )
    return Object.fromEntries(found.map(({ name, numbers }) => [name, numbers.map(Number)]))
  }
  const bytes = async (): Promise<number> => {
    const [row] = await runSql<{ bytes: string }>(
      schema.url,
      `SELECT sum(pg_total_relation_size(relid)) AS bytes FROM pg_partition_tree('usage')`,
    )
    return Number(row?.bytes)
  }
  const archive = (change: Partial<ArchiveUsageDeps> = {}) =>
    archiveUsage(
      {
        ...{ store, place: archiveDirectory(folder), compression: zstd, tenantId: 't', holder: 'test', now: () => 1 },
        ...{ giveWay: () => undefined, isStopping: () => false, onArchive: () => undefined },
        ...change,
      },
      2 ** 52,
    )
  const exported = async () => {
    const range = { after: 0n, upTo: 1n << 62n, instanceId: null, from: null, to: null, limit: 1_000_000 }
    return (await store.read((reader) => usageIn(reader, range))).length
  }

  it('are there before the first row, and before the rows of the next one', async () => {
    expect(await partitions()).toEqual(['usage_from_1'])
    await append(1)
    await store.keepPartitions()
    const next = `_from_${SIZE + 1}`
    expect(await partitions()).toEqual(['usage_from_1', `usage${next}`])
    await lastNumber(SIZE - 2)
    await append(1)
    await deliver(1)
    await deliver(3)
    await append(3)
    expect(await rows()).toEqual({
      usage_from_1: [1, SIZE - 1, SIZE],
      [`usage${next}`]: [1, 2, 3, 4].map((n) => SIZE + n),
    })
    expect(await exported()).toBe(9)
  })

  it('are not needed for a row, and begin after it', async () => {
    await lastNumber(10 * SIZE)
    await append(2)
    await deliver(1)
    expect(await rows()).toEqual({ usage_rest: [1, 2, 3].map((n) => 10 * SIZE + n) })
    await store.keepPartitions()
    const begin = 10 * SIZE + 3 + 16_384
    expect((await partitions()).at(-1)).toBe(`usage_from_${begin}`)
    await append(1)
    await lastNumber(begin - 1)
    await append(1)
    expect(await rows()).toMatchObject({ [`usage_from_${begin}`]: [begin] })
    expect(await exported()).toBe(6)
    await archive()
    expect(await exported()).toBe(0)
  })

  it('are left to a later run if a row is already where they would begin', async () => {
    await lastNumber(SIZE)
    await runSql(
      schema.url,
      `INSERT INTO usage OVERRIDING SYSTEM VALUE SELECT ${SIZE + 16_385}, 'i', 1, 0, 1, 1, 1${',NULL'.repeat(6)}, '${RECORD}'`,
    )
    await lastNumber(SIZE + 1)
    await store.keepPartitions()
    expect(await partitions()).toEqual(['usage_from_1'])
    await lastNumber(SIZE + 2)
    await store.keepPartitions()
    expect(await partitions()).toEqual(['usage_from_1', `usage_from_${SIZE + 16_386}`])
    expect(await exported()).toBe(1)
  })

  it('refuse no row that is written while the partition for it is made', async () => {
    await lastNumber(SIZE)
    const maker = await connect()
    await maker.query('BEGIN; CREATE TABLE made (LIKE usage INCLUDING ALL EXCLUDING IDENTITY)')
    await maker.query(`ALTER TABLE usage ATTACH PARTITION made FOR VALUES FROM (${SIZE + 1}) TO (${2 * SIZE})`)
    const written = append(1)
    const waits = `SELECT 1 FROM pg_locks WHERE relation = 'usage_rest'::regclass AND NOT granted`
    while ((await runSql(schema.url, waits)).length === 0);
    await maker.query('COMMIT')
    await written
    expect(await rows()).toEqual({ made: [SIZE + 2] })
  })

  it('return the space of archived rows, and keep the proof that an entry was billed', async () => {
    const empty = await bytes()
    const first = delivery(1, [{}, {}])
    await store.transaction((tx) => tx.usage.deliver(first))
    for (let round = 0; round < 10; round += 1) await append(1_000)
    await store.keepPartitions()
    await lastNumber(SIZE)
    await append(1)
    expect(await bytes()).toBeGreaterThan(empty + 2_000_000)
    expect(await archive()).toMatchObject({ records: 10_003 })
    await store.keepPartitions()
    expect(await partitions()).not.toContain('usage_from_1')
    expect(await bytes()).toBeLessThan(2 * empty)
    const known = await store.read((reader) => reader.edge.entries.hashes(DEVICE, 1, 1, 2))
    expect(first.entries.map(({ hash }) => known.has(hash))).toEqual([true, true])
    await append(1)
    expect(await exported()).toBe(1)
  })

  it('stay while a row of them is not archived, or not yet deleted', async () => {
    for (let round = 0; round < 3; round += 1) await append(1_000)
    await store.keepPartitions()
    await lastNumber(SIZE)
    await append(1)
    let isStopping = false
    // Stops when the archive is recorded and some of its rows are deleted.
    const transaction: PostgresStore['transaction'] = (work) =>
      store.transaction((tx) => {
        const deleteSome = async () => {
          isStopping = (await tx.usageArchives.last()) !== null
          return tx.usageArchives.deleteSome()
        }
        return work({ ...tx, usageArchives: { ...tx.usageArchives, deleteSome } })
      })
    await archive({ store: { read: (work) => store.read(work), transaction }, isStopping: () => isStopping })
    expect((await rows())['usage_from_1']).toHaveLength(2_000)
    await store.keepPartitions()
    expect((await rows())['usage_from_1']).toHaveLength(2_000)
    await archive()
    await store.keepPartitions()
    expect(await partitions()).not.toContain('usage_from_1')
  })

  it('stay while a reader that began before still sees their rows', async () => {
    await append(3)
    await store.keepPartitions()
    await lastNumber(SIZE)
    await append(1)
    const reader = await connect()
    // It has not read the table yet, so it has no lock of it.
    await reader.query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM instances')
    await archive()
    await store.keepPartitions()
    expect((await reader.query('SELECT seq FROM usage')).rowCount).toBe(4)
    await reader.query('COMMIT')
    await store.keepPartitions()
    expect(await partitions()).not.toContain('usage_from_1')
  })

  it('are dropped later if a reader uses the table, and writers wait only briefly', async () => {
    await append(3)
    await store.keepPartitions()
    await lastNumber(SIZE)
    await append(1)
    await archive()
    const reader = await connect()
    await reader.query('BEGIN; SELECT seq FROM usage WHERE seq < 0')
    await Promise.all([store.keepPartitions(), append(1)])
    expect(await partitions()).toContain('usage_from_1')
    await reader.query('COMMIT')
    await store.keepPartitions()
    expect(await partitions()).not.toContain('usage_from_1')
    expect(await exported()).toBe(1)
  })

  it('are made and dropped once by two nodes that write, archive and read', async () => {
    const other = await open()
    try {
      const both = () => Promise.all([store.keepPartitions(), other.keepPartitions(), append(5)])
      for (let round = 1; round <= 3; round += 1) {
        await Promise.all([both(), other.transaction((tx) => tx.usage.append([usage(1)])), deliver(2 * round)])
        await lastNumber(round * SIZE)
      }
      await append(1)
      const count = await exported()
      expect(count).toBe(3 * 8 + 1)
      const [{ records }] = await Promise.all([archive(), both(), both()])
      const rest = await exported()
      expect(records + rest).toBe(count + 10)
      await store.keepPartitions()
      await other.keepPartitions()
      const names = await partitions()
      expect(names).not.toContain('usage_from_1')
      expect(new Set(names).size).toBe(names.length)
    } finally {
      await other.close()
    }
  })

  it('are made by the next start, and by a node that finds the lock of another one free again', async () => {
    const busy = await connect()
    await busy.query(
      `SELECT pg_advisory_lock(${0x54_47_63_6c + 3}, (SELECT oid::bigint::bit(32)::int FROM pg_namespace WHERE nspname = current_schema()))`,
    )
    await append(1)
    await store.keepPartitions()
    expect(await partitions()).toEqual(['usage_from_1'])
    await busy.query('SELECT pg_advisory_unlock_all()')
    await (await open()).close()
    expect(await partitions()).toHaveLength(2)
  })

  it('are made by a running cloud', async () => {
    const twin = await openTwin((settings) => ({ ...settings, db: schema.url }))
    try {
      await append(1)
      expect(await partitions()).toEqual(['usage_from_1'])
      await twin.tick()
      expect(await partitions()).toHaveLength(2)
    } finally {
      await twin[Symbol.asyncDispose]()
    }
  })

  it('refuse no late row of a range that is gone', async () => {
    await append(3)
    await store.keepPartitions()
    await lastNumber(SIZE)
    await append(1)
    await archive()
    await store.keepPartitions()
    expect(await partitions()).not.toContain('usage_from_1')
    await runSql(
      schema.url,
      `INSERT INTO usage OVERRIDING SYSTEM VALUE SELECT 7, 'i', 1, 0, 1, 1, 1${',NULL'.repeat(6)}, '${RECORD}'`,
    )
    expect(await rows()).toEqual({ usage_rest: [7] })
    expect(await exported()).toBe(1)
  })

  it('refuse a second delivery of the same entries of a chain', async () => {
    await deliver(1)
    const again = `INSERT INTO usage OVERRIDING SYSTEM VALUE SELECT seq + 1, instance_id, records, refused, from_time, to_time, write_time,
      device_id, epoch, segment, branch, first_entry, last_entry, body FROM usage`
    await expect(runSql(schema.url, again)).rejects.toThrow('by_entry')
  })
})
