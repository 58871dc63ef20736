// Queries of one device, session or account do not grow with the others: the partial indexes are used, and values of parameters
// cause no new plan.
import { afterEach, beforeEach, expect, test } from 'vitest'
import { accountReader } from '../../../src/cloud/storage/sql/accounts.ts'
import { epochReader } from '../../../src/cloud/storage/sql/edge-epochs.ts'
import { instanceReader } from '../../../src/cloud/storage/sql/instances.ts'
import { sessionReader } from '../../../src/cloud/storage/sql/sessions.ts'
import type { Sql } from '../../../src/cloud/storage/sql/sql.ts'
import Sqlite from 'better-sqlite3'
import { migrations } from '../../../src/cloud/storage/sqlite/database.ts'
import { type Query, sqlOver } from './sql-over.ts'

let database: Sqlite.Database
let asked: Query[]
let sql: Sql
let sessions: ReturnType<typeof sessionReader>

beforeEach(() => {
  database = new Sqlite(':memory:')
  for (const { sql } of migrations()) database.exec(sql)
  asked = []
  sql = sqlOver(database, (query) => asked.push(query))
  sessions = sessionReader(sql)
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

test('the sessions that a device keeps are counted by the device', async () => {
  await sessions.countKeptBy('d-1')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_kept_by (kept_by=?)')
})

test('the commands for sessions that a device keeps are found without its other sessions, and those in effect', async () => {
  await sessions.commands('d-1', 10)
  expect(plan()).toBe('SEARCH sessions USING INDEX sessions_commanded (kept_by=?)')
})

test('the sessions that are held with their device are found by the device, whether it opened or keeps them', async () => {
  await sessions.notEnded('d-1')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_of_device (device_id=?)')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_kept_by (kept_by=?)')
})

test('the sessions of a device for its page are found by the device', async () => {
  await sessions.page({ deviceId: 'd-1' }, 10)
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_of_device (device_id=?)')
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_kept_by (kept_by=?)')
  expect(plan()).not.toContain('SCAN sessions')
})

test('the live sessions of an instance are found by the instance', async () => {
  await sessions.live('i-1', 10)
  expect(plan()).toContain('SEARCH sessions USING INDEX sessions_live (instance_id=?)')
})

test('the default instance of an account is found by its index', async () => {
  await instanceReader(sql).defaultOf('a-1')
  expect(plan()).toContain('SEARCH instances USING INDEX instances_one_default (account_id=?)')
})

test('epochs without a settlement are found by when they became inactive', async () => {
  await epochReader(sql).nextInactive(1)
  expect(plan()).toContain('SEARCH epochs USING INDEX epochs_inactive (quiet_since<?)')
})

test('the accounts of a line item whose caps change are found without the limits of past periods', async () => {
  await accountReader(sql).toRetarget('i-1', 'l-1', { from: 7, unlike: 5n })
  const period = 'SEARCH accounts USING INDEX accounts_by_line_item (instance_id=? AND line_item_id=? AND limit_period'
  expect(plan()).toContain(`${period}=?)`)
  expect(plan()).toContain(`${period}>?)`)
  expect(plan()).not.toContain('SCAN')
})

test('a page of the accounts of an instance is read in the order of the index', async () => {
  await accountReader(sql).page('i-1', 100, 10)
  expect(plan()).toBe('SEARCH accounts USING INDEX accounts_by_line_item (instance_id=?)')
})

test('plans do not depend on the values of parameters, so SQLite makes them once', async () => {
  await sessions.renewedBy(5, 10)
  const [query] = asked
  expect(query?.sql.match(/limit (\S+)/)?.[1]).toBe('+?')
  expect(query?.sql.match(/\?/g)?.length).toBe(query?.sql.match(/\+\?/g)?.length)
})
