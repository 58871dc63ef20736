// What a sync of a device and an order about it ask of sessions does not grow with the sessions of others: the partial
// indexes are used.
import { Kysely } from 'kysely'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { sessionReader } from '../../../src/cloud/storage/sql/sessions.ts'
import { FleetFigures } from '../../../src/cloud/storage/sql/fleet-figures.ts'
import { ALONE } from '../../../src/cloud/storage/sql/sql.ts'
import type { Tables } from '../../../src/cloud/storage/sql/tables.ts'
import { SingleConnectionDialect } from '../../../src/cloud/storage/sqlite/dialect.ts'
import Sqlite from 'better-sqlite3'
import { migrations } from '../../../src/cloud/storage/sqlite/database.ts'

let database: Sqlite.Database
let asked: { readonly sql: string; readonly parameters: readonly unknown[] }[]
let sessions: ReturnType<typeof sessionReader>

beforeEach(() => {
  database = new Sqlite(':memory:')
  for (const { sql } of migrations()) database.exec(sql)
  asked = []
  const db = new Kysely<Tables>({
    dialect: new SingleConnectionDialect(database),
    log: ({ query }) => void asked.push(query),
  })
  sessions = sessionReader({ db, lockRows: false, rules: ALONE, fleet: new FleetFigures(), ahead: null })
})

afterEach(() => database.close())

/** How SQLite looks up the one thing that was asked. */
function plan(): string {
  const [query] = asked
  const rows = database.prepare(`EXPLAIN QUERY PLAN ${query?.sql}`).all(query?.parameters)
  return (rows as { detail: string }[]).map(({ detail }) => detail).join('\n')
}

test('the sessions that a device has opened are found by the device', async () => {
  await sessions.ofDevice('d-1')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_of_device (device_id=?)')
})

test('the sessions that agents have opened as their own are found by their openings', async () => {
  await sessions.openedAs('d-1', 'i-1', 'one')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_by_opening (device_id=? AND instance_id=?')
})

test('the sessions that a device keeps are found by the device', async () => {
  await sessions.keptBy('d-1')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_kept_by (kept_by=?)')
})

test('the sessions that are held with their device are found by the device, whether it opened or keeps them', async () => {
  await sessions.notEnded('d-1')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_of_device (device_id=?)')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_kept_by (kept_by=?)')
})

test('the live sessions of an instance are found by the instance', async () => {
  await sessions.live('i-1', 10)
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_live (instance_id=?)')
})
