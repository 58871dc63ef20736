/**
 * Random scenarios for the properties of a decision. The values come from small sets that sit on the edges of the rules:
 * instants on, before and after every boundary, charges around a half of a micro-token, rooms that just suffice or just do
 * not, names that are keys of a prototype.
 */
import fc from '../../support/fast-check.ts'
import { type Decimal, type Micro, decimal } from '../../../src/core/pricing/amount.ts'
import type { AccountId } from '../../../src/core/accounts/account.ts'
import type { Mode } from '../../../src/core/rules/decide.ts'
import type {
  AccessRequest,
  ClockReading,
  RequestedItem,
  Requester,
  AvailableBalance,
  AvailableOf,
} from '../../../src/core/rules/decision.ts'
import type {
  Action,
  Condition,
  LineItem,
  NamedCondition,
  Period,
  Policy,
  RateTable,
  RatedItem,
} from '../../../src/core/rules/policy.ts'

export interface Scenario {
  readonly policy: Policy
  readonly request: AccessRequest
  readonly clock: ClockReading
  /** Every account draws one of them, always the same one: see {@link availableOf}. */
  readonly balances: readonly AvailableBalance[]
  readonly mode: Mode
}

/** Spreads accounts over a list of rooms; the same account always draws the same room. */
export function availableOf(balances: readonly AvailableBalance[]): AvailableOf {
  return (account) => {
    const balance = balances[drawOf(account, balances.length)]
    if (balance === undefined) throw new Error('a scenario has at least one room')
    return balance
  }
}

function drawOf(account: AccountId, choices: number): number {
  let sum = 7
  for (const letter of account) sum = (sum * 31 + (letter.codePointAt(0) ?? 0)) % 65_521
  return sum % choices
}

const NOW = 1_780_000_000_000
const HOUR = 3_600_000
const TWELVE_HOURS = 12 * HOUR

const offset = fc.constantFrom(
  ...[-48 * HOUR, -TWELVE_HOURS - 1, -TWELVE_HOURS, -TWELVE_HOURS + 1, -HOUR, -2, -1, 0],
  ...[1, 2, HOUR, TWELVE_HOURS - 1, TWELVE_HOURS, TWELVE_HOURS + 1, 48 * HOUR],
)
const instant = offset.map((ms) => NOW + ms)

const PROPERTIES = [
  'department',
  'department',
  'department',
  'p',
  '',
  '__proto__',
  'constructor',
  'hasOwnProperty',
] as const
const VALUES = ['a', 'a', 'a', 'A', 'b', '', '1', '1.5', 'true', 'null', 'é', 'e\u0301'] as const
const CONDITION_IDS = ['c0', 'c1', 'c2', '__proto__'] as const

const scalar = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom<unknown>(...VALUES) },
  { weight: 3, arbitrary: fc.constantFrom<unknown>(1, 1.5, 0, -1, 1e21, true, false, null) },
)
const dictionaryValue = fc.oneof(
  { weight: 6, arbitrary: scalar },
  { weight: 3, arbitrary: fc.array(scalar, { maxLength: 3 }) },
  { weight: 1, arbitrary: fc.constantFrom<unknown>({}, { a: 'a' }, [[]], [['a']], ['a', {}], [{}], [[], 'b']) },
)
/** Own keys only, whatever they are called; with and without a prototype. */
export const dictionary: fc.Arbitrary<Readonly<Record<string, unknown>>> = fc
  .tuple(fc.array(fc.tuple(fc.constantFrom(...PROPERTIES), dictionaryValue), { maxLength: 4 }), fc.boolean())
  .map(([entries, bare]) => {
    const record = Object.fromEntries(entries)
    if (bare) Object.setPrototypeOf(record, null)
    return record
  })

const nestedCondition = fc.letrec<{ condition: Condition }>((tie) => ({
  condition: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    {
      weight: 4,
      arbitrary: fc.record({
        operator: fc.constant('IN' as const),
        property: fc.constantFrom(...PROPERTIES),
        values: fc.array(fc.constantFrom(...VALUES), { minLength: 1, maxLength: 3 }),
      }),
    },
    { weight: 2, arbitrary: fc.record({ operator: fc.constant('NOT' as const), condition: tie('condition') }) },
    {
      weight: 3,
      arbitrary: fc.record({
        operator: fc.constantFrom('AND' as const, 'OR' as const),
        conditions: fc.oneof(
          { weight: 19, arbitrary: fc.array(tie('condition'), { minLength: 1, maxLength: 3 }) },
          { weight: 1, arbitrary: fc.constant([]) },
        ),
      }),
    },
  ),
})).condition

