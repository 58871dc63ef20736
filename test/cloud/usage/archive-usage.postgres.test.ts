import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, expect, it, onTestFinished } from 'vitest'
import { replayAfter } from '../../../src/cloud/events/administer-sinks.ts'
import { zstd } from '../../../src/cloud/platform/archive/compression.ts'
import { archiveDirectory } from '../../../src/cloud/platform/archive/directory.ts'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { archiveUsage } from '../../../src/cloud/usage/archive/archive-usage.ts'
import { PostgresSchema, runSql } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { usage } from '../storage/suite.ts'
import { archiveSuite } from './archive.suite.ts'

const server = postgres()
let shared: PostgresSchema | undefined
afterAll(async () => shared?.[Symbol.asyncDispose]())

const open = async (): Promise<Store> => {
  shared ??= await PostgresSchema.create(server.url)
  await shared.empty()
  await runSql(shared.url, 'ALTER SEQUENCE IF EXISTS usage_seq_seq RESTART')
  return openPostgresStore({ url: shared.url, onConnectionLost: () => undefined })
}

archiveSuite('a PostgreSQL database', open)

it('lets no sink move back while an archive is recorded', async () => {
  const store = await open()
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-archive-'))
  const client = new pg.Client({ connectionString: shared!.url })
  await client.connect()
  onTestFinished(async () => {
    await client.end()
    await store.close()
    rmSync(folder, { recursive: true, force: true })
  })
  await store.transaction((tx) => tx.usage.append([usage(1), usage(2)]))
  const end = await store.transaction((tx) => tx.usage.settled())
  await store.transaction((tx) => tx.eventSinks.claim('billing', { by: 'node', now: 1, until: 2 }, async () => end))
  const [gate, reached] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
  /** Waits before it writes that the archive is recorded. */
  const transaction: Store['transaction'] = (work) =>
    store.transaction((tx) =>
      work({
        ...tx,
        usageArchives: {
          ...tx.usageArchives,
          record: async (archive) => {
            reached.resolve(undefined)
            await gate.promise
            await tx.usageArchives.record(archive)
          },
        },
      }),
    )
  const archived = archiveUsage(
    {
      ...{
        store: { read: (work) => store.read(work), transaction },
        place: archiveDirectory(folder),
        compression: zstd,
      },
      ...{ tenantId: 't', holder: 'test', now: () => 1, giveWay: () => undefined },
      ...{ isStopping: () => false, onArchive: () => undefined },
    },
    2 ** 52,
  )
  await reached.promise
  const ended: unknown[] = []
  const replayed = replayAfter({ store }, 'billing', 0n, 1).then(
    () => ended.push('moved'),
    (error: unknown) => ended.push(error),
  )
  const waiting = `SELECT count(*)::int AS count FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"event_sinks"%'`
  await expect
    .poll(async () => ended.length + (await client.query<{ count: number }>(waiting)).rows[0]!.count)
    .toBeGreaterThan(0)
  gate.resolve(undefined)
  expect(await archived).toMatchObject({ records: 2 })
  await replayed
  expect(ended).toEqual([expect.objectContaining({ code: 'USAGE_ARCHIVED' })])
  expect(await store.read((reader) => reader.eventSinks.next('billing'))).toMatchObject({ position: end })
})
