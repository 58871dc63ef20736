/** Formulas: the grammar with the place of each mistake, the value by an independent evaluator, and hostile text. */
import fc from '../../support/fast-check.ts'
import { describe, expect, test } from 'vitest'
import { type Decimal, decimal, formatDecimal } from '../../../src/core/pricing/amount.ts'
import {
  type Expression,
  FORMULA_DEPTH_MAX,
  FORMULA_LENGTH_MAX,
  FORMULA_NODES_MAX,
  parseFormula,
  variableName,
} from '../../../src/core/pricing/formula.ts'
import { formulaRate } from '../../../src/core/pricing/formula-rate.ts'
import { naiveFormula } from './naive-formula.ts'

function parsed(text: string): Expression {
  const formula = parseFormula(text)
  if ('problem' in formula) throw new Error(`${text}: ${formula.problem} at ${formula.position}`)
  return formula.expression
}

function rateOf(text: string, variables: Readonly<Record<string, string>> = {}): string {
  const given = new Map(Object.entries(variables).map(([name, number]) => [name.toLowerCase(), decimal(number)]))
  const rate = formulaRate(parsed(text), given)
  return typeof rate === 'string' ? rate : formatDecimal(rate)
}

describe('a formula gives the rate that a spreadsheet would', () => {
  test.each([
    ['1 + 2 * 3', '7'],
    ['(1 + 2) * 3', '9'],
    ['10 - 2 - 3', '5'],
    ['24 / 4 / 2', '3'],
    ['2 ^ 3 ^ 2', '64'],
    ['-2 ^ 2', '4'],
    ['0 - 2 ^ 2 + 4', '0'],
    ['2 ^ -1', '0.5'],
    ['--3', '3'],
    ['3 * -2 + 7', '1'],
    ['1 / 3', '0.333333'],
    ['1 / 3 * 3', '1'],
    ['0.0000005', '0'],
    ['0.0000015', '0.000002'],
    ['FLOOR.MATH(2.7)', '2'],
    ['FLOOR.MATH(-2.1) + 3', '0'],
    ['FLOOR.MATH(-2) + 3', '1'],
    ['0 ^ 2 + 1', '1'],
    ['(1/3) / (2/3)', '0.5'],
    ['MIN(2/3, 1/2)', '0.5'],
    ['CEILING.MATH(2.1)', '3'],
    ['CEILING.MATH(-2.7) + 3', '1'],
    ['power(2, 10)', '1024'],
    ['PRODUCT(3, 4)', '12'],
    ['Sum(3, 4)', '7'],
    ['ABS(-3.5)', '3.5'],
    ['MIN(2, 3)', '2'],
    ['MAX(2, 3)', '3'],
    ['ROUND(2.345, 2)', '2.35'],
    ['ROUND(-2.5, 0) + 3', '0'],
    ['ROUND(1250, -2)', '1300'],
    ['\t( 1\r\n)', '1'],
    ['ABS(3.5)', '3.5'],
    ['MIN(1/3, 0.5) * 3', '1'],
    ['MAX(1/2, 1/3)', '0.5'],
    ['MAX(1/3, 1/2)', '0.5'],
    ['1 / (0 - 4) * -2', '0.5'],
    ['(0 - 2) ^ -2', '0.25'],
    ['(0 - 2) ^ -1 + 1', '0.5'],
    ['ROUND(0, 2)', '0'],
    ['ROUND(-1250, -2) + 2000', '700'],
    ['1 ^ 64 + 1 ^ -64', '2'],
    ['ROUND(1.5, 20) + ROUND(5, -1)', '11.5'],
    // Large parts on the way are no harm as long as their lowest terms are small.
    ['99999 ^ 9 / 99999 ^ 8 / 99999', '1'],
    ['(1 / 99999 ^ 9) * 99999 ^ 9', '1'],
  ])('%s is %s', (text, value) => {
    expect(rateOf(text)).toBe(value)
  })

  test('variables are found in upper and lower case', () => {
    expect(rateOf('basePrice * Quantity - DISCOUNT', { BASEPRICE: '2.5', quantity: '4', discount: '0.5' })).toBe('9.5')
  })
})