/** Mostly shallow; sometimes wrapped until it reaches or passes the deepest level that is evaluated. */
export const condition: fc.Arbitrary<Condition> = fc.oneof(
  { weight: 9, arbitrary: nestedCondition },
  {
    weight: 1,
    arbitrary: fc.tuple(nestedCondition, fc.integer({ min: 4, max: 11 }), fc.boolean()).map(([inner, layers, or]) => {
      let wrapped = inner
      for (let layer = 0; layer < layers; layer += 1) wrapped = { operator: 'NOT', condition: wrapped }
      const beside: Condition = { operator: 'IN', property: 'p', values: ['a'] }
      return or ? ({ operator: 'OR', conditions: [beside, wrapped] } as const) : wrapped
    }),
  },
)

const namedConditions: fc.Arbitrary<readonly NamedCondition[]> = fc
  .tuple(fc.subarray([...CONDITION_IDS], { minLength: 3 }), fc.array(condition, { minLength: 4, maxLength: 4 }))
  .map(([ids, bodies]) =>
    ids.flatMap((id, index): NamedCondition[] => {
      const body = bodies[index]
      return body === undefined ? [] : [{ id, name: null, ...body }]
    }),
  )

const actions: fc.Arbitrary<readonly Action[]> = fc
  .array(
    fc.record({
      conditionId: fc.oneof(
        { weight: 8, arbitrary: fc.constantFrom<string | null>(...CONDITION_IDS) },
        { weight: 4, arbitrary: fc.constant(null) },
        { weight: 1, arbitrary: fc.constant('constructor') },
      ),
      effect: fc.constantFrom('ALLOW' as const, 'ALLOW' as const, 'ALLOW' as const, 'DENY' as const),
      allocation: fc.constantFrom<Micro | null>(null, 1n, 5_000_000n, 5_000_000n),
    }),
    { maxLength: 3 },
  )
  .map((list) => list.map((action, index) => ({ ...action, id: `action ${index}`, name: null })))

/** An action that only some later entry could be: its ids do not meet those of {@link actions}. */
export const laterActions: fc.Arbitrary<readonly Action[]> = actions.map((list) =>
  list.map((action) => ({ ...action, id: `later ${action.id}` })),
)

/** Periods without gaps; they always cover every instant. */
const everyPeriod: fc.Arbitrary<readonly Period[]> = fc.uniqueArray(instant, { maxLength: 2 }).map((cuts) => {
  const edges = [null, ...cuts.sort((a, b) => a - b), null]
  return edges.slice(1).map((until, index) => ({ index, from: edges[index] ?? null, until }))
})
/** Like {@link everyPeriod}, but some know neither the beginning nor the end of time. */
const somePeriods = fc
  .tuple(everyPeriod, fc.constantFrom('all', 'all', 'all', 'all', 'no first', 'no last'))
  .map(([periods, cut]) =>
    periods.length === 1 || cut === 'all' ? periods : cut === 'no first' ? periods.slice(1) : periods.slice(0, -1),
  )

const window = fc.oneof(
  {
    weight: 9,
    arbitrary: fc
      .tuple(
        fc.constantFrom(-48 * HOUR, -48 * HOUR, -TWELVE_HOURS - 1, -HOUR, 0),
        fc.constantFrom(0, HOUR, TWELVE_HOURS + 1, 48 * HOUR, 48 * HOUR),
      )
      .map(([start, end]) => ({ startsAt: NOW + start, endsAt: NOW + end })),
  },
  {
    weight: 3,
    arbitrary: fc.tuple(instant, instant).map(([a, b]) => ({ startsAt: Math.min(a, b), endsAt: Math.max(a, b) })),
  },
)

const SERIES = ['', '', '', '', 'gold', 'gold', '__proto__', 'constructor'] as const
const LINE_ITEM_IDS = ['a', 'B', 'b', '9', '10', 'a/b', 'a%2Fb', '\u{1F600}', '\uFF5E', '__proto__'] as const

