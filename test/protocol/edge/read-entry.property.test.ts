// The fast reader reads everything that agents write, and nothing that the schema refuses or reads otherwise.
import fc from '../../support/fast-check.ts'
import { expect, it } from 'vitest'
import { EntryReader } from '../../../src/protocol/edge/read-entry.ts'
import { entryBody } from '../../../src/protocol/edge/sync.ts'
import { SESSION_EVENTS } from '../../../src/protocol/edge/sessions.ts'

const micro = fc.bigInt({ min: 0n, max: 10n ** 18n - 1n }).map(String)
const instant = fc.integer({ min: 0, max: 253_402_300_799_999 })
const plain = fc.string({ unit: 'grapheme', maxLength: 15 }).filter((text) => !text.includes('\u0000'))
const count = fc.constantFrom('0', '1', '0.5', '12e3')
const text = fc.string({ maxLength: 64 }).filter((name) => name !== '__proto__')
const part = fc.record({ lineItemId: plain, rate: text, actionId: fc.option(plain), charged: micro })

const item = fc.record(
  {
    item: plain,
    version: plain,
    count,
    outcome: plain,
    total: micro,
    parts: fc.array(part, { maxLength: 3 }),
    variables: fc.dictionary(text, text, { noNullPrototype: true }),
    metaData: fc.dictionary(text, fc.string(), { noNullPrototype: true }),
  },
  { requiredKeys: ['item', 'version', 'count', 'outcome', 'total', 'parts'] },
)

const posting = fc.record(
  { account: fc.string({ minLength: 1, maxLength: 100 }), amount: micro, aboveGrant: micro },
  { requiredKeys: ['account', 'amount'] },
)

/** In the sequence in which agents write it. */
const fields = {
  n: fc.integer({ min: 1, max: 2 ** 40 }),
  kind: fc.constantFrom('access', 'refund', 'session', 'burn'),
  at: instant,
  earliest: instant,
  latest: fc.option(instant),
  instanceId: fc.uuid(),
  policyRevision: fc.integer({ min: 1 }),
  engine: fc.integer({ min: 1, max: 1_000_000 }),
  correlationId: fc.uuid(),
  session: fc.record({ id: fc.uuid(), event: fc.constantFrom(...SESSION_EVENTS) }),
  requester: fc.record({ type: plain, value: plain }),
  items: fc.array(item, { maxLength: 3 }),
  postings: fc.array(posting, { maxLength: 3 }),
}

const { session: _optional, ...required } = fields

const entry = fc.record(fields, { requiredKeys: Object.keys(required) as (keyof typeof required)[] })

const copy = (value: unknown): unknown => JSON.parse(JSON.stringify(value))

it('reads every entry as the schema does', () => {
  fc.assert(
    fc.property(entry, (value) => {
      expect(new EntryReader().read(JSON.stringify(value))).toEqual(entryBody.parse(copy(value)))
    }),
  )
})

/** All places in a value but the whole. */
function placesIn(value: unknown, path: readonly string[] = []): readonly (readonly string[])[] {
  const below = typeof value === 'object' && value !== null ? Object.entries(value) : []
  return below.flatMap(([key, each]) => [[...path, key], ...placesIn(each, [...path, key])])
}

const WRONG: readonly unknown[] = [
  ...[undefined, null, true, 0, -1, 1.5, 2 ** 53, 253_402_300_800_000, 1_000_001, '', '01', '-1', '1e3', [], {}, [1]],
  ...['9223372036854775807', '9223372036854775808', 'a\u0000', '\uD800', 'ABCDEF01-2345-6789-ABCD-EF0123456789'],
  ...[65, 101, 257, 1_025, 2_049].map((length) => 'x'.repeat(length)),
  JSON.parse('{"__proto__":"1","a":"b"}') as unknown,
]

it('reads nothing that the schema refuses, whatever is changed, removed or added at any place', () => {
  fc.assert(
    fc.property(entry, fc.nat(), fc.constantFrom(...WRONG), fc.boolean(), (value, at, other, isAdded) => {
      const changed = copy(value) as Record<string, unknown>
      const places = placesIn(changed)
      const path = places[at % places.length] ?? ['n']
      let owner = changed
      for (const key of path.slice(0, -1)) owner = owner[key] as Record<string, unknown>
      const key = path.at(-1) ?? ''
      owner[isAdded && !Array.isArray(owner) ? `${key}2` : key] = other
      const written = JSON.stringify(changed)
      const read = new EntryReader().read(written)
      const schema = entryBody.safeParse(JSON.parse(written))
      if (read !== undefined) expect(schema).toEqual({ success: true, data: read })
    }),
    { numRuns: 2_000 },
  )
})

it('reads the texts of one device with their shared parts', () => {
  fc.assert(
    fc.property(fc.array(entry), entry, (values, { items, postings }) => {
      const reader = new EntryReader()
      for (const value of [...values, ...values.map((each) => ({ ...each, items, postings }))]) {
        expect(reader.read(JSON.stringify(value))).toEqual(entryBody.parse(copy(value)))
      }
    }),
  )
})

it('reads nothing that is not JSON, or has fields in another place or more of them', () => {
  const { session: _any, ...value } = fc.sample(entry, { numRuns: 1, seed: 1 })[0] as Record<string, unknown>
  const written = JSON.stringify(value)
  const read = (text: string) => new EntryReader().read(text)
  expect(read(written)).toBeDefined()
  const { postings, ...rest } = value
  const others = [
    ...[`${written} `, `${written.slice(0, -1)}]`, written.slice(0, -1), `${written}}`, ` ${written}`, '', '{}'],
    written.replace('"n":', '"n":0'),
    written.replace('"at":', '"at": '),
    written.replace('"kind"', '"n":7,"kind"'),
    written.replace('"items":[', '"n":7,"items":['),
    written.replace('"requester":', '"place":{"requester":').replace(',"items":', '},"items":'),
    written.replace('"instanceId":', '"place":{"instanceId":').replace(',"correlationId":', '},"correlationId":'),
    written.replace('"instanceId":', '"place":{"instanceId":').replace(/\}$/, '}}'),
    written.replace(/"correlationId":"[^"]*",/, '"correlationId":"x",'),
    JSON.stringify({ postings, ...rest }),
    JSON.stringify({ ...value, session: { id: value['correlationId'], event: 'OPENED' } }),
    JSON.stringify({ ...value, metaData: {} }),
    `{"__proto__":{},${written.slice(1)}`,
    written.replace('"requester":', '"__proto__":{},"requester":'),
  ]
  for (const text of others) expect(read(text), text).toBeUndefined()
})

it('leaves a count that is no decimal to the schema', () => {
  const value = fc.sample(entry, { numRuns: 1, seed: 1 })[0]
  for (const wrong of ['', '-1', 'x', '1e9999']) {
    const items = [{ item: 'a', version: 'b', count: wrong, outcome: 'c', total: '0', parts: [] }]
    expect(new EntryReader().read(JSON.stringify({ ...value, items })), wrong).toBeUndefined()
  }
})
