import fc from '../support/fast-check.ts'
import { expect, test } from 'vitest'
import { exactTokens, parseExactJson } from '../../src/client/exact-json.ts'
import { formatMicro } from '../../src/core/pricing/amount.ts'

test('numbers keep the digits that a double would lose', () => {
  expect(parseExactJson('{"a":[9007199254740993.000001],"b":"1","c":true,"d":null}')).toEqual({
    a: ['9007199254740993.000001'],
    b: '1',
    c: true,
    d: null,
  })
})

test('any amount of micro-tokens survives the way over JSON', () => {
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 2n ** 63n - 1n }), (amount) => {
      const json = `{"used":${formatMicro(amount)}}`
      const { used } = parseExactJson(json) as { used: unknown }
      expect(exactTokens.parse(used)).toBe(amount)
    }),
  )
})

test('an amount finer than a micro-token is refused, not rounded', () => {
  expect(exactTokens.safeParse('0.0000001').success).toBe(false)
  expect(exactTokens.parse('1.0000000')).toBe(1_000_000n)
  expect(exactTokens.parse('2.5e-1')).toBe(250_000n)
})