const lineItemBody = fc
  .record({
    state: fc.oneof(
      { weight: 12, arbitrary: fc.constant('DEPLOYED' as const) },
      { weight: 1, arbitrary: fc.constantFrom('INACTIVE' as const, 'OBSOLETE' as const) },
    ),
    elastic: fc.oneof({ weight: 12, arbitrary: fc.constant(true) }, { weight: 1, arbitrary: fc.constant(false) }),
    rateTableSeries: fc.constantFrom(...SERIES),
    window,
    periods: somePeriods,
    actions: fc.oneof({ weight: 1, arbitrary: fc.constant([]) }, { weight: 3, arbitrary: actions }),
    consumptionLimit: fc.option(fc.record({ limit: fc.constant(5_000_000n), periods: somePeriods }), { freq: 2 }),
  })
  .map(({ window: { startsAt, endsAt }, ...rest }) => ({ ...rest, startsAt, endsAt, quantity: 10n, overdraft: 0n }))

/** Up to one line item for each id, in any order. */
export const lineItems = (ids: readonly string[]): fc.Arbitrary<readonly LineItem[]> =>
  fc
    .tuple(
      fc.shuffledSubarray([...ids], { minLength: Math.min(5, ids.length) }),
      fc.array(lineItemBody, { maxLength: 5, size: 'max' }),
    )
    .map(([chosen, bodies]) =>
      bodies.flatMap((body, index): LineItem[] => {
        const id = chosen[index]
        return id === undefined ? [] : [{ id, ...body }]
      }),
    )

const RATES = [
  '0',
  '0.0000001',
  '0.0000005',
  '0.000001',
  '0.0000015',
  '0.0000030',
  '0.3',
  '1',
  '1.0',
  '2.5',
  '7',
] as const
const COUNTS = ['1', '2', '3', '0.5', '1.5', '2.50', '3.5', '7', '10', '0.333', '1000001'] as const
const ITEMS = [
  { name: 'scan', version: '' },
  { name: 'scan', version: '1.0' },
  { name: 'scan', version: '1' },
  { name: '__proto__', version: 'constructor' },
] as const

const FORMULAS = ['2', 'price * 2', 'PRICE / 3', 'size - price', 'ROUND(1 / price, 2)', 'MAX(price, 1) ^ size'] as const

const rate = fc.constantFrom(...RATES).map((text) => decimal(text))
const price: fc.Arbitrary<{ readonly rate: Decimal } | { readonly formula: string }> = fc.oneof(
  { weight: 3, arbitrary: rate.map((one) => ({ rate: one })) },
  { weight: 1, arbitrary: fc.constantFrom(...FORMULAS).map((formula) => ({ formula })) },
)
const ratedItems: fc.Arbitrary<readonly RatedItem[]> = fc
  .tuple(
    fc.oneof({ weight: 2, arbitrary: fc.constant([...ITEMS]) }, { weight: 1, arbitrary: fc.subarray([...ITEMS]) }),
    fc.array(price, { minLength: ITEMS.length, maxLength: ITEMS.length }),
  )
  .map(([items, prices]) =>
    items.flatMap((item, index): RatedItem[] => {
      const one = prices[index]
      return one === undefined ? [] : [{ ...item, ...one }]
    }),
  )

export const rateTable: fc.Arbitrary<RateTable> = fc.record({
  series: fc.constantFrom(...SERIES),
  version: fc.constantFrom('1', '2'),
  effectiveFrom: fc.oneof({ weight: 3, arbitrary: fc.constant(NOW - 48 * HOUR) }, { weight: 1, arbitrary: instant }),
  items: ratedItems,
})

const policy: fc.Arbitrary<Policy> = fc.record({
  instanceId: fc.constant('an instance'),
  revision: fc.constant(1),
  lineItems: lineItems(LINE_ITEM_IDS),
  conditions: namedConditions,
  rateTables: fc
    .tuple(
      rateTable.map((table) => ({ ...table, series: '' })),
      fc.array(rateTable, { maxLength: 4 }),
      fc.integer({ min: 0, max: 4 }),
    )
    .map(([plain, others, place]) => others.toSpliced(place, 0, plain)),
  timezoneTolerant: fc.boolean(),
  undecidedClock: fc.constantFrom('allow' as const, 'refuse' as const),
})

const requester: fc.Arbitrary<Requester> = fc.record({
  type: fc.constantFrom('user', 'a/b'),
  value: fc.constantFrom('Lisa', 'b/c', '%2F', ''),
  dictionary,
})