describe('a result that cannot be a rate is a failure with a name', () => {
  test.each([
    ['price', 'FORMULA_VARIABLE_MISSING'],
    ['1 / 0', 'FORMULA_DIVIDES_BY_ZERO'],
    ['1 / (2 - 2)', 'FORMULA_DIVIDES_BY_ZERO'],
    ['0 ^ -1', 'FORMULA_DIVIDES_BY_ZERO'],
    ['0 ^ 0', 'FORMULA_UNDEFINED'],
    ['2 ^ 0.5', 'FORMULA_UNDEFINED'],
    ['1 ^ 65', 'FORMULA_UNDEFINED'],
    ['ROUND(1, 0.5)', 'FORMULA_UNDEFINED'],
    ['ROUND(1, 21)', 'FORMULA_UNDEFINED'],
    ['ROUND(1, -21)', 'FORMULA_UNDEFINED'],
    ['1 ^ -65', 'FORMULA_UNDEFINED'],
    ['1 + 1 / 0', 'FORMULA_DIVIDES_BY_ZERO'],
    ['1 / 0 + price', 'FORMULA_DIVIDES_BY_ZERO'],
    ['ABS(0 - 99999 ^ 64)', 'FORMULA_OVERFLOWS'],
    ['(0 - 99999) ^ 63', 'FORMULA_OVERFLOWS'],
    ['1 - 2', 'FORMULA_IS_NEGATIVE'],
    ['-0.0000001', 'FORMULA_IS_NEGATIVE'],
    ['9223372036854.775808', 'FORMULA_OVERFLOWS'],
    ['99999 ^ 64 / 99999 ^ 64', 'FORMULA_OVERFLOWS'],
    ['1 / 99999 ^ 64', 'FORMULA_OVERFLOWS'],
  ])('%s: %s', (text, failure) => {
    expect(rateOf(text)).toBe(failure)
  })

  test('the largest rate is the largest amount', () => {
    expect(rateOf('9223372036854.775807')).toBe('9223372036854.775807')
  })
})

