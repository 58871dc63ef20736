// What a page reads does not grow with the cloud: rows that queries return are counted, and none of them walks a large table.
import { join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { devicePage } from '../../../src/cloud/console/device.ts'
import { PAGES } from '../../../src/cloud/console/pages.ts'
import type { View } from '../../../src/cloud/console/page.ts'
import { usageOfPage, usagePage } from '../../../src/cloud/console/usage.ts'
import { showAudit } from '../../../src/cloud/devices/devices.ts'
import { Policies } from '../../../src/cloud/policy/load-policy.ts'
import { readerOf } from '../../../src/cloud/storage/sql/transaction.ts'
import type { Instance } from '../../../src/cloud/storage/records.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { type Twin, openTwin } from '../harness.ts'
import { type Query, sqlOver } from '../storage/sql-over.ts'
import { multiplyScene } from './multiply.ts'
import { type Scene, furnish } from './scene.ts'

const DEVICES = 3_000
const RECORDS = 20_000
/** The overview reads the numbers of the newest 2,000 usage records, and these; all other pages read less. */
const ROWS_MAX = 5_000

let twin: Twin
let scene: Scene
let database: Sqlite.Database
let instance: Instance
let queries: Query[] = []

beforeAll(async () => {
  twin = await openTwin()
  scene = await furnish(twin, false)
  await twin.stop()
  database = new Sqlite(join(twin.settings.store.path, 'twin.db'))
  database.defaultSafeIntegers()
  multiplyScene(database, scene.instanceId, { devices: DEVICES, records: RECORDS })
  database.exec(
    `INSERT INTO event_sinks (name, position, leased_until) VALUES ('billing', 1, 0);
     INSERT INTO dead_letters WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 10000)
       SELECT 'billing', n, 'usage', 'id', 'gone', 1, 0 FROM counted`,
  )
})
afterAll(async () => {
  database.close()
  await twin[Symbol.asyncDispose]()
})

async function viewOf(path: string, query: Readonly<Record<string, string>>): Promise<View> {
  const reader = readerOf(sqlOver(database, (query) => queries.push(query)))
  instance = (await reader.instances.get(scene.instanceId))!
  return {
    ...{
      reader,
      instance,
      instances: [instance],
      query,
      path,
      revision: 1,
      root: '/console',
      formToken: '',
      newId: () => '',
      now: twin.now,
    },
    policies: new Policies({ max: 10, undecidedClock: 'allow' }),
    presence: () => null,
    terms: { syncEveryMs: 300_000 },
    administrator: {
      ...{ kind: 'ADMINISTRATOR', keyId: 'key', name: null, issuer: null, scope: null },
      ...{ rights: [{ roles: null, instances: null }], instances: null, deviceId: null },
    },
    sinks: [],
    params: { deviceId: scene.device.id, sink: 'billing' },
  }
}

const LARGE = /^SCAN (?:main\.)?(usage|devices|sessions|audit|accounts|device_accounts|device_instances)\b/

const QUERIES: readonly Readonly<Record<string, string>>[] = [
  {},
  { of: 'all' },
  { search: '0000' },
  { search: 'Press', contact: 'NEVER' },
  ...['CURRENT', 'OVERDUE', 'NEVER', 'SUSPENDED', 'REVOKED'].map((contact) => ({ contact })),
  { item: 'Print', outcome: 'refused' },
  { to: '2000-01-01T00:00' },
  { type: 'user', value: 'Ada', item: 'Print', count: '1' },
]

const usage = async (view: View) => usagePage(view, await view.reader.usage.newest(await usageOfPage(view)))

for (const [path, make] of [...PAGES, ['/usage', usage] as const]) {
  for (const whole of [false, true]) {
    it(`reads a bounded number of rows: ${path === '' ? 'overview' : path}${whole ? ', of all instances' : ''}`, async () => {
      for (const query of QUERIES) {
        queries = []
        const view = await viewOf(path, { command: 'lock', lineItem: 'PRINT-2026', ...query })
        await make(whole ? { ...view, instance: null } : view)
        let rows = 0
        for (const { sql, parameters } of queries) {
          const read = database.prepare(sql).all(parameters)
          rows += read.length
          const plan = database.prepare(`EXPLAIN QUERY PLAN ${sql}`).all(parameters) as { detail: string }[]
          const walks = plan.map(({ detail }) => detail).filter((detail) => LARGE.test(detail))
          if (walks.length > 0) expect([sql, sql.includes(' limit ')]).toEqual([sql, true])
        }
        expect(queries.length).toBeGreaterThan(0)
        expect([query, rows <= ROWS_MAX]).toEqual([query, true])
      }
    })
  }
}

it('loads no rules for a device without tokens of an action', async () => {
  class NoRules extends Policies {
    override async of(): Promise<never> {
      throw new Error('rules were loaded')
    }
  }
  const view = await viewOf(`/devices/${scene.device.id}`, {})
  const policies = new NoRules({ max: 1, undecidedClock: 'allow' })
  expect(await devicePage({ ...view, policies })).toMatchObject({ title: 'Printer' })
})

it('compares a bounded number of changes at a time by a condition without an index', async () => {
  database.exec(
    `INSERT INTO audit (at, by_kind, action, is_traffic) WITH RECURSIVE counted (n) AS
       (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 50000) SELECT 1, 'CLOUD', 'LOCK_DEVICE', 0 FROM counted`,
  )
  const reader = readerOf(sqlOver(database, () => undefined))
  const counts = { reads: 0, pauses: 0 }
  const store: Pick<Store, 'read'> = {
    read: (work) => {
      counts.reads += 1
      return work(reader)
    },
  }
  const deps = { store, giveWay: () => void (counts.pauses += 1) }
  expect(await showAudit(deps, { by: 'no one' }, 10)).toEqual({ records: [], next: null })
  expect(counts).toEqual({ reads: 3, pauses: 2 })
  const enrollments = (limit: number) => showAudit(deps, { action: 'ENROLL_DEVICE' }, limit)
  const all = (await enrollments(100)).records
  expect(all.length).toBeGreaterThan(1)
  expect(await enrollments(all.length)).toEqual({ records: all, next: null })
  const some = await enrollments(all.length - 1)
  expect(some.records).toEqual(all.slice(0, -1))
  const rest = await showAudit(deps, { action: 'ENROLL_DEVICE', before: BigInt(some.next ?? 0) }, 100)
  expect(rest).toEqual({ records: all.slice(-1), next: null })
})
