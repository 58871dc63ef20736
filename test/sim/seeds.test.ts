// Agent and twin under faults that are drawn from seeds, and every seed that has ever failed.
import { readFileSync } from 'node:fs'
import { beforeAll, expect, test } from 'vitest'
import { type SeedOptions, runMany } from '../../sim/many.ts'
import type { PlanOptions } from '../../sim/draw/plan.ts'
import type { RunResult } from '../../sim/run.ts'
import { SYNCS_SHARED } from '../../sim/twin/node.ts'

/** More for a longer look, as in CI. */
const SEEDS = Number(process.env['TALLYGATE_TEST_SEEDS'] ?? 40)

/** Small, so that they take less than minutes. `npm run sim` draws larger ones. */
const SMALL: PlanOptions = { devices: 2, hours: 1, requests: 10 }

const KEYS_REPLACED: PlanOptions = { ...SMALL, always: ['rotate-key', 'twin-restore', 'clone', 'restore'] }

const failed = JSON.parse(readFileSync(new URL('./failed-seeds.json', import.meta.url), 'utf8')) as SeedOptions[]
const withKeysReplaced = seedsFrom(520, Math.ceil(SEEDS / 10), KEYS_REPLACED)
const drawn = seedsFrom(10_001, SEEDS, SMALL)

function seedsFrom(first: number, count: number, options: PlanOptions): readonly SeedOptions[] {
  return Array.from({ length: count }, (_, index) => ({ seed: first + index, options }))
}

const results = new Map<SeedOptions, RunResult>()

// All in one call: each thread loads and compiles the modules again. The largest first, so that the threads end together.
beforeAll(
  () =>
    runMany({
      runs: [...failed, ...withKeysReplaced, ...drawn],
      defect: null,
      threads: 0,
      onResult: (result, options) => {
        results.set(options, result)
        return true
      },
    }),
  120_000 + failed.length * 30_000 + SEEDS * 4_400,
)

/** One line for each of the seeds that has no result or broke a promise. */
function broken(runs: readonly SeedOptions[]): readonly string[] {
  return runs.flatMap((options) => {
    const { seed } = options
    const result = results.get(options)
    if (result === undefined) return [`seed ${seed} did not run`]
    const { violation } = result
    return violation === null ? [] : [`seed ${seed}: ${violation.invariant} ${violation.message}`]
  })
}

test(`${SEEDS} seeds break no promise`, () => {
  expect(broken(drawn)).toEqual([])
})

test('syncs of several devices share transactions in some of the seeds', () => {
  expect(drawn.some((options) => (results.get(options)?.faults[SYNCS_SHARED] ?? 0) > 0)).toBe(true)
})

test('keys of devices are replaced among the other faults, and under a twin that is restored', () => {
  expect(broken(withKeysReplaced)).toEqual([])
})

test('the seeds that have ever failed break no promise', () => {
  expect(broken(failed)).toEqual([])
})
