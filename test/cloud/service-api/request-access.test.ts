import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { requestAccessSuite } from './request-access.suite.ts'

const shared: { store?: Store; users: number } = { users: 0 }

// One process has the file: what are nodes over PostgreSQL are batchers over one store here.
requestAccessSuite('one-off requests over SQLite', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-access-'))
  const store = (shared.store ??= openSqliteStore({
    path: join(folder, 'twin.db'),
    check: false,
    onBroken: () => undefined,
  }))
  shared.users += 1
  return {
    ...store,
    close: async () => {
      shared.users -= 1
      if (shared.users === 0) {
        delete shared.store
        await store.close()
      }
      rmSync(folder, { recursive: true, force: true })
    },
  }
})
