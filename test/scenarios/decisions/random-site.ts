// Random rules of an instance, and what programs, administrators and time do to it.
import fc from '../../support/fast-check.ts'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

export const LINE_ITEMS = ['A', 'B', 'C'] as const
export type LineItemId = (typeof LINE_ITEMS)[number]
export const REQUESTERS = ['ada', 'né', 'ne\u0301', '%2F', '']

export type Json = Readonly<Record<string, unknown>>

const property = fc.constantFrom('tier', '__proto__', 'né', 'ne\u0301', 'n')
const value = fc.constantFrom('gold', 'true', '1', '1e+21', '', 'né', 'ne\u0301')

const condition = fc.letrec<{ node: Json }>((tie) => ({
  node: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.record({
      operator: fc.constant('IN'),
      property,
      values: fc.array(value, { minLength: 1, maxLength: 3 }),
    }),
    fc.record({ operator: fc.constant('NOT'), condition: tie('node') }),
    fc.record({
      operator: fc.constantFrom('AND', 'OR'),
      conditions: fc.array(tie('node'), { minLength: 1, maxLength: 3 }),
    }),
  ),
})).node

const held = fc.oneof(
  value,
  fc.constantFrom<unknown[]>(1, 1e21, 0.1, true, false, null, {}, [], ['gold', null], [{}], [['gold']], ['x', 1, true]),
)
/** JSON text: an object could not have the key `__proto__`, or a key twice. */
const dictionary = fc
  .array(fc.tuple(property, held), { maxLength: 3 })
  .map((entries) => `{${entries.map((pair) => pair.map((part) => JSON.stringify(part)).join(':')).join(',')}}`)

const rate = fc.constantFrom(0, 1, 1, 1, 0.3, 0.3, 2.5, 2.5, 1e-7, 0.000_000_5, 1e-40, 3.333_333_333_333_333, 1e6, 1e12)
const formula = fc.constantFrom('x', 'x/3', 'MAX(x, 2)', 'ROUND(x*1.5, 1) + y', 'POWER(x, 2)', '1/(x-1)', 'x - 2')
const price = fc.oneof({ weight: 3, arbitrary: fc.record({ rate }) }, fc.record({ formula }))
const series = fc.constantFrom('', '', '', '', 'S', '__proto__')

export interface TableDraw {
  readonly series: string
  readonly inMs: number
  readonly items: readonly (readonly [name: string, version: string, price: Json])[]
}
const table: fc.Arbitrary<TableDraw> = fc.record({
  series,
  inMs: fc.constantFrom(-2 * DAY, -DAY, 0, 1, HOUR, 30 * HOUR),
  items: fc.uniqueArray(fc.tuple(fc.constantFrom('Print', 'Print', 'Scan'), fc.constantFrom('', '', '1.0'), price), {
    minLength: 1,
    maxLength: 3,
    selector: ([name, version]) => `${name} ${version}`,
  }),
})

export interface LineDraw {
  readonly state: 'DEPLOYED' | 'INACTIVE'
  readonly elastic: boolean
  readonly quantity: number
  readonly overdraft: number | 'Unlimited' | null
  readonly reset: string
  readonly series: string
  readonly startsIn: number
  readonly lasts: number
}
const line: fc.Arbitrary<LineDraw> = fc.record({
  state: fc.constantFrom('DEPLOYED', 'DEPLOYED', 'DEPLOYED', 'DEPLOYED', 'INACTIVE'),
  elastic: fc.constantFrom(true, true, true, true, true, false),
  quantity: fc.constantFrom(0, 1, 10, 40, 40, 100, 9_223_372_036_854),
  overdraft: fc.constantFrom<LineDraw['overdraft'][]>(null, null, null, 5, 'Unlimited'),
  reset: fc.constantFrom('NONE', 'NONE', 'DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY'),
  series,
  startsIn: fc.constantFrom(-400 * DAY, -400 * DAY, -DAY - HOUR, -DAY, 0, 0, HOUR, 11 * HOUR, 13 * HOUR, DAY),
  lasts: fc.constantFrom(HOUR, 3 * DAY, 30 * DAY, 500 * DAY, 500 * DAY, 900 * DAY, 900 * DAY),
})

export interface ActionDraw {
  /** Index of a condition; null: the default action. */
  readonly condition: number | null
  readonly effect: 'ALLOW' | 'DENY'
  readonly allocation: number | null
}
const actions: fc.Arbitrary<readonly ActionDraw[]> = fc.array(
  fc.record({
    condition: fc.option(fc.nat(2), { freq: 3 }),
    effect: fc.constantFrom('ALLOW', 'ALLOW', 'DENY'),
    allocation: fc.constantFrom(null, 0, 0.5, 2, 7, 30),
  }),
  { maxLength: 3, size: '-1' },
)

export interface LimitDraw {
  readonly tokens: number
  readonly frequency: 'DAILY' | 'WEEKLY' | 'MONTHLY' | 'YEARLY'
  readonly resetInMs: number
}
const limit: fc.Arbitrary<LimitDraw> = fc.record({
  tokens: fc.constantFrom(0.000_001, 1, 4.5, 20, 50),
  frequency: fc.constantFrom('DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY'),
  resetInMs: fc.constantFrom(1, HOUR, DAY, 30 * DAY),
})

