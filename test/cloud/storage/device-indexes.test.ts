// A page of devices reads about as many rows as it shows, however many devices there are: plans of SQLite.
import Sqlite from 'better-sqlite3'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { deviceReader } from '../../../src/cloud/storage/sql/edge-devices.ts'
import { migrations } from '../../../src/cloud/storage/sqlite/database.ts'
import { type Query, sqlOver } from './sql-over.ts'

let database: Sqlite.Database
let asked: Query[]
let devices: ReturnType<typeof deviceReader>

beforeEach(() => {
  database = new Sqlite(':memory:')
  for (const { sql } of migrations()) database.exec(sql)
  // `few` has 10 devices, `many` and the instance `all` 1,500.
  database.pragma('foreign_keys = off')
  database.exec(`
    WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 1500)
    INSERT INTO devices (id, public_key, thumbprint, key_since, enrolled_at, epoch, backlog, applied_policies,
      release_requested, labels, instance_ids) SELECT 'd' || n, '{}', 'k' || n, 0, 0, 0, 0, '[]', 0, '{}', '[]' FROM counted;
    INSERT INTO device_instances SELECT 'all', id FROM devices;
    INSERT INTO device_labels SELECT 'size', 'many', seq FROM devices;
    INSERT INTO device_labels SELECT 'kind', 'few', seq FROM devices WHERE seq <= 10;`)
  asked = []
  devices = deviceReader(sqlOver(database, (query) => asked.push(query)))
})
afterEach(() => database.close())

async function planOf(filter: Parameters<typeof devices.find>[0]): Promise<string> {
  await devices.find(filter, 0, 51)
  const query = asked.find(({ sql }) => sql.startsWith('select "devices".*'))
  const rows = database.prepare(`EXPLAIN QUERY PLAN ${query?.sql}`).all(query?.parameters)
  return (rows as { detail: string }[]).map(({ detail }) => detail).join('\n')
}

const many = { key: 'size', value: 'many' }
const few = { key: 'kind', value: 'few' }

describe('a page of devices', () => {
  it('walks a common label in order of enrollment', async () => {
    const plan = await planOf({ labels: [many], instanceId: 'all' })
    expect(plan).toContain('SEARCH walked USING PRIMARY KEY (key=? AND value=?)')
    expect(plan).not.toContain('TEMP B-TREE')
    expect(plan).not.toContain('SCAN')
  })

  it('collects the devices of a rare label, whatever other labels it names', async () => {
    for (const filter of [
      { labels: [many, few], instanceId: 'all' },
      { labels: [few], contact: { state: 'CURRENT', overdueBefore: 0 } },
    ] as const) {
      expect(await planOf(filter)).toMatch(/^SEARCH devices USING INTEGER PRIMARY KEY \(rowid=\?\)\nLIST SUBQUERY/)
      asked = []
    }
  })

  it('walks the devices in contact for a common label, without a sort of all', async () => {
    const plan = await planOf({ labels: [many], contact: { state: 'CURRENT', overdueBefore: 0 } })
    expect(plan).toContain('SEARCH devices USING INDEX devices_by_contact (last_sync_at>?)')
    expect(plan).toContain('SEARCH grouped USING PRIMARY KEY (key=? AND value=? AND device_seq=?)')
    expect(plan).not.toContain('TEMP B-TREE')
  })

  it('walks all devices for an instance that has many, also within a scope', async () => {
    const limited = await planOf({ instanceId: 'all', scope: new Set(['all', 'other']) })
    expect(limited).toContain('SEARCH served USING COVERING INDEX device_instances_by_device (device_id=?)')
    expect(limited).not.toContain('TEMP B-TREE')
    asked = []
    const plan = await planOf({ instanceId: 'all' })
    expect(plan).toContain('SEARCH grouped USING PRIMARY KEY (instance_id=? AND device_id=?)')
    expect(plan).not.toContain('TEMP B-TREE')
  })
})
