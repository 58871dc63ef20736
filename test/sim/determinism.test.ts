// The same seed does the same: in one process after another, and beside a run on another thread.
import { expect, test } from 'vitest'
import { runMany } from '../../sim/many.ts'
import type { PlanOptions } from '../../sim/draw/plan.ts'

const OPTIONS: PlanOptions = { devices: 3, hours: 2, requests: 12 }

async function digests(seeds: readonly number[], threads: number): Promise<ReadonlyMap<string, string>> {
  const found = new Map<string, string>()
  let order = 0
  await runMany({
    runs: seeds.map((seed) => ({ seed, options: OPTIONS })),
    defect: null,
    threads,
    onResult: ({ seed, digest }) => {
      found.set(`${seed} ${(order += 1)}`, digest)
      return true
    },
  })
  return found
}

test('a seed leaves the same trace on one thread and on three concurrent ones', { timeout: 300_000 }, async () => {
  const seeds = [1, 2, 3, 4]
  const alone = await digests(seeds, 1)
  // Backwards, so that each seed runs once on a new thread and once after another seed.
  const crowded = await digests(seeds.toReversed(), 3)
  for (const [name, digest] of crowded) {
    const [seed] = name.split(' ')
    const [, first] = [...alone].find(([other]) => other.startsWith(`${seed} `)) ?? []
    expect(digest).toBe(first)
  }
  expect(new Set(alone.values()).size).toBe(seeds.length)
})
