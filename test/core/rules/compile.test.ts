// What a policy compiles to: periods, conditions that are missing, and the order in which line items are charged.
import { describe, expect, test } from 'vitest'
import { decimal } from '../../../src/core/pricing/amount.ts'
import { compilePolicy, danglingConditions, isIn, periodAt } from '../../../src/core/rules/compile.ts'
import { type ClockReading, REJECTION_DETAILS_MAX, exactly } from '../../../src/core/rules/decision.ts'
import { formulaRate } from '../../../src/core/pricing/formula-rate.ts'
import { type Action, type LineItem, type Policy, TOLERANCE_MS } from '../../../src/core/rules/policy.ts'

const item: LineItem = {
  id: 'a',
  state: 'DEPLOYED',
  elastic: true,
  rateTableSeries: '',
  startsAt: 0,
  endsAt: 1_000,
  quantity: 1n,
  overdraft: 0n,
  periods: [{ index: 0, from: null, until: null }],
  actions: [],
  consumptionLimit: null,
}

function policyOf(lineItems: readonly Partial<LineItem>[], changes: Partial<Policy> = {}): Policy {
  return {
    instanceId: 'i',
    revision: 1,
    lineItems: lineItems.map((each) => ({ ...item, ...each })),
    conditions: [],
    rateTables: [
      { series: '', version: '1', effectiveFrom: 0, items: [{ name: 'print', version: '', rate: decimal(1) }] },
    ],
    timezoneTolerant: false,
    undecidedClock: 'refuse',
    ...changes,
  }
}

function view(policy: Policy, clock: ClockReading, name = 'print') {
  const found = compilePolicy(policy).at(clock).item(name, '')
  return found.rated ? found : { candidates: [], rejectionDetails: [], refusedByClock: false }
}

const action = (id: string, conditionId: string | null): Action => {
  return { id, name: null, conditionId, effect: 'ALLOW', allocation: null }
}

test('conditions that actions name and the policy lacks are missing, each once', () => {
  const conditions = [{ id: 'here', name: null, operator: 'IN' as const, property: 'x', values: [] }]
  const lineItems = [
    { actions: [action('1', 'here'), action('2', null), action('3', 'gone')] },
    { id: 'b', actions: [action('4', 'gone'), action('5', 'lost')] },
  ]
  expect(danglingConditions(policyOf(lineItems, { conditions }))).toEqual(['gone', 'lost'])
  expect(danglingConditions(policyOf([{ actions: [action('1', 'here')] }], { conditions }))).toEqual([])
})

test.each([
  [null, null, 5, true],
  [5, null, 5, true],
  [6, null, 5, false],
  [null, 6, 5, true],
  [null, 5, 5, false],
])('a period from %s until %s holds %d: %s', (from, until, now, holds) => {
  expect(isIn({ index: 0, from, until }, now)).toBe(holds)
  expect(periodAt([{ index: 7, from, until }], now)?.index).toBe(holds ? 7 : undefined)
})

test.each([true, false])('earlier decisions do not change a decision (tolerant: %s)', (timezoneTolerant) => {
  const periods = [
    { index: 0, from: null, until: 300 },
    { index: 1, from: 300, until: null },
  ]
  const limitPeriods = [
    { index: 0, from: 150, until: 200 },
    { index: 1, from: 400, until: 450 },
  ]
  const lineItems = [
    { startsAt: 100, endsAt: 500, periods },
    { id: 'b', consumptionLimit: { limit: 1n, periods: limitPeriods } },
  ]
  const rateTables = policyOf([]).rateTables.map((table) => ({ ...table, effectiveFrom: -2 * TOLERANCE_MS }))
  const policy = policyOf(lineItems, { timezoneTolerant, rateTables })
  const asked = compilePolicy(policy)
  const instants = [0, 100, 150, 200, 300, 400, 450, 501, 1_001]
  for (const instant of instants.flatMap((each) => [each - TOLERANCE_MS, each, each + TOLERANCE_MS])) {
    for (const now of [instant - 1, instant]) {
      const found = asked.at(exactly(now)).item('print', '')
      expect(found).toEqual(compilePolicy(policy).at(exactly(now)).item('print', ''))
    }
  }
})

test('line items are charged by earliest end, then earliest start, then id', () => {
  const lineItems = [
    { id: 'late', endsAt: 900 },
    { id: 'z', startsAt: 10, endsAt: 800 },
    { id: 'y', startsAt: 20, endsAt: 800 },
    { id: 'x', startsAt: 20, endsAt: 800 },
    { id: 'w', startsAt: 30, endsAt: 700 },
  ]
  const ids = (all: readonly Partial<LineItem>[]): readonly string[] =>
    view(policyOf(all), exactly(500)).candidates.map(({ lineItem }) => lineItem.id)
  expect(ids(lineItems)).toEqual(['w', 'z', 'x', 'y', 'late'])
  expect(ids(lineItems.toReversed())).toEqual(['w', 'z', 'x', 'y', 'late'])
})

