import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { accessRequestBody, plainAccessRequest, requestOf } from '../../../src/protocol/service/access-request.ts'

const text = fc.oneof(fc.constantFrom('', 'Print', 'a\u0000', 'é', '\ud800', ' '), fc.string({ maxLength: 8 }))
const longText = fc.constantFrom('x'.repeat(256), 'x'.repeat(257), '%'.repeat(255))
const count = fc.oneof(fc.constantFrom(0, -0, -1, 1, 1.5, 1e21, 1e-41, 1e400, '1', null), fc.integer(), fc.double())
const keys = fc.constantFrom('a', '__proto__', 'constructor', 'role')
const scalar = fc.oneof(text, count, fc.boolean())
const flat = fc.dictionary(keys, scalar, { noNullPrototype: true })
const nested = fc.dictionary(keys, fc.oneof(scalar, flat, fc.array(scalar, { maxLength: 2 })))
const unusual = fc.constantFrom(null, [], 'x', 7)

const item = fc.record(
  {
    item: fc.oneof(text, longText),
    version: fc.oneof(text, unusual),
    requestedVersion: text,
    count,
    metaData: fc.oneof(nested, flat, unusual),
    variables: fc.constant({ n: 1 }),
    other: text,
  },
  { requiredKeys: ['item', 'count'] },
)
const plainItem = fc.record(
  { item: fc.constant('Print'), version: fc.constant('1.0'), count: fc.integer({ min: 1 }), metaData: flat },
  { requiredKeys: ['item', 'count'] },
)
const plainRequester = fc.record({ type: fc.constant('user'), value: fc.constant('ada'), dictionary: flat })
const requester = fc.record(
  {
    type: fc.oneof(fc.constant('user'), text, longText),
    value: fc.oneof(fc.constant('ada'), text),
    dictionary: nested,
  },
  { requiredKeys: ['type', 'value'] },
)
const body = fc.record(
  {
    requester: fc.oneof({ weight: 4, arbitrary: plainRequester }, { weight: 4, arbitrary: requester }, unusual),
    requestedItems: fc.oneof(
      { weight: 9, arbitrary: fc.array(fc.oneof(item, plainItem, plainItem), { maxLength: 3 }) },
      unusual,
    ),
  },
  { requiredKeys: ['requester', 'requestedItems'] },
)

/** As they arrive: own keys, `__proto__` included, and no prototype of their own. */
function received(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value)) as unknown
}

describe('a plain access request', () => {
  it('is read exactly as the schema of each version reads it', () => {
    let read = 0
    fc.assert(
      fc.property(fc.constantFrom('v1.0' as const, 'v1.1' as const), fc.oneof(body, unusual), (version, given) => {
        const value = received(given)
        const plain = plainAccessRequest(value)
        if (plain === undefined) return
        read += 1
        const { requestedItems, ...rest } = accessRequestBody[version].parse(value)
        expect(plain.request).toEqual(requestOf({ ...rest, requestedItems }))
        expect(plain.metaData).toEqual(requestedItems.map(({ metaData }) => metaData))
      }),
      { numRuns: 3_000 },
    )
    expect(read).toBeGreaterThan(50)
  })

  const item = { item: 'Print', version: '1.0', count: 2.5, metaData: { job: 'a', pages: 3, isDraft: false } }
  const given = { requester: { type: 'user', value: 'ada', dictionary: { role: 'admin' } }, requestedItems: [item] }

  it('is the usual body of an application', () => {
    expect(plainAccessRequest(given)).toEqual({
      request: {
        requester: given.requester,
        items: [{ name: 'Print', version: '1.0', count: { digits: 25n, scale: 1 } }],
      },
      metaData: [item.metaData],
    })
  })

  it.each([
    ['an unknown field', { ...given, more: 1 }],
    ['no requester', { requestedItems: [item] }],
    ['no items', { ...given, requestedItems: [] }],
    ['more items than permitted', { ...given, requestedItems: Array.from({ length: 501 }, () => item) }],
    ['an unknown field of an item', { ...given, requestedItems: [{ ...item, more: 1 }] }],
    ['an unknown field of the requester', { ...given, requester: { ...given.requester, more: 1 } }],
    [
      'the older spelling of a version',
      { ...given, requestedItems: [{ item: 'Print', requestedVersion: '1', count: 1 }] },
    ],
    ['variables', { ...given, requestedItems: [{ ...item, variables: { n: 1 } }] }],
    ['a count of zero', { ...given, requestedItems: [{ ...item, count: 0 }] }],
    ['a count as text', { ...given, requestedItems: [{ ...item, count: '1' }] }],
    ['a text that is not ASCII', { ...given, requestedItems: [{ ...item, item: 'Größe' }] }],
    ['nested metadata', { ...given, requestedItems: [{ ...item, metaData: { a: {} } }] }],
    ['a list as dictionary', { ...given, requester: { ...given.requester, dictionary: [] } }],
    [
      'a name that is too long when it is encoded',
      { ...given, requester: { type: '%'.repeat(256), value: '%'.repeat(256) } },
    ],
  ])('is not one with %s', (_, value) => {
    expect(plainAccessRequest(received(value))).toBeUndefined()
  })

  it('is not one with the key __proto__ in metadata', () => {
    const value: unknown = JSON.parse(JSON.stringify(given).replace('"job"', '"__proto__"'))
    expect(plainAccessRequest(value)).toBeUndefined()
  })

  it.each([
    ['"pages":3', '"pages":1e400'],
    ['"role":"admin"', '"role":[1e400]'],
  ])('is not one with a number beyond the range of a double: %s', (known, changed) => {
    const value: unknown = JSON.parse(JSON.stringify(given).replace(known, changed))
    expect(plainAccessRequest(value)).toBeUndefined()
  })
})
