import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { reportUsageSuite } from './report-usage.suite.ts'

reportUsageSuite('the usage report over SQLite', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'tallygate-report-'))
  const store = openSqliteStore({ path: join(folder, 'twin.db'), check: false, onBroken: () => undefined })
  return {
    ...store,
    close: async () => {
      await store.close()
      rmSync(folder, { recursive: true, force: true })
    },
  }
})