describe('a line item that cannot be used', () => {
  const clock = { now: 500, earliest: 490, latest: 510 }
  test.each<[string, Partial<LineItem>, ClockReading]>([
    ['NOT_ELASTIC', { elastic: false }, clock],
    ['NOT_DEPLOYED', { state: 'INACTIVE' }, clock],
    ['NOT_STARTED', { startsAt: 511 }, clock],
    ['ENDED', { endsAt: 489 }, clock],
    ['NO_PERIOD', { periods: [{ index: 0, from: null, until: 500 }] }, clock],
    ['NO_PERIOD', { consumptionLimit: { limit: 1n, periods: [{ index: 0, from: 501, until: null }] } }, clock],
    ['CLOCK_UNDECIDED', { startsAt: 510 }, clock],
    ['CLOCK_UNDECIDED', { endsAt: 490 }, clock],
    ['CLOCK_UNDECIDED', {}, { ...clock, latest: null }],
  ])('says %s', (why, changes, reading) => {
    const { candidates, rejectionDetails, refusedByClock } = view(policyOf([changes]), reading)
    expect([candidates, rejectionDetails]).toEqual([[], [{ lineItemId: 'a', why }]])
    expect(refusedByClock).toBe(why === 'CLOCK_UNDECIDED')
  })

  test('says that another series rates the item, or that its series has no table in effect', () => {
    const lineItems = [
      { id: 'ended', endsAt: 1 },
      { id: 'other', rateTableSeries: 'other' },
      { id: 'none', rateTableSeries: 'none' },
    ]
    const rated = policyOf([]).rateTables
    const other = { series: 'other', version: '1', effectiveFrom: 0, items: [] }
    const later = { series: 'none', version: '1', effectiveFrom: 501, items: [] }
    const policy = policyOf(lineItems, { rateTables: [...rated, other, later] })
    expect(view(policy, exactly(500)).rejectionDetails).toEqual([
      { lineItemId: 'ended', why: 'ENDED' },
      { lineItemId: 'none', why: 'SERIES_HAS_NO_TABLE' },
      { lineItemId: 'other', why: 'SERIES_DOES_NOT_RATE_ITEM' },
    ])
  })
})

test('line items of all series together are named up to a limit', () => {
  const lineItems = Array.from({ length: 20 }, (_, index) => {
    return { id: `l${index}`, endsAt: 1, rateTableSeries: index < 10 ? '' : 'none' }
  })
  const { rejectionDetails } = view(policyOf(lineItems), exactly(500))
  expect(rejectionDetails.map(({ why }) => why)).toEqual([
    ...Array<string>(10).fill('ENDED'),
    ...Array<string>(REJECTION_DETAILS_MAX - 10).fill('SERIES_HAS_NO_TABLE'),
  ])
})

test('of two rates for one item in a table the first counts', () => {
  const items = ['1', '2'].map((rate) => ({ name: 'print', version: '', rate: decimal(rate) }))
  const policy = policyOf([{}], { rateTables: [{ series: '', version: '1', effectiveFrom: 0, items }] })
  expect(view(policy, exactly(500)).candidates[0]?.rate).toMatchObject({ kind: 'FIXED', rate: decimal('1') })
})

test('a formula that cannot be read has no rate', () => {
  const items = [{ name: 'print', version: '', formula: '1 +' }]
  const policy = policyOf([{}], { rateTables: [{ series: '', version: '1', effectiveFrom: 0, items }] })
  const rate = view(policy, exactly(500)).candidates[0]?.rate
  expect(rate?.kind === 'FORMULA' && formulaRate(rate.expression)).toBe('FORMULA_DIVIDES_BY_ZERO')
})

test('a clock that moves back and forth over many changes always gets the rules of its time', () => {
  const periods = Array.from({ length: 40 }, (_, index) => ({ index, from: index * 10, until: index * 10 + 10 }))
  const compiled = compilePolicy(policyOf([{ periods }]))
  for (const now of [...periods.keys(), ...[...periods.keys()].reverse(), 0, 39, 1, 38]) {
    const found = compiled.at(exactly(now * 10 + 9)).item('print', '')
    expect(found.rated && found.candidates[0]?.lineAccount).toBe(`line/i/a/${now}`)
  }
})
