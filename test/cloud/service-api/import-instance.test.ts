import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { importInstanceSuite } from './import-instance.suite.ts'

importInstanceSuite('imports over SQLite', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-import-'))
  const store = openSqliteStore({ path: join(folder, 'twin.db'), check: false, onBroken: () => undefined })
  return {
    store: {
      ...store,
      close: async () => {
        await store.close()
        rmSync(folder, { recursive: true, force: true })
      },
    },
    // One process has the file.
    another: async () => ({ ...store, close: async () => undefined }),
  }
})
