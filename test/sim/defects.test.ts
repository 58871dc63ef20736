// A simulator that finds nothing proves nothing: each deliberate defect is found by a seed that is known to find it.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { DEFECTS, defectNamed, withNeeds } from '../../sim/defects/list.ts'
import { type PlanOptions, drawPlan } from '../../sim/draw/plan.ts'
import { run } from '../../sim/run.ts'
import { signAtOnce } from '../../sim/world/signatures.ts'

const OPTIONS: PlanOptions = { devices: 3, hours: 2, requests: 12 }

/** A seed that finds each defect, chosen for a short run. */
const KNOWN: Readonly<Record<string, number>> = {
  'answer-before-commit': 4,
  'skip-flush': 3,
  'skip-seal': 127,
  'new-segment-on-retry': 3,
  'forget-the-tail': 92,
  'grant-not-stored': 2,
  'resends-nothing': 180,
  'return-not-durable': 3,
  'any-attach-answer': 3,
  'clock-without-suspend': 28,
  'burn-nothing': 12,
  'stale-log': 96,
  'log-turns-late': 12,
  'log-keeps-refused': 4,
  'acknowledge-before-commit': 2,
  'dedupe-expires': 41,
  'release-at-expiry': 4,
  'claw-back': 34,
  'no-fence-at-attach': 3,
  'grants-at-attach': 10,
  'grant-beyond-the-pool': 4,
  'sells-what-is-withheld': 3,
  'archive-forgets-entries': 53,
  'totals-start-anew': 6,
  'exports-lose-a-record': 2,
  'exports-skip-a-row': 1,
  'reports-repeat-records': 9,
  'archive-takes-too-much': 38,
  'exports-omit-archived': 13,
  'exports-omit-archived-meanwhile': 11,
  'positions-used-twice': 7,
  'bill-branches-again': 4,
  'unlimited-for-good': 21,
  'settles-by-flag': 93,
  'late-delivery-as-branch': 28,
  'late-delivery-not-billed': 2,
  'period-number-again': 16,
  'settles-by-any-clock': 3,
  'settles-by-clock-of-a-node': 11,
  'settles-without-limit': 15,
  'confirms-time-only': 28,
  'keeps-a-wrong-time': 2,
  'short-after-a-wrong-time': 1,
  'settles-nothing-after-a-doubt': 11,
  'no-heartbeat-after-a-doubt': 1,
  'salvage-without-log': 376,
  'returns-nothing': 3,
  'asks-for-nothing': 2,
  'copies-not-billed': 4,
  'remembers-word': 12,
  'recalls-nothing': 22,
  'stale-pools-in-batch': 6,
  'unusual-leaves-a-trace': 3,
  'forgets-answers-by-any-clock': 44,
  'refuses-rates': 1,
  'refuses-syncs': 4,
  'refuses-keys': 2,
  'renews-nothing': 2,
  'imports-add-again': 9,
  'any-token-enrolls-again': 20,
  'grants-from-the-reserve': 8,
  'mixes-up-dictionaries': 1,
  'fails-now-and-then': 1,
  'bills-one-item': 1,
  'allocation-stays-charged': 34,
  'sessions-forget-their-charge': 34,
  'device-forgets-what-sessions-paid': 3,
  'charges-without-heartbeat': 81,
  'actions-in-another-order': 4,
  'copies-nothing': 1,
  'asks-all-cells': 1,
}

const found: string[] = []

/** If plans are drawn in another way since, a seed may find its defect no longer. */
function noLongerFound(name: string, seed: number | undefined): Error {
  const { devices, hours, requests } = OPTIONS
  const search = `npm run sim -- --defect ${name} --devices ${devices} --hours ${hours} --requests ${requests} --no-shrink`
  return new Error(
    `seed ${seed} does not find ${name}. Put the first seed that this command finds into KNOWN: ${search}`,
  )
}

/** Until when plans are known to break nothing, ms, by seed and options. */
const soundMs = new Map<string, number>()

/** Without the defect, the same seed breaks nothing until then. */
async function expectSound(seed: number, options: PlanOptions, untilMs: number): Promise<void> {
  const plan = JSON.stringify([seed, options])
  if ((soundMs.get(plan) ?? 0) >= untilMs) return
  const { violation, steps } = await run(drawPlan(seed, options), { untilMs })
  expect(violation).toBeNull()
  expect(steps).toBeGreaterThan(0)
  soundMs.set(plan, untilMs)
}

beforeAll(signAtOnce)

describe('each deliberate defect is found', () => {
  for (const { name, is } of DEFECTS) {
    test(`${name}: ${is}`, { timeout: 600_000 }, async () => {
      const seed = KNOWN[name]
      if (seed === undefined) throw noLongerFound(name, seed)
      const options = withNeeds(OPTIONS, name)
      const { steps, violation } = await run(drawPlan(seed, options), { defect: defectNamed(name) })
      if (violation === null) throw noLongerFound(name, seed)
      await expectSound(seed, options, violation.at + 1)
      found.push(
        `| ${name.padEnd(33)} | ${String(seed).padStart(4)} | ${String(steps).padStart(6)} | ${violation.invariant.padEnd(9)} |`,
      )
    })
  }

  afterAll(() => {
    const head = `| ${'Defect'.padEnd(33)} | Seed | Steps  | Promise   |`
    process.stdout.write(`\n${[head, ...found].join('\n')}\n`)
  })
})
