import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { recentUsage } from '../../../src/cloud/console/recent-usage.ts'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { temporaryDirectory } from '../../agent/harness.ts'
import { usage } from '../storage/suite.ts'

test.each([
  ['that share a row', () => 'i'],
  ['with a row each', (n: number) => `${n}`],
])('the recent usage reaches back over the newest 2,000 records %s', async (_, instanceIdOf) => {
  const path = join(temporaryDirectory(), 'twin.db')
  const store = openSqliteStore({ path, check: false, onBroken: () => undefined })
  onTestFinished(() => store.close())
  for (let at = 1; at <= 5; at += 1) {
    const times = { usageTime: at, writeTime: at }
    const records = Array.from({ length: 500 }, (_each, n) => usage(n, { ...times, instanceId: instanceIdOf(n) }))
    await store.transaction((tx) => tx.usage.append(records))
  }
  const { records, since } = await store.read((reader) => recentUsage(reader, null, 5))
  // Of the last instant that it reaches, there may be more.
  expect([records.length, since]).toEqual([1_500, 2])
})
