import { describe, expect, test } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../src/core/accounts/account.ts'
import type { AnsweredRequest } from '../../src/demo/play.ts'
import { reportJson, reportText } from '../../src/demo/report.ts'
import { compare, type DemoResult, type Ledger, type Ledgers, succeeded, wrongRefusals } from '../../src/demo/result.ts'

const instanceId = '64d2028c-ae87-4069-a624-66089d957ef9'
const line = lineAccount(instanceId, 'A', 0)
const action = actionAccount(instanceId, 'A', '0c1d8a1e-0000-4000-8000-000000000000')

const request = { at: '07:00:00', requester: 'laser-1', items: [] }
const charged = (lineItemId: string, micro: bigint): AnsweredRequest => ({
  request,
  repeats: 0,
  items: [{ outcome: 'GRANTED', must: undefined, charges: [{ lineItemId, micro }] }],
})
const refused = (
  outcome: AnsweredRequest['items'][number]['outcome'],
  must: AnsweredRequest['items'][number]['must'],
): AnsweredRequest => ({
  request,
  repeats: 1,
  items: [{ outcome, must, charges: [] }],
})

const ledgers = (changes: Partial<Ledgers> = {}): Ledgers => {
  const both: Ledger = new Map([
    [line, 3_000_001n],
    [action, 1_000_000n],
  ])
  const names = new Map([
    [line, 'A'],
    [action, 'Design budget'],
  ])
  return { device: both, cloud: both, service: both, exported: new Map([[line, 3_000_001n]]), names, ...changes }
}
const answered = [charged('A', 2_000_001n), charged('A', 1_000_000n)]

function result(changes: Partial<DemoResult> = {}): DemoResult {
  return {
    phases: [
      { name: 'morning', network: 'online', answered, ms: 1000 },
      { name: 'midday', network: 'cut off', answered: [refused('DENIED_BY_RULE', 'DENIED_BY_RULE')], ms: 500 },
    ],
    comparisons: compare(answered, ledgers()),
    wrong: [],
    alarms: 0,
    kills: 0,
    disturbances: new Map(),
    drainMs: 20,
    totalMs: 2500,
    directory: null,
    ...changes,
  }
}

test('equal books of all sides agree, line items and allocations', () => {
  const comparisons = compare(answered, ledgers())
  expect(comparisons).toEqual([
    {
      account: line,
      lineItemId: 'A',
      part: null,
      answered: 3_000_001n,
      device: 3_000_001n,
      cloud: 3_000_001n,
      service: 3_000_001n,
      exported: 3_000_001n,
      difference: 0n,
    },
    {
      account: action,
      lineItemId: 'A',
      part: 'Design budget',
      answered: null,
      device: 1_000_000n,
      cloud: 1_000_000n,
      service: 1_000_000n,
      exported: null,
      difference: 0n,
    },
  ])
  expect(succeeded({ comparisons, wrong: [], alarms: 0 })).toBe(true)
})

describe('one micro-token is a difference when it is', () => {
  const off: Ledger = new Map([
    [line, 3_000_000n],
    [action, 1_000_000n],
  ])
  test.each(['device', 'cloud', 'service', 'exported'] as const)('missing in the ledger of %s', (side) => {
    const comparisons = compare(answered, ledgers({ [side]: off }))
    expect(comparisons.map(({ difference }) => difference)).toEqual([1n, 0n])
    expect(succeeded({ comparisons, wrong: [], alarms: 0 })).toBe(false)
    expect(reportText(result({ comparisons })).join('\n')).toContain('THE LEDGERS DIFFER on A.')
  })

  test('not sent to an application', () => {
    expect(compare(answered.slice(1), ledgers())[0]!.difference).toBe(2_000_001n)
  })

  test('of an allocation', () => {
    const comparisons = compare(answered, ledgers({ cloud: new Map([[line, 3_000_001n]]) }))
    expect(comparisons.map(({ difference }) => difference)).toEqual([0n, 1_000_000n])
  })
})

test('what the applications of one requester received is compared with the account of its consumption limit', () => {
  const limit = limitAccount(instanceId, 'A', { type: 'device', value: 'laser-1' }, 0)
  const withLimit = (amount: bigint): Ledger => new Map([...ledgers().device, [limit, amount]])
  const both = { device: withLimit(3_000_001n), cloud: withLimit(3_000_001n) }
  const [, , own] = compare(answered, ledgers(both))
  expect(own).toMatchObject({ part: 'laser-1', answered: 3_000_001n, service: null, difference: 0n })
  const [, , lost] = compare(answered, ledgers({ ...both, cloud: withLimit(1n) }))
  expect(lost).toMatchObject({ difference: 3_000_000n })
})

test('reports an account of an impossible form', () => {
  expect(() => compare(answered, ledgers({ device: new Map([['line/x', 1n]]) }))).toThrow(
    'no account has the id line/x',
  )
})

test('tokens of a line item that no ledger knows are not passed over', () => {
  expect(() => compare([charged('B', 1n)], ledgers())).toThrow('no ledger has an account of B')
})

test('without any account there is nothing that agrees', () => {
  expect(succeeded({ comparisons: [], wrong: [], alarms: 0 })).toBe(false)
})

test('a request that was not refused as it had to be is wrong, and shown', () => {
  const wrong = wrongRefusals([refused('DENIED_BY_RULE', 'DENIED_BY_RULE'), refused('GRANTED', 'ITEM_NOT_RATED')])
  expect(wrong).toHaveLength(1)
  expect(succeeded(result({ wrong }))).toBe(false)
  expect(reportText(result({ wrong })).at(-1)).toBe('WRONG: 07:00:00 laser-1: GRANTED instead of ITEM_NOT_RATED')
})

test('the report counts by phase and reason, and ends with the conclusion', () => {
  expect(reportText(result({ kills: 2 }))).toEqual([
    'requested items            morning   midday  all day',
    '                            online  cut off',
    '────────────────────────────────────────────────────',
    'allowed                          2        0        2',
    'denied: by rule of access        0        1        1',
    'requests                         2        1        3',
    '',
    'tokens charged                 sent to   ledger of  ledger of  used in the     usage',
    '                          applications  the device  the cloud  service API    export  difference',
    '────────────────────────────────────────────────────────────────────────────────────────────────',
    'A                             3.000001    3.000001   3.000001     3.000001  3.000001           0',
    '  of which Design budget                         1          1            1                     0',
    '',
    'The ledgers agree to the micro-token, with the agent killed twice. 2.5 s in all.',
  ])
})

test('the JSON for programs holds exact amounts', () => {
  expect(JSON.parse(JSON.stringify(reportJson(result())))).toMatchObject({
    succeeded: true,
    phases: [
      { name: 'morning', requests: 2, outcomes: { GRANTED: 2 } },
      { repeats: 1, outcomes: { DENIED_BY_RULE: 1 } },
    ],
    accounts: [
      { account: line, answered: '3000001', device: '3000001', exported: '3000001', difference: '0' },
      { answered: null },
    ],
  })
})