describe('refuses an invalid formula with the place of the mistake', () => {
  test.each([
    ['', 1],
    ['  ', 3],
    ['=1', 1],
    ['1 +', 4],
    ['1 + * 2', 5],
    ['+1', 1],
    ['(1', 3],
    ['1)', 2],
    ['2x', 2],
    ['1 2', 3],
    ['.5', 1],
    ['5.', 2],
    ['1e3', 2],
    ['1;2', 2],
    ['"a"', 1],
    ['präis', 3],
    ['foo(1)', 1],
    ['1 + sqrt(4)', 5],
    ['SUM(1)', 1],
    ['SUM(1,2,3)', 1],
    ['ABS()', 5],
    ['ABS(1,2)', 1],
    ['FLOOR.MATH', 1],
    ['max + 1', 1],
    ['FLOOR(1)', 1],
    ['a.b', 1],
    ['constructor(1)', 1],
    ['price[0]', 6],
    ['process.exit(1)', 1],
    [`1${'0'.repeat(30)}`, 1],
    ['a'.repeat(65), 1],
  ])('%j at %i', (text, position) => {
    expect(parseFormula(text)).toMatchObject({ position, problem: expect.any(String) as string })
  })

  test.each([
    ['1'.repeat(FORMULA_LENGTH_MAX + 1), 'a formula has at most 1000 characters'],
    ['1 ; 2', 'this character has no meaning in a formula'],
    ['1 2', 'an operator or the end is expected here'],
    ['('.repeat(FORMULA_DEPTH_MAX + 1), 'a formula nests at most 32 deep'],
    ['1'.repeat(31), 'a number has at most 30 digits'],
    ['1 +', 'a number, a variable, a function or "(" is expected here'],
    ['foo(1)', 'there is no function of this name'],
    ['a'.repeat(65), 'a variable is named by up to 64 letters, digits and "_"'],
    ['max + 1', 'MAX is a function: its arguments are missing'],
    ['ABS(1, 2)', 'ABS takes one argument'],
    ['SUM(1)', 'SUM takes two arguments'],
    [`1${'+1'.repeat(FORMULA_NODES_MAX / 2)}`, 'a formula has at most 128 parts'],
    ['(1 , 2', '")" or an operator is expected here'],
  ])('and says what it is: %j', (text, problem) => {
    expect(parseFormula(text)).toHaveProperty('problem', problem)
  })

  test('its length, its depth and the number of its parts have bounds, which are themselves allowed', () => {
    expect(parseFormula(`1${' '.repeat(FORMULA_LENGTH_MAX - 1)}`)).toHaveProperty('expression')
    expect(parseFormula(`1${' '.repeat(FORMULA_LENGTH_MAX)}`)).toMatchObject({ position: FORMULA_LENGTH_MAX + 1 })
    const nested = (levels: number) => `${'('.repeat(levels)}1${')'.repeat(levels)}`
    expect(parseFormula(nested(FORMULA_DEPTH_MAX - 1))).toHaveProperty('expression')
    expect(parseFormula(nested(FORMULA_DEPTH_MAX))).toMatchObject({ position: FORMULA_DEPTH_MAX + 1 })
    const sum = (numbers: number) => Array<string>(numbers).fill('1').join('+')
    expect(parseFormula(sum(FORMULA_NODES_MAX / 2))).toHaveProperty('expression')
    expect(parseFormula(`-${sum(FORMULA_NODES_MAX / 2)}`)).toHaveProperty('expression')
    expect(parseFormula(`--${sum(FORMULA_NODES_MAX / 2)}`)).toHaveProperty('problem')
    expect(parseFormula(sum(FORMULA_NODES_MAX / 2 + 1))).toHaveProperty('problem')
  })
})

test('only names that a formula can contain are names of variables', () => {
  expect(['Price', '_a1', '__proto__'].map(variableName)).toEqual(['price', '_a1', '__proto__'])
  expect(variableName('a'.repeat(64))).toBe('a'.repeat(64))
  expect(parseFormula('1'.repeat(30))).toHaveProperty('expression')
  // The Kelvin sign is a K in lower case only where letters beyond ASCII are changed too.
  for (const text of ['', '1a', 'a b', 'a.b', 'ä', '\u212A', 'a'.repeat(65)]) expect(variableName(text)).toBeUndefined()
})

/** A formula as its text in two forms, with the tree that both stand for. */
interface Written {
  readonly text: string
  readonly strength: number
  readonly tree: Expression
}

const NUMBERS = ['0', '1', '2', '3', '10', '0.5', '2.5', '0.333', '64', '1000000', '0.000001'] as const
const VARIABLES = ['price', 'Quantity', '__proto__', 'missing'] as const
const SIGNS = [
  ['+', 'SUM', 1],
  ['-', 'SUBTRACT', 1],
  ['*', 'PRODUCT', 2],
  ['/', 'DIVIDE', 2],
  ['^', 'POWER', 3],
] as const

const within = ({ text, strength }: Written, least: number): string => (strength < least ? `( ${text})` : text)

