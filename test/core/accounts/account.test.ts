/** Account ids: different counters never share one, and what can be read back is exactly what was made. */
import fc from '../../support/fast-check.ts'
import { beforeEach, describe, expect, test } from 'vitest'
import {
  actionAccount,
  fitsEncoded,
  instanceIdOf,
  isLimitAccount,
  isLineAccount,
  limitAccount,
  lineAccount,
  parseAccount,
} from '../../../src/core/accounts/account.ts'

const part = fc.oneof(
  fc.constantFrom('', 'a', '/', 'a/b', '%2F', '%', '..', ' ', 'ü', '\u{1F600}', '0', '__proto__', "'()*!~"),
  fc.string({ unit: 'grapheme', maxLength: 6 }).filter((text) => text.isWellFormed()),
)
const period = fc.oneof(fc.constantFrom(0, 1, 10, 999_999_999), fc.nat({ max: 999_999_999 }))
const requester = fc.record({ type: part, value: part })

const made = fc.oneof(
  fc.record({ kind: fc.constant('line' as const), instanceId: part, lineItemId: part, period }),
  fc.record({ kind: fc.constant('action' as const), instanceId: part, lineItemId: part, actionId: part }),
  fc.record({ kind: fc.constant('limit' as const), instanceId: part, lineItemId: part, requester, period }),
)
type Made = typeof made extends fc.Arbitrary<infer T> ? T : never

function idOf(account: Made): string {
  switch (account.kind) {
    case 'line':
      return lineAccount(account.instanceId, account.lineItemId, account.period)
    case 'action':
      return actionAccount(account.instanceId, account.lineItemId, account.actionId)
    case 'limit':
      return limitAccount(account.instanceId, account.lineItemId, account.requester, account.period)
  }
}

let forgotten = 0

/** So many texts that are not accounts displace all that was parsed before. */
function forgetParsed(): void {
  for (let n = 0; n < 1_000; n += 1) parseAccount(`${(forgotten += 1)}`)
}

describe('account ids', () => {
  beforeEach(forgetParsed)

  test('the text of an id is fixed, because databases and messages contain it', () => {
    expect(lineAccount('i', 'ACT01/a b', 3)).toBe('line/i/ACT01%2Fa%20b/3')
    expect(actionAccount('i', 'A', '50%')).toBe('action/i/A/50%25')
    expect(limitAccount('i', 'A', { type: 'user', value: 'Ünal' }, 0)).toBe('limit/i/A/user/%C3%9Cnal/0')
  })

  test('an id reads back as the parts that it was made of', () => {
    fc.assert(
      fc.property(made, (account) => {
        expect(parseAccount(idOf(account))).toEqual(account)
      }),
      { numRuns: 1000 },
    )
  })

  test('different counters have different ids', () => {
    fc.assert(
      fc.property(made, made, (a, b) => {
        const same = JSON.stringify(Object.entries(a)) === JSON.stringify(Object.entries(b))
        expect(idOf(a) === idOf(b)).toBe(same)
      }),
      { numRuns: 3000 },
    )
  })

  test.each([
    '',
    'line',
    'line/i/A',
    'line/i/A/0/0',
    'line/i/A/',
    'line/i/A/-1',
    'line/i/A/01',
    'line/i/A/1.0',
    'line/i/A/1e3',
    'line/i/A/9999999999',
    'line/i/a b/0',
    'line/i/%zz/0',
    'line/i/%2f/0',
    'line/i/%41/0',
    'LINE/i/A/0',
    'action/i/A',
    'action/i/A/x/0',
    'limit/i/A/user/Lisa',
    'limit/i/A/user/Lisa/x',
    'limit/i/A/user/Lisa/0/0',
    'pool/i/A/0',
    'toString/i/A/0',
  ])('%j is not the id of an account', (text) => {
    expect(parseAccount(text)).toBeUndefined()
  })

  test('only the text that would be made is read', () => {
    const kind = fc.constantFrom('line', 'action', 'limit', 'Line', '')
    const parts = fc.array(fc.constantFrom('a', 'b c', '%20', '%2F', '%2f', '%61', '0', '01', '12'), { maxLength: 5 })
    fc.assert(
      fc.property(kind, parts, (first, rest) => {
        const text = [first, ...rest].join('/')
        const parsed = parseAccount(text)
        if (parsed !== undefined) expect(idOf(parsed)).toBe(text)
      }),
      { numRuns: 3000 },
    )
  })
})

test('texts of any characters fit by their length in percent-encoding', () => {
  const text = fc.string({ unit: 'binary', maxLength: 60 })
  fc.assert(
    fc.property(text, text, fc.nat(600), (one, two, max) => {
      const wellFormed = one.isWellFormed() && two.isWellFormed()
      // Where even the longest encoding fits, this check does not look: what is not well-formed is refused elsewhere.
      if (!wellFormed) return
      const length = encodeURIComponent(one).length + encodeURIComponent(two).length
      expect(fitsEncoded(max, one, two)).toBe(length <= max)
    }),
  )
})

test.each([
  [9, ['a'], true],
  [8, ['a'], true],
  [1, ['a'], true],
  [0, ['a'], false],
  [0, [], true],
  [3, ['%'], true],
  [2, ['%'], false],
  [9, ['\u20AC'], true],
  [8, ['\u20AC'], false],
  [10, ['\u20AC', 'a'], true],
  [9, ['\u20AC', 'a'], false],
  [2, ['ab'], true],
  [1, ['ab'], false],
])('into %d characters of an id fit %j: %s', (max, texts, fits) => {
  expect(fitsEncoded(max, ...texts)).toBe(fits)
})

test('text that is not well-formed fits nothing that is too short for any text of its length', () => {
  expect(fitsEncoded(8, '\uD800')).toBe(false)
  expect(fitsEncoded(17, 'a', '\uD800')).toBe(false)
})

test('the ids of limits of requesters, pools and allocations differ', () => {
  const ids = [
    limitAccount('i', 'A', { type: 'user', value: 'x' }, 0),
    lineAccount('i', 'limit', 0),
    actionAccount('i', 'A', 'limit'),
  ]
  expect([...ids, 'limits/i'].map(isLimitAccount)).toEqual([true, false, false, false])
  expect([...ids, 'lines/i'].map(isLineAccount)).toEqual([false, true, false, false])
})

test('the instance of an account is known by its id, and a text that is not one has none', () => {
  expect(instanceIdOf(lineAccount('workshop', 'LINE', 0))).toBe('workshop')
  expect(instanceIdOf('line/workshop')).toBe('')
})
