/**
 * Tokens are `bigint` micro-tokens (10^-6), and decimals keep every digit. No binary floating point; the only rounding
 * is {@link roundHalfEven}, applied once per charge.
 */

/** 1 token = 1_000_000n. */
export type Micro = bigint

export const MICRO_PER_TOKEN = 1_000_000n

const MICRO_SCALE = 6

/** Largest signed 64-bit integer, about 9.2 * 10^12 tokens: every database can store it. */
export const MICRO_MAX: Micro = 2n ** 63n - 1n

export function countable(amount: Micro): Micro {
  return amount < MICRO_MAX ? amount : MICRO_MAX
}

/** `digits * 10^-scale`, scale >= 0. Decimals of equal value may differ in scale. */
export interface Decimal {
  readonly digits: bigint
  readonly scale: number
}

/** In lowest terms, `den > 0n`. */
export interface Ratio {
  readonly num: bigint
  readonly den: bigint
}

/** Keeps a hostile `1e308` from becoming a 300-digit integer. */
const EXPONENT_MAX = 40

const DECIMAL = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,4}))?$/

/** Accepts JSON number text, or a number by its shortest exact text. Undefined if it is not finite or too large. */
export function parseDecimal(source: string | number): Decimal | undefined {
  if (Number.isSafeInteger(source)) return { digits: BigInt(source), scale: 0 }
  const match = DECIMAL.exec(String(source))
  if (match === null) return undefined
  const [, sign, whole = '', fraction = '', exponentText = '0'] = match
  const exponent = Number(exponentText)
  if (Math.abs(exponent) > EXPONENT_MAX || whole.length + fraction.length > 2 * EXPONENT_MAX) return undefined
  const digits = BigInt(whole + fraction) * (sign === '-' ? -1n : 1n)
  const scale = fraction.length - exponent
  return scale >= 0 ? { digits, scale } : { digits: digits * 10n ** BigInt(-scale), scale: 0 }
}

/** {@link parseDecimal} for known decimals. Throws RangeError otherwise. */
export function decimal(source: string | number): Decimal {
  const value = parseDecimal(source)
  if (value === undefined) throw new RangeError(`not a decimal: ${String(source)}`)
  return value
}

export function decimalRatio({ digits, scale }: Decimal): Ratio {
  return scale === 0 ? { num: digits, den: 1n } : ratio(digits, 10n ** BigInt(scale))
}

/** In lowest terms. Throws RangeError for a zero denominator. */
export function ratio(num: bigint, den: bigint): Ratio {
  if (den === 0n) throw new RangeError('division by zero')
  const sign = den < 0n ? -1n : 1n
  const divisor = greatestCommonDivisor(num, den)
  return { num: (sign * num) / divisor, den: (sign * den) / divisor }
}

function greatestCommonDivisor(a: bigint, b: bigint): bigint {
  let [x, y] = [a < 0n ? -a : a, b < 0n ? -b : b]
  while (y !== 0n) [x, y] = [y, x % y]
  return x
}

/** The integer nearest to `num / den`, ties to even. `den > 0n`. */
export function roundHalfEven({ num, den }: Ratio): bigint {
  const floor = num >= 0n ? num / den : -((-num + den - 1n) / den)
  const twice = 2n * (num - floor * den)
  if (twice < den) return floor
  if (twice > den) return floor + 1n
  return floor % 2n === 0n ? floor : floor + 1n
}

export function toMicro(tokens: Decimal): Micro {
  return roundHalfEven(ratio(tokens.digits * MICRO_PER_TOKEN, 10n ** BigInt(tokens.scale)))
}

export function wholeTokens(tokens: bigint | number): Micro {
  return BigInt(tokens) * MICRO_PER_TOKEN
}

/** Decimal text in tokens without trailing zeros: 1_500_000n is `1.5`. Reads back exactly. */
export function formatMicro(amount: Micro): string {
  return formatDecimal({ digits: amount, scale: MICRO_SCALE })
}

/** Without exponent and trailing fractional zeros. */
export function formatDecimal({ digits, scale }: Decimal): string {
  if (scale === 0) return digits.toString()
  const sign = digits < 0n ? '-' : ''
  const text = (digits < 0n ? -digits : digits).toString().padStart(scale + 1, '0')
  const point = text.length - scale
  let end = text.length
  while (end > point && text.charCodeAt(end - 1) === ZERO) end -= 1
  const whole = text.slice(0, point)
  return end === point ? `${sign}${whole}` : `${sign}${whole}.${text.slice(point, end)}`
}

const ZERO = 0x30
