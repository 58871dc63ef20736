/**
 * A second evaluator of formulas, written from their rules: operators are put into postfix order by two stacks, and every
 * fraction is made of factors that are never shared. It takes only formulas that parse, and imports nothing of src/core.
 */
import type { Decimal } from '../../../src/core/pricing/amount.ts'
import { type Fraction, minus, nearest, plus, shifted, times, whole } from './naive-fraction.ts'

const MICRO = 1_000_000n
const LARGEST = 10n ** 100n
const LARGEST_RATE = 9_223_372_036_854_775_807n

class Failed extends Error {}

/** The rate in micro-tokens as a decimal, or the name of what is in the way. */
export function naiveFormula(text: string, variables: readonly (readonly [string, Decimal])[]): Decimal | string {
  const lookUp = (name: string): Fraction => {
    const found = variables.find(([key]) => key === name.toLowerCase())
    if (found === undefined) throw new Failed('FORMULA_VARIABLE_MISSING')
    return shifted(found[1].digits, found[1].scale)
  }
  try {
    const value = valueOf(postfix(text), lookUp)
    if (value.top < 0n) throw new Failed('FORMULA_IS_NEGATIVE')
    const rate = nearest(times(value, whole(MICRO)))
    if (rate > LARGEST_RATE) throw new Failed('FORMULA_OVERFLOWS')
    return { digits: rate, scale: 6 }
  } catch (error) {
    if (error instanceof Failed) return error.message
    throw error
  }
}

const STRENGTH: Readonly<Record<string, number>> = { '+': 1, '-': 1, '*': 2, '/': 2, '^': 3, negative: 4 }

const ONE_OPERAND = ['negative', 'ABS()', 'FLOOR.MATH()', 'CEILING.MATH()']

/** Operands and operators in the order in which a calculator with a stack takes them. */
function postfix(text: string): readonly string[] {
  const words = text.match(/[\d.]+|[A-Za-z_][\w.]*|[^\s]/g) ?? []
  const output: string[] = []
  const waiting: string[] = []
  let before = ''
  for (const [index, word] of words.entries()) {
    const afterOperand = /^[\w.]+$/.test(before) || before === ')'
    if (/^\d/.test(word)) output.push(word)
    else if (/^[A-Za-z_]/.test(word)) {
      if (words[index + 1] === '(') waiting.push(word.toUpperCase())
      else output.push(word)
    } else if (word === '(') waiting.push(word)
    else if (word === ')' || word === ',') {
      while (waiting.at(-1) !== '(') output.push(waiting.pop() ?? '')
      if (word === ')') {
        waiting.pop()
        if (/^[A-Z]/.test(waiting.at(-1) ?? '')) output.push(`${waiting.pop() ?? ''}()`)
      }
    } else {
      const operator = word === '-' && !afterOperand ? 'negative' : word
      const strength = STRENGTH[operator] ?? 0
      // A sign waits for its operand whatever came before it.
      while (operator !== 'negative' && (STRENGTH[waiting.at(-1) ?? ''] ?? 0) >= strength)
        output.push(waiting.pop() ?? '')
      waiting.push(operator)
    }
    before = word
  }
  return [...output, ...waiting.reverse()]
}

function valueOf(steps: readonly string[], lookUp: (name: string) => Fraction): Fraction {
  const stack: Fraction[] = []
  const pop = (): Fraction => {
    const value = stack.pop()
    if (value === undefined) throw new Error('only formulas that parse are evaluated')
    return value
  }
  const push = (value: Fraction): void => {
    const divisor = common(value.top < 0n ? -value.top : value.top, value.bottom)
    const lowest = { top: value.top / divisor, bottom: value.bottom / divisor }
    if (lowest.top > LARGEST || lowest.top < -LARGEST || lowest.bottom > LARGEST) throw new Failed('FORMULA_OVERFLOWS')
    stack.push(lowest)
  }
  for (const step of steps) {
    if (/^\d/.test(step)) {
      const [before = '', after = ''] = step.split('.')
      push(shifted(BigInt(before + after), after.length))
      continue
    }
    if (!Object.hasOwn(STRENGTH, step) && !step.endsWith('()')) {
      push(lookUp(step))
      continue
    }
    const right = pop()
    push(ONE_OPERAND.includes(step) ? unary(step, right) : binary(step, pop(), right))
  }
  return pop()
}

function unary(step: string, x: Fraction): Fraction {
  const opposite = { top: -x.top, bottom: x.bottom }
  if (step === 'negative') return opposite
  if (step === 'ABS()') return x.top < 0n ? opposite : x
  const below = whole(floorOf(x))
  return step === 'FLOOR.MATH()' || below.top * x.bottom === x.top ? below : plus(below, whole(1n))
}

function binary(step: string, x: Fraction, y: Fraction): Fraction {
  switch (step) {
    case '+':
    case 'SUM()':
      return plus(x, y)
    case '-':
      return minus(x, y)
    case '*':
    case 'PRODUCT()':
      return times(x, y)
    case '/':
      return dividedBy(x, y)
    case 'MIN()':
      return minus(x, y).top <= 0n ? x : y
    case 'MAX()':
      return minus(x, y).top >= 0n ? x : y
    case '^':
    case 'POWER()':
      return toThe(x, y)
    case 'ROUND()':
      return rounded(x, y)
    default:
      throw new Error(`no such operation: ${step}`)
  }
}

function dividedBy(x: Fraction, y: Fraction): Fraction {
  if (y.top === 0n) throw new Failed('FORMULA_DIVIDES_BY_ZERO')
  return y.top > 0n ? times(x, { top: y.bottom, bottom: y.top }) : times(x, { top: -y.bottom, bottom: -y.top })
}

function toThe(x: Fraction, y: Fraction): Fraction {
  if (y.top % y.bottom !== 0n || y.top / y.bottom > 64n || y.top / y.bottom < -64n)
    throw new Failed('FORMULA_UNDEFINED')
  const factors = y.top / y.bottom
  if (x.top === 0n && factors === 0n) throw new Failed('FORMULA_UNDEFINED')
  if (factors < 0n) return toThe(dividedBy(whole(1n), x), { top: -y.top, bottom: y.bottom })
  let product = whole(1n)
  for (let done = 0n; done < factors; done += 1n) product = times(product, x)
  return product
}

/** To so many decimal places, a half away from zero. */
function rounded(x: Fraction, y: Fraction): Fraction {
  if (y.top % y.bottom !== 0n || y.top / y.bottom > 20n || y.top / y.bottom < -20n)
    throw new Failed('FORMULA_UNDEFINED')
  const step = toThe(whole(10n), { top: -y.top, bottom: y.bottom })
  const size = x.top < 0n ? { top: -x.top, bottom: x.bottom } : x
  const steps = dividedBy(size, step)
  const half = { top: 1n, bottom: 2n }
  const near = times(whole(floorOf(plus(steps, half))), step)
  return x.top < 0n ? { top: -near.top, bottom: near.bottom } : near
}

function floorOf({ top, bottom }: Fraction): bigint {
  const toward = top / bottom
  return toward * bottom > top ? toward - 1n : toward
}

function common(a: bigint, b: bigint): bigint {
  return b === 0n ? a : common(b, a % b)
}
