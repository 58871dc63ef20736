// Agent and twin as processes, killed under load and audited: a share of what `npm run crash` does, and the proof that the
// audit can fail.
import { expect, it } from 'vitest'
import { auditKills, type KillOptions } from '../../crash/kills.ts'
import { temporaryDirectory } from '../agent/harness.ts'

const LIMIT_MS = 120_000

const run = (options: Pick<KillOptions, 'kills' | 'seed'> & Partial<KillOptions>) =>
  auditKills({ directory: temporaryDirectory(), applications: 3, inFlight: 4, onProgress: () => undefined, ...options })

it(
  'agent and twin that are killed at any moment lose no answer, and bill each entry once',
  async () => {
    const report = await run({ kills: 5, seed: 6 })
    expect(report.kills).toBeGreaterThanOrEqual(5)
    expect(report.answered).toBeGreaterThanOrEqual(60)
    expect(report.entries).toBe(report.answered + report.recordedUnanswered)
    expect(report.billed).toBe(report.entries)
  },
  LIMIT_MS,
)

it(
  'the audit finds an agent that answers before the commit',
  async () => {
    const preload = [new URL('../../crash/defects/early-answers.ts', import.meta.url)]
    await expect(run({ kills: 200, seed: 3, launch: { preload } })).rejects.toThrow('is not in the ledger')
  },
  LIMIT_MS,
)
