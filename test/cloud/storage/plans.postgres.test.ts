// The rows of one instance or account are found by index, also while the statistics of PostgreSQL are old: of a fleet that was
// silent, of shortages that are noted again since, and of tables that were empty.
import { sql as expression } from 'kysely'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { transactionsOver } from '../../../src/cloud/storage/postgres/dialect.ts'
import { databaseAddress } from '../../../src/cloud/storage/postgres/hosts.ts'
import { LIMITS } from '../../../src/cloud/storage/postgres/limits.ts'
import { type Pool, openPool } from '../../../src/cloud/storage/postgres/pool.ts'
import { type PostgresStore, openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { deviceAccountReader } from '../../../src/cloud/storage/sql/edge-accounts.ts'
import { deviceReader } from '../../../src/cloud/storage/sql/edge-devices.ts'
import { entryReader } from '../../../src/cloud/storage/sql/edge-segments.ts'
import { shortageReader } from '../../../src/cloud/storage/sql/edge-shortages.ts'
import { rowsOfRecords } from '../../../src/cloud/storage/sql/packed-usage.ts'
import { usageReader } from '../../../src/cloud/storage/sql/read-usage.ts'
import { USAGE_ROW_POSITIONS } from '../../../src/cloud/storage/records.ts'
import { FleetFigures } from '../../../src/cloud/storage/sql/fleet-figures.ts'
import { ALONE, type Sql } from '../../../src/cloud/storage/sql/sql.ts'
import { PostgresSchema, runSql } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { usage } from './suite.ts'

const DEVICES = 3_000
const MEMBERS = 100
const SCARCE = lineAccount('few', 'scarce', 0)
const OTHER = lineAccount('few', 'other', 0)
/** Instants of the old statistics, and of now. */
const [BEFORE, NOW] = [1_000n, 2_000_000n]

/** Devices of one instance among many. All are short of one of its two accounts; the first one has tokens of it. */
const FLEET = `
  INSERT INTO instances (id, account_id, is_default, created, modified, short_name) VALUES ('few', 'a', 0, 0, 0, 'few');
  INSERT INTO devices (id, public_key, thumbprint, key_since, enrolled_at, epoch, backlog, applied_policies, release_requested,
    labels, instance_ids, last_sync_at)
    SELECT 'd' || n, '{}', 'k' || n, 0, 0, 1, 0, '[]', 0, '{}', '[]', ${BEFORE} FROM generate_series(1, ${DEVICES}) AS n;
  INSERT INTO device_instances SELECT 'few', 'd' || n FROM generate_series(1, ${MEMBERS}) AS n;
  INSERT INTO epochs (device_id, number, status, created_at, quiet_since, forked, rejected, grants_forgotten, carried_on,
    last_seq, last_hash, last_entry, entry_head, term, recovery) SELECT id, 1, 'ACTIVE', 0, 0, 0, 0, 0, 0, 0, '', 0, '', 0, 0 FROM devices;
  INSERT INTO accounts (id, instance_id, line_item_id, charged, granted_out, claimed, billed_by_devices, sold, withheld,
    cap_target, cap_in_force, cap_highest) SELECT id, 'few', 'l', 0, 50, 0, 0, 50, 0, 50, 50, 50 FROM (VALUES ('${SCARCE}'), ('${OTHER}')) AS its (id);
  INSERT INTO device_accounts (device_id, epoch, account, granted, used, refunded, returned, branch_used, overspend,
    branch_overspend, presumed, released, unlimited, metered, was_metered)
    SELECT 'd1', 1, id, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM accounts;
  INSERT INTO shortages (account, who, lacking, enough, keep, since, at, recalled_at)
    SELECT '${SCARCE}', id, 5, 5, 7, 0, ${BEFORE}, 0 FROM devices;
  ANALYZE devices, device_instances, accounts, device_accounts, shortages;
  ALTER TABLE devices SET (autovacuum_enabled = off);
  ALTER TABLE shortages SET (autovacuum_enabled = off);
  UPDATE devices SET last_sync_at = ${NOW};
  UPDATE shortages SET at = ${NOW}`

describe('with old statistics of PostgreSQL', () => {
  const server = postgres()
  let schema: PostgresSchema
  let store: PostgresStore
  let pool: Pool
  let inTransaction: ReturnType<typeof transactionsOver>

  beforeAll(async () => {
    schema = await PostgresSchema.create(server.url)
    store = await openPostgresStore({ url: schema.url, onConnectionLost: () => undefined })
    await runSql(schema.url, FLEET)
    pool = openPool(databaseAddress(schema.url), LIMITS, () => undefined)
    inTransaction = transactionsOver(pool, false)
  })
  afterAll(async () => {
    await pool.end()
    await store.close()
    await schema[Symbol.asyncDispose]()
  })

  /** Rows of devices, shortages and usage that were read, and the result. */
  const reading = <T>(work: (sql: Sql) => Promise<T>): Promise<{ readonly rows: number; readonly result: T }> =>
    inTransaction('READ', async (db) => {
      const common = { lockRows: false, rules: ALONE, fleet: new FleetFigures(), ahead: null, shrink: null }
      const before = await rowsRead(db)
      const result = await work({ db, ...common })
      return { rows: (await rowsRead(db)) - before, result }
    })

  it('counts the live devices of an instance without the others', async () => {
    const { rows, result } = await reading((sql) => deviceReader(sql).countLive('few', Number(NOW) - 1, 'd1'))
    expect(result).toBe(MEMBERS - 1)
    expect(rows).toBeLessThan(MEMBERS + 10)
  })

  it('finds the accounts that are short without all shortages', async () => {
    const { rows, result } = await reading((sql) => shortageReader(sql).among([OTHER, SCARCE]))
    expect([...result]).toEqual([SCARCE])
    expect(rows).toBeLessThan(10)
  })

  it('finds the tokens that a device must return without reading all shortages', async () => {
    const { rows, result } = await reading((sql) =>
      deviceAccountReader(sql).ofSome([{ deviceId: 'd1', number: 1 }], [OTHER]),
    )
    expect([...result.recalled]).toEqual(['d1'])
    expect(rows).toBeLessThan(10)
  })

  it('finds the lowest level of an account without the others', async () => {
    const noted = { since: Number(NOW) - 1, until: Number(NOW) }
    const { rows, result } = await reading((sql) => shortageReader(sql).recallsFrom('d1', 1, noted, 10))
    expect(result.recalls).toEqual([{ account: SCARCE, available: 50n, keep: 7n }])
    expect(rows).toBeLessThan(10)
  })

  it('looks up entries without the earlier and the later deliveries', async () => {
    await runSql(
      schema.url,
      `INSERT INTO usage OVERRIDING SYSTEM VALUE
         SELECT n, NULL, 1, 0, 0, 0, 0, 'd1', 1, n, 0, 10 * n, 10 * n + 4, '' FROM generate_series(1, 3000) AS n`,
    )
    for (const n of [5, 15_007, 30_010]) {
      const inChain = await reading((sql) => entryReader(sql).hashInChain('d1', 1, n))
      expect([inChain.result, inChain.rows < 10]).toEqual([undefined, true])
      const billed = await reading((sql) => entryReader(sql).hashes('d1', 1, n, n))
      expect([billed.result.has(''), billed.rows < 300]).toEqual([false, true])
    }
  })

  it('lists the usage of an instance without all of the others, after reports of several', async () => {
    const body = String.raw`\x${rowsOfRecords([usage(1, { instanceId: 'few' })])[0]!.body.toString('hex')}`
    await runSql(
      schema.url,
      `INSERT INTO usage OVERRIDING SYSTEM VALUE SELECT 10000 + n, CASE WHEN n % 2 = 0 THEN 'few' ELSE 'others' END, 1, 0, 0, 0, 0${',NULL'.repeat(6)},
         '${body}' FROM generate_series(1, 3000) AS n; ANALYZE usage`,
    )
    const some = { instanceId: 'few', from: null, to: null, limit: 10 }
    const range = { ...some, after: 10_000n * USAGE_ROW_POSITIONS, upTo: 1n << 60n }
    const oldest = await reading((sql) => usageReader(sql).range(range))
    const newest = await reading((sql) => usageReader(sql).newest({ ...some, upTo: null }))
    for (const { rows, result } of [oldest, newest]) {
      expect(result.records).toHaveLength(10)
      expect(rows).toBeLessThan(100)
    }
  })

  it('reads the listed usage of an instance without the rows of others between them', async () => {
    const body = String.raw`\x${rowsOfRecords([usage(1, { instanceId: 'frequent' })])[0]!.body.toString('hex')}`
    await runSql(
      schema.url,
      `INSERT INTO usage OVERRIDING SYSTEM VALUE SELECT 20000 + n, CASE WHEN n = 10000 THEN NULL WHEN n <= 9000 THEN 'frequent' ELSE 'others' END, 1, 0, 0, 0, 0${',NULL'.repeat(6)},
         '${body}' FROM generate_series(1, 10000) AS n; ANALYZE usage`,
    )
    const some = { instanceId: 'frequent', from: null, to: null, limit: 10, upTo: null }
    const { rows, result } = await reading((sql) => usageReader(sql).newest(some))
    expect(result.records).toHaveLength(10)
    expect(rows).toBeLessThan(100)
  })

  it('finds it with a plan for an empty table, once the statistics are renewed', async () => {
    const noted = { since: Number(NOW) - 1, until: Number(NOW) }
    const lowest = () => reading((sql) => shortageReader(sql).recallsFrom('d1', 1, noted, 10))
    await runSql(schema.url, 'CREATE TABLE kept AS TABLE shortages; TRUNCATE shortages; ANALYZE shortages')
    // PostgreSQL makes a plan for any values after five executions.
    for (let run = 0; run < 10; run += 1) await lowest()
    await runSql(schema.url, 'INSERT INTO shortages TABLE kept')
    const before = await lowest()
    expect(before.rows, 'the plan of the empty table').toBeGreaterThanOrEqual(DEVICES)
    await vi.waitFor(async () => {
      await store.renewStatistics()
      const { rows, result } = await lowest()
      expect(result).toEqual(before.result)
      expect(rows).toBeLessThan(10)
    }, 10_000)
  })
})

/** By this connection so far. */
async function rowsRead(db: Sql['db']): Promise<number> {
  const { rows } = await expression<{ read: string }>`
    SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) AS read FROM pg_stat_xact_user_tables
    WHERE relname IN ('devices', 'shortages') OR relname LIKE 'usage%'`.execute(db)
  return Number(rows[0]?.read)
}
