/** Amounts against arithmetic that is written another way: text, neighbours, and fractions that are never reduced. */
import fc from '../../support/fast-check.ts'
import { describe, expect, test } from 'vitest'
import {
  MICRO_MAX,
  countable,
  decimal,
  decimalRatio,
  formatDecimal,
  formatMicro,
  parseDecimal,
  ratio,
  roundHalfEven,
  toMicro,
  wholeTokens,
} from '../../../src/core/pricing/amount.ts'
import { nearest, shifted, times, whole } from './naive-fraction.ts'

const digits = fc.bigInt({ min: -(10n ** 30n), max: 10n ** 30n })
const decimals = fc.record({ digits, scale: fc.integer({ min: 0, max: 30 }) })

test('a need is at most the maximum of a counter', () => {
  const amounts = [0n, MICRO_MAX - 1n, MICRO_MAX, MICRO_MAX + 1n, 2n * MICRO_MAX]
  expect(amounts.map(countable)).toEqual([0n, MICRO_MAX - 1n, MICRO_MAX, MICRO_MAX, MICRO_MAX])
})

describe('reading decimals', () => {
  test.each([
    ['0', 0n, 0],
    ['-0', 0n, 0],
    ['007', 7n, 0],
    ['1.50', 150n, 2],
    ['-1.5', -15n, 1],
    ['0.000001', 1n, 6],
    ['1e3', 1000n, 0],
    ['1.5E+3', 1500n, 0],
    ['15e-1', 15n, 1],
    ['1e-40', 1n, 40],
    ['1e40', 10n ** 40n, 0],
  ])('%s is %s digits at scale %s', (text, wantedDigits, scale) => {
    expect(parseDecimal(text)).toEqual({ digits: wantedDigits, scale })
  })

  test.each([
    '',
    ' 1',
    '1 ',
    '+1',
    '.5',
    '5.',
    '1.2.3',
    '1e',
    '1e1.5',
    '0x10',
    '1_000',
    '١',
    'NaN',
    'Infinity',
    '1,5',
    '--1',
  ])('%j is not a decimal', (text) => {
    expect(parseDecimal(text)).toBeUndefined()
    expect(() => decimal(text)).toThrow(RangeError)
  })

  test.each(['1e41', '1e-41', '1e9999', '1e99999', '1'.repeat(81), `0.${'1'.repeat(80)}`])(
    'a decimal of hostile size is refused: %s',
    (text) => expect(parseDecimal(text)).toBeUndefined(),
  )

  test.each([NaN, Infinity, -Infinity, 1e308, 5e-324])('the number %s is not a decimal', (number) => {
    expect(parseDecimal(number)).toBeUndefined()
  })

  test('a number is read by its shortest text', () => {
    expect(parseDecimal(0.1)).toEqual({ digits: 1n, scale: 1 })
    expect(parseDecimal(1e21)).toEqual({ digits: 10n ** 21n, scale: 0 })
    expect(parseDecimal(1.5e-7)).toEqual({ digits: 15n, scale: 8 })
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e15, max: 1e15 }), (number) => {
        const value = parseDecimal(number)
        // Below 10^-40 a number has more exponent than is read.
        if (value === undefined) expect(Math.abs(number)).toBeLessThan(1e-40)
        else expect(Number(formatDecimal(value))).toBe(number === 0 ? 0 : number)
      }),
    )
  })

  test('the text of a decimal reads back as the same value', () => {
    fc.assert(
      fc.property(decimals, (value) => {
        const text = formatDecimal(value)
        const back = decimal(text)
        expect(back.digits * 10n ** BigInt(value.scale)).toBe(value.digits * 10n ** BigInt(back.scale))
        expect(text).toMatch(/^-?(0|[1-9]\d*)(\.\d*[1-9])?$/)
      }),
    )
  })
})

