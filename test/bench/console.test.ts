import { expect, it } from 'vitest'
import { consolePages } from '../../bench/console/pages.ts'
import { PAGES } from '../../src/cloud/console/pages.ts'

it('measures every page of the console', async () => {
  const times = await consolePages({ devices: 20, records: 100 }, 1)
  for (const { medianMs, slowestMs } of times) expect(slowestMs).toBeGreaterThanOrEqual(medianMs)
  for (const [path] of PAGES) {
    const start = path === '' ? '/' : path.replace(/:.*/, '')
    expect([path, times.some((each) => each.path.startsWith(start))]).toEqual([path, true])
  }
})
