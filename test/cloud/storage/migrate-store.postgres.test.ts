// A cloud moves from its file to PostgreSQL, with the command and its own processes of work.
import { statSync, truncateSync } from 'node:fs'
import { dirname, join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { describe, expect, it, onTestFinished } from 'vitest'
import { openDatabaseOfServer } from '../../../src/cloud/storage/postgres/database.ts'
import { databaseAddress } from '../../../src/cloud/storage/postgres/hosts.ts'
import { LIMITS } from '../../../src/cloud/storage/postgres/limits.ts'
import { createPartitions, partitionRows } from '../../../src/cloud/storage/postgres/partitions.ts'
import { type MigrationProgress, migrateStore } from '../../../src/cloud/storage/postgres/migrate-store.ts'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { openDatabase } from '../../../src/cloud/storage/sqlite/database.ts'
import { usageBounds } from '../../../src/cloud/storage/sqlite/read-tables.ts'
import { PostgresSchema, runSql } from '../../support/postgres-schema.ts'
import { ServerProxy } from '../../support/server-proxy.ts'
import { postgres } from '../../support/servers.ts'
import { type Ran, tallygate } from '../../cli/outside.ts'
import { type Twin, openTwin, pick } from '../harness.ts'

const server = postgres()
const DEVICE = '0c2f3bb2-15c5-4d4a-b4a9-4d5b6a3c1a11'

const newSchema = async (): Promise<PostgresSchema> => {
  const schema = await PostgresSchema.create(server.url)
  onTestFinished(async () => schema[Symbol.asyncDispose]())
  return schema
}

/** A stopped cloud that has sold, with rows of devices, and the command line's answers for it. */
async function soldTwin(): Promise<{ twin: Twin; instance: string; file: string }> {
  const twin = await openTwin()
  onTestFinished(async () => twin[Symbol.asyncDispose]())
  const instance = await twin.shop()
  for (const user of ['Zoë', 'a\tb', '🦉']) await twin.access(instance, { Print: 7 }, user)
  await twin.stop()
  const file = join(twin.settings.store.path, 'twin.db')
  const database = new Sqlite(file)
  database.exec(`
    INSERT INTO devices (id, name, public_key, thumbprint, key_since, enrolled_at, epoch, backlog, applied_policies, release_requested, instance_ids)
      VALUES ('${DEVICE}', 'über', '{}', 't', 1, 1, 1, 0, '[]', 0, '[]');
    INSERT INTO epochs VALUES ('${DEVICE}', 1, 'ACTIVE', 1, NULL, NULL, 1, NULL, NULL, 0, 0, 0, 0, 9, 'h', 9, 'e', 1, 0, NULL, NULL);
    INSERT INTO device_accounts SELECT '${DEVICE}', 1, id, 30000000, 10, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0 FROM accounts LIMIT 1;
    UPDATE accounts SET granted_out = 29999995, sold = sold + 30000000;
    INSERT INTO last_segments VALUES ('${DEVICE}', 1, 9, zeroblob(3), 'a');
    INSERT INTO usage VALUES (1000, NULL, 9, 0, 1, 2, 2, '${DEVICE}', 1, 1, 0, 1, 9, x'00ff0a5c');
  `)
  const insert = database.prepare(`INSERT INTO segments VALUES ('${DEVICE}', 1, ?, 'h')`)
  for (let seq = 0; seq < 1_200; seq++) insert.run(seq)
  database.close()
  return { twin, instance, file }
}

const migrate = (file: string, to: string): Promise<Ran> =>
  tallygate(['cloud', 'migrate', '--from', `sqlite:${file}`, '--to', to])

describe('tallygate cloud migrate', () => {
  it('moves a cloud, which continues with its tokens, its usage and its keys', async () => {
    const { twin, instance, file } = await soldTwin()
    const schema = await newSchema()
    const { code, out, err } = await migrate(file, schema.url)
    expect(err).toBe('')
    expect(code).toBe(0)
    expect(out).toMatch(/^segments: 1,200 rows, SHA-256 [0-9a-f]{64}$/m)
    expect(out).toContain(
      'The copy is complete and equal: 1 account, 21 tokens charged by the cloud, 29.999995 granted to devices and not returned.',
    )
    expect(out).not.toContain(': 0 rows')
    await twin.start((settings) => ({ ...settings, db: schema.url }))
    expect(await twin.used(instance, 'ACT-1')).toBe(21)
    expect((await twin.access(instance, { Print: 2 })).status).toBe(200)
    expect(await twin.used(instance, 'ACT-1')).toBe(23)
    const usage = await twin.call('GET', `/reporting/api/v1.1/instances/${instance}/usage`)
    expect(usage.status).toBeLessThan(500)
    const positions = await runSql<{ seq: string }>(schema.url, 'SELECT seq FROM usage ORDER BY seq')
    expect(positions.map(({ seq }) => Number(seq))).toEqual([1, 2, 3, 1000, 1001])
    const partitions = await runSql(
      schema.url,
      `SELECT tableoid::regclass::text AS name, count(*)::int AS rows FROM usage GROUP BY 1 ORDER BY 1`,
    )
    expect(partitions).toEqual([
      { name: 'usage_from_1', rows: 4 },
      { name: 'usage_from_1001', rows: 1 },
    ])
    const { body } = await twin.call('GET', '/edge/api/v1/devices')
    expect(pick(body, 'devices', 0, 'name')).toBe('über')
  })

  it('refuses a file that was emptied, and a database that no cloud has used', async () => {
    const { file } = await soldTwin()
    const schema = await newSchema()
    truncateSync(file)
    const emptied = await migrate(file, schema.url)
    expect([emptied.code, emptied.err]).toEqual([
      65,
      expect.stringMatching(/DATABASE_CORRUPT: .*twin\.db is empty\. Name/),
    ])
    expect(statSync(file).size).toBe(0)
    openDatabase(file, { check: false }).close()
    const unused = await migrate(file, schema.url)
    expect([unused.code, unused.err]).toEqual([
      65,
      expect.stringMatching(/MIGRATION_REFUSED: .* that no cloud has used/),
    ])
    expect(unused.out).toBe('')
  })

  it('shows its progress, and leaves turns to others, such as Ctrl-C, while it reads', async () => {
    const { file } = await soldTwin()
    const schema = await newSchema()
    const source = openDatabase(file, { check: false })
    onTestFinished(() => void source.close())
    const seen: string[] = []
    const stop = new Error('stopped')
    const isRead = ({ name, step, rows, all }: MigrationProgress): void => {
      if (name === 'segments') seen.push(`${rows} of ${all} ${step}`)
    }
    const work = { source, from: file, to: schema.url, onCopied: () => undefined, onProgress: isRead }
    const giveWay = () => (seen.length === 1 ? Promise.reject(stop) : undefined)
    await expect(migrateStore({ ...work, giveWay })).rejects.toBe(stop)
    expect(seen).toEqual(['500 of null read'])
    await migrateStore({ ...work, giveWay: () => undefined })
    expect(seen.slice(1)).toEqual([
      ...['500 of null read', '1000 of null read'],
      ...['500 of 1200 copied', '1000 of 1200 copied'],
      ...['500 of 1200 compared', '1000 of 1200 compared'],
    ])
    let now = 0
    const again = await newSchema()
    const { err } = await tallygate(['cloud', 'migrate', '--from', `sqlite:${file}`, '--to', again.url], {
      now: () => (now += 5_000),
    })
    expect(err).toContain('segments: 500 rows read\n')
    expect(err).toContain('segments: 1,000 of 1,200 rows copied\n')
  })

  it('moves a cloud that has rate tables and no instance', async () => {
    await using twin = await openTwin()
    await twin.rates({ Print: 1 })
    await twin.stop()
    const schema = await newSchema()
    expect(await migrate(join(twin.settings.store.path, 'twin.db'), schema.url)).toMatchObject({ code: 0, err: '' })
  })

  it('moves a cloud whose released tokens, together, exceed a counter of 64 bits', async () => {
    const { file } = await soldTwin()
    const database = new Sqlite(file)
    const most = '9223372036854775807'
    for (const epoch of [2, 3]) {
      database.exec(`
        INSERT INTO epochs SELECT device_id, ${epoch}, 'FENCED', created_at, 1, 'SILENT', quiet_since, 'RELEASED', 1, forked, rejected,
          grants_forgotten, carried_on, last_seq, last_hash, last_entry, entry_head, term, recovery, NULL, NULL FROM epochs WHERE number = 1;
        INSERT INTO device_accounts SELECT device_id, ${epoch}, account, ${most}, 0, 0, 0, 0, 0, 0, 0, ${most}, 0, 0, 0
          FROM device_accounts WHERE epoch = 1;`)
    }
    database.close()
    const schema = await newSchema()
    expect(await migrate(file, schema.url)).toMatchObject({ code: 0, err: '' })
  })

  it('divides the usage into partitions by rows, however far apart their numbers are', async () => {
    const { file } = await soldTwin()
    const source = new Sqlite(file, { readonly: true }).defaultSafeIntegers()
    onTestFinished(() => void source.close())
    expect(usageBounds(source, (all) => all / 2n)).toEqual([1n, 3n, 1001n])
    expect(usageBounds(source, () => 1n)).toEqual([1n, 2n, 3n, 1000n, 1001n])
    expect(partitionRows(8_000_000n)).toBe(1_000_000n)
    const schema = await newSchema()
    await (await openPostgresStore({ url: schema.url, onConnectionLost: () => undefined })).close()
    const { client } = await openDatabaseOfServer(databaseAddress(schema.url), LIMITS)
    onTestFinished(() => client.end())
    await createPartitions(client, [5n, 262_140n, 262_150n, 900_000n])
    const names = await runSql(
      schema.url,
      `SELECT relid::text AS name FROM pg_partition_tree('usage') WHERE isleaf ORDER BY relid`,
    )
    expect(names).toEqual(['rest', 'from_1', 'from_262145', 'from_262150'].map((name) => ({ name: `usage_${name}` })))
  })

  it('continues after a lost connection; until then no cloud starts on the copy', async () => {
    const { twin, file } = await soldTwin()
    const schema = await newSchema()
    await using network = await ServerProxy.open(schema.url)
    network.failAt('INSERT INTO "segments"', 'LOSE_ANSWER')
    const failed = await migrate(file, network.url)
    expect(failed).toMatchObject({ code: 69, err: expect.stringContaining('DATABASE_UNREACHABLE') as string })
    const start = twin.start((settings) => ({ ...settings, db: schema.url }))
    await expect(start).rejects.toMatchObject({ code: 'MIGRATION_UNFINISHED' })
    expect(await migrate(file, schema.url)).toMatchObject({ code: 0, err: '' })
    const rows = await runSql<{ n: string }>(schema.url, 'SELECT count(*)::text AS n FROM segments')
    expect(rows).toEqual([{ n: '1200' }])
  })

  it('is complete when it is repeated after its end, until a cloud has changed the copy', async () => {
    const { twin, instance, file } = await soldTwin()
    const schema = await newSchema()
    const first = await migrate(file, schema.url)
    expect(await migrate(file, schema.url)).toEqual(first)
    await twin.start((settings) => ({ ...settings, db: schema.url }))
    await twin.access(instance, { Print: 2 })
    await twin.stop()
    expect((await migrate(file, schema.url)).err).toContain('MIGRATION_REFUSED')
    await twin.start((settings) => ({ ...settings, db: schema.url }))
    expect(await twin.used(instance, 'ACT-1')).toBe(23)
  })

  it('does not continue with other rows', async () => {
    const { twin, instance, file } = await soldTwin()
    const schema = await newSchema()
    await using network = await ServerProxy.open(schema.url)
    network.failAt('INSERT INTO "usage"', 'LOSE_MESSAGE')
    await migrate(file, network.url)
    await twin.start()
    await twin.access(instance, { Print: 1 })
    await twin.stop()
    expect((await migrate(file, schema.url)).err).toContain('MIGRATION_REFUSED')
  })

  it('refuses a target that has rows, and changes nothing', async () => {
    const { twin, file } = await soldTwin()
    const schema = await newSchema()
    await using other = await openTwin((settings) => ({ ...settings, db: schema.url }))
    await other.stop()
    expect(await migrate(file, schema.url)).toMatchObject({
      code: 65,
      err: expect.stringContaining('MIGRATION_REFUSED') as string,
    })
    await other.start()
    await twin.start()
  })

  it('notices a copy that differs, and lets no cloud start on it', async () => {
    const { file } = await soldTwin()
    const schema = await newSchema()
    await using network = await ServerProxy.open(schema.url)
    network.failAt('INSERT INTO "usage"', 'LOSE_ANSWER')
    await migrate(file, network.url)
    await runSql(schema.url, `UPDATE usage SET records = records - 1 WHERE seq = 2`)
    expect(await migrate(file, schema.url)).toMatchObject({
      code: 65,
      err: expect.stringContaining('MIGRATION_DIFFERS: The table usage') as string,
    })
    await expect(openPostgresStore({ url: schema.url, onConnectionLost: () => undefined })).rejects.toMatchObject({
      code: 'MIGRATION_UNFINISHED',
    })
  })

  it('refuses the file of a cloud that runs, and a file that does not exist', async () => {
    const { twin, file } = await soldTwin()
    await twin.start()
    expect((await migrate(file, server.url)).err).toContain('STATE_IN_USE')
    expect((await migrate(`${file}.other`, server.url)).err).toContain('does not exist')
    expect((await migrate(dirname(file), server.url)).err).toContain(
      `a database file, but ${dirname(file)} is a directory.`,
    )
  })
})

describe('a cloud whose data is still in its file', () => {
  it('does not start with an empty database unless store.start_empty is true', async () => {
    const { twin } = await soldTwin()
    const schema = await newSchema()
    const start = twin.start((settings) => ({ ...settings, db: schema.url }))
    await expect(start).rejects.toMatchObject({ code: 'STORE_NOT_MIGRATED' })
    await twin.start((settings) => ({ ...settings, db: schema.url, store: { ...settings.store, startEmpty: true } }))
    await twin.stop()
    // It has begun there.
    await twin.start((settings) => ({ ...settings, db: schema.url }))
  })

  it('starts with an empty database if its file has nothing but the key of its first start', async () => {
    await using twin = await openTwin()
    await twin.stop()
    const schema = await newSchema()
    await twin.start((settings) => ({ ...settings, db: schema.url }))
  })
})
