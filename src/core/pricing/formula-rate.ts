/**
 * Evaluates a formula for one requested item. Fractions are exact; the rate is rounded once, half to even, at the sixth
 * fractional digit. Evaluation never throws, and its work is bounded by the formula's size.
 */
import {
  type Decimal,
  formatDecimal,
  MICRO_MAX,
  MICRO_PER_TOKEN,
  type Ratio,
  decimalRatio,
  ratio,
  roundHalfEven,
} from './amount.ts'
import type { Expression, Operation } from './formula.ts'

/** By lower-case name. */
export type Variables = ReadonlyMap<string, Decimal>

export function variableTexts(variables: Variables): Readonly<Record<string, string>> {
  return Object.fromEntries([...variables].map(([name, value]) => [name, formatDecimal(value)]))
}

export type FormulaFailure =
  | 'FORMULA_VARIABLE_MISSING'
  | 'FORMULA_DIVIDES_BY_ZERO'
  /** A part of the formula, or the rate, is too large or too fine. */
  | 'FORMULA_OVERFLOWS'
  | 'FORMULA_IS_NEGATIVE'
  /** No exact value: 0^0, or an exponent or precision that is not a small integer. */
  | 'FORMULA_UNDEFINED'

/** Bound of numerator and denominator of every part, in lowest terms. */
const PART_MAX = 10n ** 100n
/** Fractions are reduced above this; below, it would cost more than it saves. */
const REDUCE_ABOVE = 2n ** 128n
const EXPONENT_MAX = 64n
const PRECISION_MAX = 20n

const NO_VARIABLES: Variables = new Map()

const RATE_SCALE = 6

export function formulaRate(expression: Expression, variables: Variables = NO_VARIABLES): Decimal | FormulaFailure {
  const value = evaluate(expression, variables)
  if (typeof value === 'string') return value
  if (value.num < 0n) return 'FORMULA_IS_NEGATIVE'
  const digits = roundHalfEven({ num: value.num * MICRO_PER_TOKEN, den: value.den })
  return digits > MICRO_MAX ? 'FORMULA_OVERFLOWS' : { digits, scale: RATE_SCALE }
}

type Value = Ratio | FormulaFailure

function evaluate(expression: Expression, variables: Variables): Value {
  switch (expression.kind) {
    case 'NUMBER':
      return expression.value
    case 'VARIABLE': {
      const given = variables.get(expression.name)
      return given === undefined ? 'FORMULA_VARIABLE_MISSING' : bounded(decimalRatio(given))
    }
    case 'CALL': {
      const operands: Ratio[] = []
      for (const operand of expression.operands) {
        const value = evaluate(operand, variables)
        if (typeof value === 'string') return value
        operands.push(value)
      }
      const [x, y = x] = operands
      if (x === undefined || y === undefined) throw new Error('invariant: every operation has operands')
      const value = apply(expression.operation, x, y)
      return typeof value === 'string' ? value : bounded(value)
    }
  }
}

/** @param y same as `x` for operations with one operand */
function apply(operation: Operation, x: Ratio, y: Ratio): Value {
  switch (operation) {
    case 'SUM':
      return { num: x.num * y.den + y.num * x.den, den: x.den * y.den }
    case 'SUBTRACT':
      return { num: x.num * y.den - y.num * x.den, den: x.den * y.den }
    case 'PRODUCT':
      return { num: x.num * y.num, den: x.den * y.den }
    case 'DIVIDE':
      return y.num === 0n ? 'FORMULA_DIVIDES_BY_ZERO' : positive(x.num * y.den, x.den * y.num)
    case 'NEGATE':
      return { num: -x.num, den: x.den }
    case 'ABS':
      return x.num < 0n ? { num: -x.num, den: x.den } : x
    case 'MIN':
      return x.num * y.den <= y.num * x.den ? x : y
    case 'MAX':
      return x.num * y.den >= y.num * x.den ? x : y
    case 'FLOOR.MATH':
      return { num: floor(x), den: 1n }
    case 'CEILING.MATH':
      return { num: -floor({ num: -x.num, den: x.den }), den: 1n }
    case 'POWER':
      return power(x, y)
    case 'ROUND':
      return round(x, y)
  }
}

function power(base: Ratio, exponent: Ratio): Value {
  const times = wholeWithin(exponent, EXPONENT_MAX)
  if (times === undefined) return 'FORMULA_UNDEFINED'
  if (base.num === 0n && times <= 0n) return times === 0n ? 'FORMULA_UNDEFINED' : 'FORMULA_DIVIDES_BY_ZERO'
  // Powers of lowest terms are in lowest terms, so an overflow here is final.
  const { num, den } = times < 0n ? positive(base.den, base.num) : base
  const lowest = ratio(num, den)
  let result: Ratio = { num: 1n, den: 1n }
  for (let done = times < 0n ? -times : times; done > 0n; done -= 1n) {
    result = { num: result.num * lowest.num, den: result.den * lowest.den }
    if (isTooLarge(result, PART_MAX)) return 'FORMULA_OVERFLOWS'
  }
  return result
}

/** Half away from zero, as in spreadsheets. */
function round({ num, den }: Ratio, precision: Ratio): Value {
  const places = wholeWithin(precision, PRECISION_MAX)
  if (places === undefined) return 'FORMULA_UNDEFINED'
  const [up, down] = places < 0n ? [1n, 10n ** -places] : [10n ** places, 1n]
  const size = num < 0n ? -num : num
  const rounded = floor({ num: 2n * size * up + den * down, den: 2n * den * down })
  return { num: (num < 0n ? -rounded : rounded) * down, den: up }
}

function floor({ num, den }: Ratio): bigint {
  return num >= 0n ? num / den : -((den - 1n - num) / den)
}

function wholeWithin({ num, den }: Ratio, max: bigint): bigint | undefined {
  const whole = num / den
  return num % den === 0n && whole >= -max && whole <= max ? whole : undefined
}

function positive(num: bigint, den: bigint): Ratio {
  return den < 0n ? { num: -num, den: -den } : { num, den }
}

function isTooLarge({ num, den }: Ratio, limit: bigint): boolean {
  return den > limit || num > limit || num < -limit
}

function bounded(value: Ratio): Value {
  if (!isTooLarge(value, REDUCE_ABOVE)) return value
  const lowest = ratio(value.num, value.den)
  return isTooLarge(lowest, PART_MAX) ? 'FORMULA_OVERFLOWS' : lowest
}
