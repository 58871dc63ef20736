import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { afterAll, expect, it } from 'vitest'
import { zstd } from '../../../src/cloud/platform/archive/compression.ts'
import { archiveDirectory } from '../../../src/cloud/platform/archive/directory.ts'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { archiveUsage } from '../../../src/cloud/usage/archive/archive-usage.ts'
import { usage } from '../storage/suite.ts'
import { archiveSuite } from './archive.suite.ts'

const folder = mkdtempSync(join(tmpdir(), 'tallygate-archived-store-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
let count = 0
const newPath = () => join(folder, `${(count += 1)}.db`)
const open = (path = newPath()) => openSqliteStore({ path, check: true, onBroken: () => undefined })

archiveSuite('a SQLite file', async () => open())

it('makes the file of the store smaller', async () => {
  const path = newPath()
  const store = open(path)
  for (let round = 0; round < 20; round += 1) {
    await store.transaction((tx) =>
      tx.usage.append(Array.from({ length: 500 }, (_, n) => usage(n, { instanceId: `${n}` }))),
    )
  }
  // Closes the journal into the file.
  const sizeOf = () => {
    const database = new Sqlite(path)
    database.pragma('wal_checkpoint(TRUNCATE)')
    database.close()
    return statSync(path).size
  }
  const before = sizeOf()
  await archiveUsage(
    {
      ...{ store, place: archiveDirectory(join(folder, 'smaller')), compression: zstd, tenantId: 't', holder: 'test' },
      ...{ now: () => 1, giveWay: () => undefined, isStopping: () => false, onArchive: () => undefined },
    },
    2 ** 52,
  )
  expect(sizeOf()).toBeLessThan(before / 3)
  await store.close()
})

it('does not try to make a file smaller that gives nothing back', async () => {
  const path = newPath()
  const created = new Sqlite(path)
  created.exec('CREATE TABLE first (a); DROP TABLE first')
  created.close()
  const store = open(path)
  await store.transaction((tx) => tx.usage.append(Array.from({ length: 1_000 }, (_, n) => usage(n))))
  const deps = {
    ...{ store, place: archiveDirectory(join(folder, 'fixed')), compression: zstd, tenantId: 't', holder: 'test' },
    ...{ now: () => 1, giveWay: () => undefined, isStopping: () => steps > 50, onArchive: () => undefined },
  }
  let steps = 0
  const transaction: typeof store.transaction = (work) => {
    steps += 1
    return store.transaction(work)
  }
  await archiveUsage({ ...deps, store: { read: (work) => store.read(work), transaction } }, 2 ** 52)
  expect(steps).toBeLessThan(20)
  await store.close()
})