describe('rounding', () => {
  test.each([
    [5n, 10n, 0n],
    [15n, 10n, 2n],
    [25n, 10n, 2n],
    [35n, 10n, 4n],
    [24n, 10n, 2n],
    [26n, 10n, 3n],
    [-5n, 10n, 0n],
    [-15n, 10n, -2n],
    [-25n, 10n, -2n],
    [-26n, 10n, -3n],
    [-24n, 10n, -2n],
    [7n, 1n, 7n],
    [0n, 3n, 0n],
  ])('%s/%s rounds to %s', (num, den, wanted) => {
    expect(roundHalfEven({ num, den })).toBe(wanted)
  })

  const fractions = fc.record({
    num: fc.bigInt({ min: -2000n, max: 2000n }),
    den: fc.bigInt({ min: 1n, max: 40n }),
  })

  test('the result is the nearest integer, the even one of two', () => {
    fc.assert(
      fc.property(fractions, ({ num, den }) => {
        const absolute = nearest({ top: num < 0n ? -num : num, bottom: den })
        expect(roundHalfEven({ num, den })).toBe(num < 0n ? -absolute : absolute)
      }),
      { numRuns: 2000 },
    )
  })

  test('the same fraction written larger rounds the same', () => {
    fc.assert(
      fc.property(fractions, fc.bigInt({ min: 1n, max: 10n ** 20n }), ({ num, den }, by) => {
        expect(roundHalfEven({ num: num * by, den: den * by })).toBe(roundHalfEven({ num, den }))
        expect(ratio(num * by, den * by)).toEqual(ratio(num, den))
      }),
    )
  })

  test('a ratio is in lowest terms with its sign on top', () => {
    expect(ratio(6n, -4n)).toEqual({ num: -3n, den: 2n })
    expect(ratio(0n, -7n)).toEqual({ num: 0n, den: 1n })
    expect(() => ratio(1n, 0n)).toThrow(RangeError)
    fc.assert(
      fc.property(digits, fc.bigInt({ min: -60n, max: 60n }), (num, den) => {
        if (den === 0n) return
        const lowest = ratio(num, den)
        expect(lowest.den).toBeGreaterThan(0n)
        expect(lowest.num * den).toBe(num * lowest.den)
        for (const prime of [2n, 3n, 5n, 7n, 11n, 13n]) {
          expect(lowest.num % prime === 0n && lowest.den % prime === 0n).toBe(false)
        }
      }),
    )
  })
})

describe('micro-tokens', () => {
  test('an exact number of tokens rounds at the sixth digit', () => {
    expect(toMicro(decimal('0.0000005'))).toBe(0n)
    expect(toMicro(decimal('0.0000015'))).toBe(2n)
    expect(toMicro(decimal('1e40'))).toBe(10n ** 46n)
    fc.assert(
      fc.property(fc.bigInt({ min: 0n, max: 10n ** 12n }), fc.integer({ min: 0, max: 12 }), (value, scale) => {
        expect(toMicro({ digits: value, scale })).toBe(nearest(times(shifted(value, scale), whole(1_000_000n))))
      }),
    )
  })

  test('a decimal as a ratio is the decimal', () => {
    expect(decimalRatio(decimal('2.50'))).toEqual({ num: 5n, den: 2n })
    expect(decimalRatio(decimal('0.0'))).toEqual({ num: 0n, den: 1n })
  })

  test.each([
    [0n, '0'],
    [1n, '0.000001'],
    [-1n, '-0.000001'],
    [1_500_000n, '1.5'],
    [-1_500_000n, '-1.5'],
    [10_000_000n, '10'],
    [MICRO_MAX, '9223372036854.775807'],
  ])('%s is written %s', (amount, text) => {
    expect(formatMicro(amount)).toBe(text)
  })

  test('the text of an amount reads back exactly', () => {
    fc.assert(
      fc.property(digits, (amount) => {
        expect(toMicro(decimal(formatMicro(amount)))).toBe(amount)
      }),
    )
  })

  test('whole tokens are a million each', () => {
    expect(wholeTokens(3)).toBe(3_000_000n)
    expect(wholeTokens(9_007_199_254_740_993n)).toBe(9_007_199_254_740_993_000_000n)
  })
})

test.each([
  ['1'.repeat(80), true],
  ['1'.repeat(81), false],
  [`1.${'1'.repeat(79)}`, true],
  [`1.${'1'.repeat(80)}`, false],
  ['1e40', true],
  ['1e41', false],
  ['1e-40', true],
  ['1e-41', false],
])('%s is a decimal of reasonable size: %s', (text, isOne) => {
  expect(parseDecimal(text) !== undefined).toBe(isOne)
})