const items: fc.Arbitrary<Json[]> = fc.array(
  fc.record({
    item: fc.constantFrom('Print', 'Print', 'Print', 'Print', 'Print', 'Print', 'Scan', 'Copy'),
    version: fc.constantFrom(undefined, undefined, undefined, undefined, '', '', '1.0'),
    count: fc.constantFrom(1, 1, 2, 2, 0.1, 0.1, 3.3, 7, 12, 1e-6, 0.000_000_7, 1e9, 1e21),
    variables: fc.constantFrom(undefined, { x: 3 }, { X: 1.1, y: 0.2 }, { x: 1 }, { y: 1 }, { x: -5 }),
    metaData: fc.constantFrom(undefined, { job: 1 }),
  }),
  { minLength: 1, maxLength: 3, size: 'small' },
)
const one: fc.Arbitrary<Json[]> = fc
  .record({ item: fc.constantFrom('Print', 'Scan'), count: fc.constantFrom(1, 2, 0.1, 3.3, 0.000_000_7) })
  .map((item) => [item])

export interface RequestDraw {
  readonly requester: string
  readonly dictionary: string
  readonly items: readonly Json[]
}
const request = { requester: fc.constantFrom(...REQUESTERS), dictionary }

/** `session`: counts from the last opened ones. */
export type Operation =
  | ({ readonly kind: 'access'; readonly version: 'v1.0' | 'v1.1' } & RequestDraw)
  | ({ readonly kind: 'request'; readonly session: number; readonly keep: boolean } & RequestDraw)
  | { readonly kind: 'halt' | 'heartbeat' | 'close'; readonly session: number }
  | { readonly kind: 'command'; readonly session: number; readonly command: 'LOCK' | 'UNLOCK' | 'TERMINATE' }
  | { readonly kind: 'pass'; readonly ms: number }
  | { readonly kind: 'open' | 'restart' }
  | { readonly kind: 'line'; readonly lineItemId: LineItemId; readonly line: LineDraw }
  | { readonly kind: 'table'; readonly table: TableDraw }
  | { readonly kind: 'actions'; readonly lineItemId: LineItemId; readonly actions: readonly ActionDraw[] }
  | { readonly kind: 'limit'; readonly lineItemId: LineItemId; readonly limit: LimitDraw }
  | {
      readonly kind: 'configuration'
      readonly name: 'timezone.tolerant' | 'session.charge.period'
      readonly value: string
    }

const lineItemId = fc.constantFrom(...LINE_ITEMS)
const session = fc.nat(2)
const kind = <K extends Operation['kind']>(...names: K[]) => fc.constantFrom(...names)

export const operation: fc.Arbitrary<Operation> = fc.oneof(
  {
    weight: 10,
    arbitrary: fc.record({ kind: kind('access'), ...request, items, version: fc.constantFrom('v1.0', 'v1.1') }),
  },
  {
    weight: 14,
    arbitrary: fc.record({
      kind: kind('request'),
      session,
      ...request,
      items: fc.oneof(items, { weight: 3, arbitrary: one }),
      keep: fc.constantFrom(true, true, true, false),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: kind('halt', 'close'), session }) },
  { weight: 2, arbitrary: fc.record({ kind: kind('heartbeat'), session }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: kind('command'),
      session,
      command: fc.constantFrom('LOCK', 'UNLOCK', 'UNLOCK', 'TERMINATE'),
    }),
  },
  { weight: 4, arbitrary: fc.record({ kind: kind('open', 'restart') }) },
  {
    weight: 10,
    arbitrary: fc.record({
      kind: kind('pass'),
      ms: fc.constantFrom(
        ...[1, 1_000, 7 * MINUTE, 20 * MINUTE, 29 * MINUTE, 29 * MINUTE, HOUR - 1, HOUR, 61 * MINUTE],
        ...[5 * HOUR, 13 * HOUR, DAY, 30 * DAY],
      ),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: kind('line'), lineItemId, line }) },
  { weight: 1, arbitrary: fc.record({ kind: kind('table'), table }) },
  { weight: 2, arbitrary: fc.record({ kind: kind('actions'), lineItemId, actions }) },
  { weight: 1, arbitrary: fc.record({ kind: kind('limit'), lineItemId, limit }) },
  fc.record({
    kind: kind('configuration'),
    name: fc.constant('timezone.tolerant'),
    value: fc.constantFrom('true', 'false'),
  }),
  fc.record({
    kind: kind('configuration'),
    name: fc.constant('session.charge.period'),
    value: fc.constantFrom('PT10M', 'PT1H', 'PT24H'),
  }),
)

export interface SiteDraw {
  readonly tables: readonly TableDraw[]
  readonly lines: readonly LineDraw[]
  readonly conditions: readonly Json[]
  readonly actions: readonly (readonly ActionDraw[])[]
  readonly limits: readonly (LimitDraw | null)[]
}

const ofEach = <T>(arbitrary: fc.Arbitrary<T>): fc.Arbitrary<T[]> =>
  fc.array(arbitrary, { minLength: LINE_ITEMS.length, maxLength: LINE_ITEMS.length })

export const site: fc.Arbitrary<SiteDraw> = fc.record({
  tables: fc.array(table, { maxLength: 2 }),
  lines: ofEach(line),
  conditions: fc.array(condition, { minLength: 3, maxLength: 3 }),
  actions: ofEach(actions),
  limits: ofEach(fc.option(limit, { freq: 2 })),
})