const requestedItem = fc
  .record({
    item: fc.oneof(
      { weight: 9, arbitrary: fc.constantFrom(...ITEMS) },
      { weight: 1, arbitrary: fc.constant({ name: 'constructor', version: '' }) },
    ),
    count: fc.constantFrom(...COUNTS),
    variables: fc.option(
      fc.uniqueArray(fc.tuple(fc.constantFrom('price', 'size'), fc.constantFrom('0', '1', '1.5', '3', '-2')), {
        selector: ([name]) => name,
      }),
      { nil: undefined },
    ),
  })
  .map(({ item, count, variables }): RequestedItem => ({
    ...item,
    count: decimal(count),
    ...(variables === undefined ? {} : { variables: new Map(variables.map(([name, text]) => [name, decimal(text)])) }),
  }))

const request = (maxItems: number): fc.Arbitrary<AccessRequest> =>
  fc.record({ requester, items: fc.array(requestedItem, { minLength: 1, maxLength: maxItems }) })

const clock: fc.Arbitrary<ClockReading> = fc
  .tuple(
    fc.oneof(
      { weight: 4, arbitrary: fc.constant(0) },
      {
        weight: 1,
        arbitrary: fc.constantFrom(-1, 1, TWELVE_HOURS, -TWELVE_HOURS, TWELVE_HOURS + 1, -TWELVE_HOURS - 1),
      },
    ),
    fc.constantFrom(0, 0, 1, HOUR, TWELVE_HOURS),
    fc.constantFrom(0, 0, 1, HOUR, TWELVE_HOURS, null),
    fc.boolean(),
  )
  .map(([at, before, after, sure]) => {
    const now = NOW + at
    if (sure) return { now, earliest: now, latest: now }
    return { now, earliest: now - before, latest: after === null ? null : now + after }
  })

const left: fc.Arbitrary<AvailableBalance['left']> = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom(0n, 1n, 2n, 3n, 4n, 5n, 10n) },
  { weight: 4, arbitrary: fc.constantFrom(300_000n, 1_000_000n, 2_500_000n, 7_000_000n, 70_000_000n) },
  { weight: 2, arbitrary: fc.bigInt({ min: 0n, max: 20_000_000n }) },
  { weight: 1, arbitrary: fc.constantFrom(-1n, -2_000_000n) },
  { weight: 2, arbitrary: fc.constant('UNLIMITED' as const) },
)

const balances: fc.Arbitrary<readonly AvailableBalance[]> = fc.array(
  fc.record({
    left,
    shortage: fc.constantFrom(
      'POOL' as const,
      'POOL' as const,
      'GRANT' as const,
      'GRANT_EXPIRED' as const,
      'DEVICE_REFUSED' as const,
      'RECOVERY' as const,
      'COUNTER' as const,
    ),
  }),
  { minLength: 1, maxLength: 8 },
)

const mode: fc.Arbitrary<Mode> = fc.constantFrom('BEST_EFFORT', 'ALL_OR_NOTHING')

/** Anything may be in the way: tables, states, windows, clocks, rules. */
const anyScenario = (maxItems: number): fc.Arbitrary<Scenario> =>
  fc.record({ policy, request: request(maxItems), clock, balances, mode })

/** Everything is rated, open and in effect, so that rules and rooms alone decide. */
const openScenario = (maxItems: number): fc.Arbitrary<Scenario> =>
  fc
    .tuple(anyScenario(maxItems), fc.array(rate, { minLength: 8, maxLength: 8 }))
    .map(([{ policy, ...rest }, rates]) => {
      const always = [{ index: 0, from: null, until: null }]
      const lineItems = policy.lineItems.map((item): LineItem => ({
        ...item,
        state: 'DEPLOYED',
        elastic: true,
        rateTableSeries: item.rateTableSeries === '' ? '' : 'gold',
        startsAt: NOW - 48 * HOUR + (item.startsAt % 2),
        endsAt: NOW + 48 * HOUR + (item.endsAt % 2),
        periods: always,
        consumptionLimit: item.consumptionLimit === null ? null : { ...item.consumptionLimit, periods: always },
      }))
      const tableOf = (series: string, from: number): RateTable => {
        const items = ITEMS.map((item, index) => ({ ...item, rate: rates[from + index] ?? decimal('1') }))
        return { series, version: '1', effectiveFrom: NOW - 48 * HOUR, items }
      }
      const rateTables = [tableOf('', 0), tableOf('gold', 4)]
      return { ...rest, clock: { now: NOW, earliest: NOW, latest: NOW }, policy: { ...policy, lineItems, rateTables } }
    })

export const scenario = (maxItems = 3): fc.Arbitrary<Scenario> =>
  fc.oneof(anyScenario(maxItems), openScenario(maxItems))