const formula: fc.Arbitrary<Written> = fc.letrec<{ formula: Written }>((tie) => ({
  formula: fc.oneof(
    { maxDepth: 6, depthSize: 'small' },
    fc.constantFrom(...NUMBERS).map((text): Written => ({ text, strength: 5, tree: parsed(text) })),
    fc.constantFrom(...VARIABLES).map((text): Written => ({
      text,
      strength: 5,
      tree: { kind: 'VARIABLE', name: text.toLowerCase() },
    })),
    tie('formula').map((inner): Written => ({
      text: `-${within(inner, 4)}`,
      strength: 4,
      tree: { kind: 'CALL', operation: 'NEGATE', operands: [inner.tree] },
    })),
    fc
      .tuple(fc.constantFrom(...SIGNS), tie('formula'), tie('formula'))
      .map(([[sign, operation, strength], left, right]): Written => ({
        text: `${within(left, strength)} ${sign}${within(right, strength + 1)}`,
        strength,
        tree: { kind: 'CALL', operation, operands: [left.tree, right.tree] },
      })),
    fc
      .tuple(fc.constantFrom('ABS', 'FLOOR.MATH', 'CEILING.MATH'), tie('formula'))
      .map(([operation, inner]): Written => ({
        text: `${operation.toLowerCase()}(${inner.text})`,
        strength: 5,
        tree: { kind: 'CALL', operation, operands: [inner.tree] },
      })),
    fc
      .tuple(fc.constantFrom('SUM', 'PRODUCT', 'POWER', 'MIN', 'MAX', 'ROUND'), tie('formula'), tie('formula'))
      .map(([operation, left, right]): Written => ({
        text: `${operation} (${left.text} ,${right.text})`,
        strength: 5,
        tree: { kind: 'CALL', operation, operands: [left.tree, right.tree] },
      })),
  ),
})).formula

const number: fc.Arbitrary<Decimal> = fc.oneof(
  fc.constantFrom('0', '1', '-1', '2', '-0.5', '1.5').map((text) => decimal(text)),
  fc.record({ digits: fc.bigInt({ min: -(10n ** 40n), max: 10n ** 40n }), scale: fc.integer({ min: 0, max: 40 }) }),
)

test('a formula that is written out and read again is the same formula', () => {
  fc.assert(
    fc.property(formula, ({ text, tree }) => {
      const read = parseFormula(text)
      // Only the bounds may be in the way.
      if ('problem' in read) expect(read.problem).toMatch(/ has at most | nests at most /)
      else expect(read.expression).toEqual(tree)
    }),
    { numRuns: 3_000 },
  )
})

test('the rate of a formula is the one that an evaluator written apart from it finds', () => {
  let [rates, formulas] = [0, 0]
  fc.assert(
    fc.property(formula, number, number, number, ({ text }, price, quantity, proto) => {
      formulas += 1
      const read = parseFormula(text)
      if ('problem' in read) return
      const variables = new Map([
        ['price', price],
        ['quantity', quantity],
        ['__proto__', proto],
      ])
      const rate = formulaRate(read.expression, variables)
      expect(rate).toEqual(naiveFormula(text, [...variables]))
      if (typeof rate !== 'string') rates += 1
    }),
    { numRuns: 5_000 },
  )
  expect(rates).toBeGreaterThan(formulas / 10)
})

test('no text makes the parser throw, and every problem has a place in it', () => {
  const pieces = fc.constantFrom(
    ...['(', ')', ',', '+', '-', '*', '/', '^', '1', '0.5', '.', ' ', 'price', 'SUM(', 'ABS(', 'MAX', 'FLOOR.MATH('],
    ...['\u0000', '\uD800', '\u{1F600}', '\u00A0', '__proto__', 'e9', '\n', '=', '$', '"'],
  )
  const hostile = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.array(pieces, { maxLength: 300 }).map((all) => all.join('')),
  )
  fc.assert(
    fc.property(hostile, (text) => {
      const read = parseFormula(text)
      if ('expression' in read) {
        formulaRate(read.expression)
        return
      }
      expect(read.position).toBeGreaterThanOrEqual(1)
      expect(read.position).toBeLessThanOrEqual(Math.min(text.length, FORMULA_LENGTH_MAX) + 1)
    }),
    { numRuns: 5_000 },
  )
})
