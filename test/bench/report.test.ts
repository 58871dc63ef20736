import { describe, expect, test } from 'vitest'
import { median, quantile } from '../../bench/load/latency.ts'
import { parseOptions } from '../../bench/options.ts'
import { linesOf, reportText } from '../../bench/report.ts'
import type { Measurement, Results } from '../../bench/rounds.ts'
import { markdown, table } from '../../bench/table.ts'

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
    ...measured('floor (net)', [100, 1000, 100]),
    ...measured('redis', [50, 500, 50]),
  ],
  accounts: [account('agent', 90, 120), account('floor (net)', 45, 48)],
})

const conditions = {
  processors: '2 x test',
  node: '26',
  sqlite: '3',
  peers: ['redis 7', 'cerbos is not installed'],
  storage: { fileSystem: 'ext4', device: '/dev/test', appendMs: 0.2, overwriteMs: 0.1 },
  rounds: 3,
  seconds: 2,
  bodies: 'unique',
  entryBytes: 500,
  othersBusy: 0.1,
}

describe('lines', () => {
  test('ratios are taken within a round, so that a slow round slows both', () => {
    const [agent] = linesOf(results([70, 700, 70]))
    expect(agent).toMatchObject({
      contender: 'agent',
      perSecond: 70,
      relative: { 'floor (net)': { perSecond: 0.7, p99: 1 }, redis: { perSecond: 1.4 } },
    })
  })

  test('nothing is compared with itself, or with what was not measured', () => {
    expect(linesOf({ measurements: measured('floor (net)', [1]) })).toMatchObject([{ relative: {} }])
  })
})

describe('text', () => {
  const report = (format: typeof table) => {
    const { accounts } = results([])
    return reportText(conditions, linesOf(results([70, 700, 70])), accounts, format)
  }

  test('shows for each wanted ratio whether it is reached, missed, or not measured', () => {
    const text = report(table)
    expect(text).toMatch(/^64 +agent +decisions\/s, of redis +at least 1.2 +1.40 +reached$/m)
    expect(text).toMatch(/^64 +agent +decisions\/s, of floor \(net\) +at least 0.8 +0.70 +missed$/m)
    expect(text).toMatch(/^64 +agent +p99, of redis +at most 1.2 +1.00 +reached$/m)
    expect(text).toMatch(/^64 +agent \(denials\) +decisions\/s, of agent +at least 1.3 +not measured$/m)
    expect(text).toContain('1,234 decisions acknowledged')
    expect(text).toMatch(/^agent +90 +120$/m)
    expect(text).toContain('redis 7, cerbos is not installed')
  })

  test('prints the same tables as Markdown', () => {
    const text = report(markdown)
    expect(text).toMatch(/^\| agent +\| +90 \| +120 \|$/m)
    expect(text).toMatch(/^\| -+ \| -+: \| -+: \|$/m)
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
      stacks: ['net', 'agent-socket'],
      bodies: 'unique',
      format: 'text',
    })
  })

  test.each([
    [['--connections', '1,many'], /--connections takes a whole number/],
    [['--rounds', '0'], /--rounds takes a whole number/],
    [['--seconds', '0'], /--seconds takes a number/],
    [['--floor', 'apache'], /--floor takes agent-socket/],
    [['--bodies', 'some'], /--bodies takes unique or repeated/],
    [['--fast'], /--fast/],
  ])('%j is refused in one line', (args, message) => {
    expect(() => parseOptions(args)).toThrow(message)
  })
})
