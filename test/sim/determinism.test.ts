// The same seed does the same on each thread, whatever ran before it and beside it.
import { expect, test } from 'vitest'
import { runMany } from '../../sim/many.ts'
import type { PlanOptions } from '../../sim/draw/plan.ts'

const OPTIONS: PlanOptions = { devices: 3, hours: 2, requests: 12 }

const SEEDS = [1, 2, 3]

test('a seed leaves the same trace on a new thread and after other seeds', { timeout: 300_000 }, async () => {
  const digests: string[] = []
  await runMany({
    // Two threads begin with the first two seeds, which run again beside others.
    runs: [...SEEDS, ...SEEDS].map((seed) => ({ seed, options: OPTIONS })),
    defect: null,
    threads: 2,
    onResult: ({ seed, digest }) => {
      digests.push(`${seed} ${digest}`)
      return true
    },
  })
  expect(digests).toHaveLength(2 * SEEDS.length)
  const different = [...new Set(digests)]
  expect(different.map((each) => Number(each.split(' ')[0])).toSorted()).toEqual(SEEDS)
  expect(new Set(different.map((each) => each.split(' ')[1])).size).toBe(SEEDS.length)
})
