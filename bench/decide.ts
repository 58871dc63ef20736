/**
 * `node bench/decide.ts`: time of one decision among 10 and 10,000 irrelevant line items and items; the two should be
 * similar. Also shows compiling, and the first decision after a window opens or closes, which grow with the policy.
 */
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { compilePolicy } from '../src/core/rules/compile.ts'
import { decide } from '../src/core/rules/decide.ts'
import { exactly } from '../src/core/rules/decision.ts'
import { CROWD_NOW, crowdRequest, crowdBalances, crowdedPolicy } from './crowd.ts'

const USAGE = `node bench/decide.ts

Time of one decision among 10 and 10,000 line items and items that do not apply. Takes no arguments.
`

orUsage(USAGE, () => parseArgs())

const SIZES = [10, 10_000] as const
const ROUNDS = 15
const DECISIONS_PER_ROUND = 20_000

interface Cost {
  readonly size: number
  readonly compileMs: number
  readonly firstMs: number
  readonly decisionNs: number
}

const clock = exactly(CROWD_NOW)

function elapsed(work: () => void): number {
  const started = performance.now()
  work()
  return performance.now() - started
}

function prepare(size: number) {
  const policy = crowdedPolicy(size, size)
  let compiled = compilePolicy(policy)
  const compileMs = elapsed(() => (compiled = compilePolicy(policy)))
  const decideOnce = () => {
    const { items } = decide(compiled.at(clock), crowdRequest, crowdBalances, 'BEST_EFFORT')
    if (items[0]?.outcome !== 'GRANTED') throw new Error('the payer pays')
  }
  const firstMs = elapsed(decideOnce)
  return { size, compileMs, firstMs, decideOnce, rounds: [] as number[] }
}

function measure(): readonly Cost[] {
  const subjects = SIZES.map(prepare)
  // Alternate, so that disturbances affect both.
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const { decideOnce, rounds } of subjects) {
      const ms = elapsed(() => {
        for (let count = 0; count < DECISIONS_PER_ROUND; count += 1) decideOnce()
      })
      rounds.push((ms * 1e6) / DECISIONS_PER_ROUND)
    }
  }
  return subjects.map(({ rounds, ...cost }) => ({ ...cost, decisionNs: middle(rounds) }))
}

function middle(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0
}

const costs = measure()
console.table(
  costs.map(({ size, compileMs, firstMs, decisionNs }) => ({
    'line items and items that do not apply': size,
    'compile, ms': compileMs.toFixed(2),
    'first decision after a change, ms': firstMs.toFixed(3),
    'decision, ns': Math.round(decisionNs),
  })),
)
const [few, many] = costs
if (few !== undefined && many !== undefined) {
  console.log(`cost of a decision, ${many.size} to ${few.size}: ${(many.decisionNs / few.decisionNs).toFixed(2)}`)
}
