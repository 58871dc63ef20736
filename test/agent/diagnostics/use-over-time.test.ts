import { expect, it } from 'vitest'
import { UseOverTime } from '../../../src/agent/diagnostics/use-over-time.ts'
import { actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { USE_BINS, USE_BIN_MS } from '../../../src/protocol/local/report.ts'
import { FakeTime } from '../sync/fake-time.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const LINE = lineAccount(INSTANCE, 'LW-ANNUAL', 0)
const ACTION = actionAccount(INSTANCE, 'LW-ANNUAL', '6b0f3f7e-30a5-4d2f-8d2f-1f1a3c4b5d6e')
const LIMIT = limitAccount(INSTANCE, 'LW-ANNUAL', { type: 'user', value: 'anna' }, 0)
const HOUR = 3_600_000

function device() {
  const time = new FakeTime()
  const use = new UseOverTime({ now: () => time.truth(), sinceBoot: () => time.sinceBoot() })
  return { time, use }
}

/** Bins that are not empty: how many bins before the last one, and what was charged. */
function told(use: UseOverTime): Readonly<Record<string, readonly (readonly [number, string])[]>> {
  const { accounts } = use.reading()
  return Object.fromEntries(
    accounts.map(({ account, charged }) => {
      expect(charged).toHaveLength(USE_BINS)
      const bins = charged.map((amount, at) => [USE_BINS - 1 - at, amount] as const)
      return [account, bins.filter(([, amount]) => amount !== '0')]
    }),
  )
}

it('a charge is in the bin of its time for a day, and then is dropped', () => {
  const { time, use } = device()
  use.add([
    { account: LINE, amount: 3n },
    { account: ACTION, amount: 2n },
  ])
  time.advance(2 * HOUR)
  use.add([{ account: LINE, amount: 5n }])
  use.add([{ account: LINE, amount: 1n }])
  expect(told(use)).toEqual({
    [LINE]: [
      [4, '3'],
      [0, '6'],
    ],
    [ACTION]: [[4, '2']],
  })
  time.advance(23 * HOUR)
  expect(told(use)).toEqual({ [LINE]: [[46, '6']] })
  time.advance(2 * HOUR)
  expect(use.reading().accounts).toEqual([])
})

it('the last bin ends where the next begins, and all is known since the start', () => {
  const { time, use } = device()
  const start = time.truth()
  time.advance(USE_BIN_MS)
  const { until, since, binMs } = use.reading()
  expect([binMs, since]).toEqual([USE_BIN_MS, start])
  expect(until - time.truth()).toBeGreaterThan(0)
  expect(until - time.truth()).toBeLessThanOrEqual(USE_BIN_MS)
})

it('limits of single requesters are not kept: there may be any number', () => {
  const { use } = device()
  use.add([{ account: LIMIT, amount: 3n }])
  expect(use.reading().accounts).toEqual([])
})

it('accounts that are not used any more are removed, also without a reader', () => {
  const { time, use } = device()
  for (let period = 0; period < 100; period += 1) {
    use.add([{ account: lineAccount(INSTANCE, 'LW-DAILY', period), amount: 1n }])
    time.advance(25 * HOUR)
  }
  use.add([{ account: LINE, amount: 1n }])
  expect(use.reading().accounts.map(({ account }) => account)).toEqual([LINE])
})

it('a start reads earlier use from the ledger, also from before the boot, and claims no unknown use', () => {
  const { time, use } = device()
  const at = (ago: number) => time.truth() - ago
  const entry = (ago: number, amount: string, kind: 'access' | 'refund' | 'burn' = 'access') => {
    return { at: at(ago), kind, postings: [{ account: LINE, amount }] }
  }
  use.recall([
    entry(-HOUR, '1'),
    entry(HOUR, '2'),
    entry(5 * HOUR, '9', 'refund'),
    entry(5 * HOUR, '9', 'burn'),
    entry(20 * HOUR, '4'),
  ])
  expect(told(use)).toEqual({
    [LINE]: [
      [40, '4'],
      [2, '2'],
      [0, '1'],
    ],
  })
  expect(use.reading().since).toBe(at(20 * HOUR))
  use.recall([entry(30 * HOUR, '7')])
  expect(told(use)[LINE]).toHaveLength(3)
})
