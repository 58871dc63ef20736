// Agent and twin under faults that are drawn from seeds, and every seed that has ever failed.
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { type SeedOptions, runMany } from '../../sim/many.ts'
import type { PlanOptions } from '../../sim/draw/plan.ts'

/** More for a longer look, as in CI. */
const SEEDS = Number(process.env['TALLYGATE_TEST_SEEDS'] ?? 40)

/** Small, so that they take less than minutes. `npm run sim` draws larger ones. */
const SMALL: PlanOptions = { devices: 2, hours: 1, requests: 10 }

/** What each seed that broke a promise broke. */
async function broken(runs: readonly SeedOptions[]): Promise<readonly string[]> {
  const found: string[] = []
  await runMany({
    runs,
    defect: null,
    threads: 0,
    onResult: ({ seed, violation }) => {
      if (violation !== null) found.push(`seed ${seed}: ${violation.invariant} ${violation.message}`)
      return true
    },
  })
  return found
}

test(`${SEEDS} seeds break no promise`, { timeout: 120_000 + SEEDS * 4_000 }, async () => {
  const runs = Array.from({ length: SEEDS }, (_, index) => ({ seed: 10_001 + index, options: SMALL }))
  expect(await broken(runs)).toEqual([])
})

test(
  'keys of devices are replaced among the other faults, and under a twin that is restored',
  { timeout: 300_000 },
  async () => {
    const options: PlanOptions = { ...SMALL, always: ['rotate-key', 'twin-restore'], without: ['clone', 'restore'] }
    const runs = Array.from({ length: Math.ceil(SEEDS / 10) }, (_, index) => ({ seed: 520 + index, options }))
    expect(await broken(runs)).toEqual([])
  },
)

const failed = JSON.parse(readFileSync(new URL('./failed-seeds.json', import.meta.url), 'utf8')) as SeedOptions[]

test('the seeds that have ever failed break no promise', { timeout: 120_000 + failed.length * 30_000 }, async () => {
  expect(await broken(failed)).toEqual([])
})
