import { describe, expect, test } from 'vitest'
import { median, quantile } from '../../bench/load/latency.ts'
import { parseOptions } from '../../bench/options.ts'
import { linesOf, reportText } from '../../bench/report.ts'
import type { Measurement, Results } from '../../bench/rounds.ts'

const names = { floor: 'floor', redis: 'redis', agent: 'agent' }

function measured(contender: string, perSecond: readonly number[]): Measurement[] {
  return perSecond.map((figure, index) => ({
    contender,
    connections: 64,
    round: index + 1,
    acknowledged: figure,
    perSecond: figure,
    latency: { p50: 1, p99: 2, max: 3 },
    busy: 0.3,
    serverBusy: 1,
    othersBusy: 0,
  }))
}

const account = (contender: string, atRest: number, underLoad: number) => ({
  ...{ contender, round: 1, acknowledged: 617, recorded: 617 },
  memory: { atRest: atRest * 2 ** 20, underLoad: underLoad * 2 ** 20 },
})

const results = (agent: readonly number[]): Results => ({
  measurements: [
    ...measured('agent', agent),
    ...measured('floor', [100, 1000, 100]),
    ...measured('redis', [50, 500, 50]),
  ],
  accounts: [account('agent', 90, 120), account('floor', 45, 48)],
})

const conditions = {
  processors: '2 x test',
  node: '26',
  sqlite: '3',
  redis: '7',
  storage: { fileSystem: 'ext4', device: '/dev/test', appendMs: 0.2, overwriteMs: 0.1 },
  rounds: 3,
  seconds: 2,
  othersBusy: 0.1,
}

describe('lines', () => {
  test('ratios are taken within a round, so that a slow round slows both', () => {
    const [agent] = linesOf(results([70, 700, 70]), names)
    expect(agent).toMatchObject({ contender: 'agent', perSecond: 70, toFloor: 0.7, toRedis: 1.4 })
  })

  test('nothing is compared with itself, or with what was not measured', () => {
    const lines = linesOf({ measurements: measured('floor', [1]), accounts: [] }, names)
    expect(lines).toMatchObject([{ toFloor: null, toRedis: null }])
  })
})

describe('text', () => {
  test('says which wanted ratio is reached and which is missed', () => {
    const { accounts } = results([])
    const text = reportText(conditions, linesOf(results([70, 700, 70]), names), accounts, names)
    expect(text).toContain('of redis: wanted 1.5, measured 1.40: missed')
    expect(text).toContain('of the floor: wanted 0.6, measured 0.70: reached')
    expect(text).toContain('1,234 debits acknowledged')
    expect(text).toMatch(/^agent +90 +2.00 +120 +2.50$/m)
    expect(text).toMatch(/^floor +45 +48 *$/m)
  })
})

test('quantiles are values that were measured', () => {
  expect(median([5, 1, 3])).toBe(3)
  expect(quantile([1, 2, 3, 4], 0.5)).toBe(2)
  expect(quantile([1, 2, 3, 4], 0.99)).toBe(4)
  expect(median([])).toBeNaN()
})

describe('options', () => {
  test('defaults', () => {
    expect(parseOptions([])).toMatchObject({
      connections: [1, 16, 64],
      seconds: 1.5,
      rounds: 5,
      stacks: ['agent-socket'],
    })
  })

  test.each([
    [['--connections', '1,many'], /--connections takes whole numbers/],
    [['--rounds', '0'], /--rounds takes whole numbers/],
    [['--seconds', '0'], /--seconds takes a number/],
    [['--floor', 'apache'], /--floor takes agent-socket/],
    [['--fast'], /--fast/],
  ])('%j is refused in one line', (args, message) => {
    expect(() => parseOptions(args)).toThrow(message)
  })
})
