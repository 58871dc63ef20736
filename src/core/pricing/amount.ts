/**
 * Exact amounts. Tokens are integers of micro-tokens (10^-6) in `bigint`; counts, rates and other decimals keep every
 * digit that the caller wrote. Nothing in here ever goes through binary floating point arithmetic; the only rounding is
 * {@link roundHalfEven}, and it is applied once per charge.
 */

/** Micro-tokens: 1 token = 1_000_000n. */
export type Micro = bigint

export const MICRO_PER_TOKEN = 1_000_000n

/** Digits behind the point of a token. */
const MICRO_SCALE = 6

/** The largest amount that every store can hold in a signed 64-bit integer: about 9.2 * 10^12 tokens. */
export const MICRO_MAX: Micro = 2n ** 63n - 1n

/** No account ever has more than {@link MICRO_MAX}: to need more is to need all that there can be. */
export function countable(amount: Micro): Micro {
  return amount < MICRO_MAX ? amount : MICRO_MAX
}

/** An exact decimal: `digits * 10^-scale`, scale >= 0. Two decimals of equal value may differ in scale. */
export interface Decimal {
  readonly digits: bigint
  readonly scale: number
}

/** A fraction of two integers, `den > 0n`, in lowest terms. */
export interface Ratio {
  readonly num: bigint
  readonly den: bigint
}

/** More exponent than any token count needs; keeps a hostile `1e308` from becoming a 300-digit integer. */
const EXPONENT_MAX = 40

const DECIMAL = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,4}))?$/

/**
 * Reads a decimal from JSON number text or from a JavaScript number (by its shortest text that reads back the same).
 * Returns undefined for anything that is not a finite decimal of reasonable size.
 */
export function parseDecimal(source: string | number): Decimal | undefined {
  const match = DECIMAL.exec(String(source))
  if (match === null) return undefined
  const [, sign, whole = '', fraction = '', exponentText = '0'] = match
  const exponent = Number(exponentText)
  if (Math.abs(exponent) > EXPONENT_MAX || whole.length + fraction.length > 2 * EXPONENT_MAX) return undefined
  const digits = BigInt(whole + fraction) * (sign === '-' ? -1n : 1n)
  const scale = fraction.length - exponent
  return scale >= 0 ? { digits, scale } : { digits: digits * 10n ** BigInt(-scale), scale: 0 }
}

/** Like {@link parseDecimal} for text that is known to be a decimal. Throws RangeError otherwise. */
export function decimal(source: string | number): Decimal {
  const value = parseDecimal(source)
  if (value === undefined) throw new RangeError(`not a decimal: ${String(source)}`)
  return value
}

export function decimalRatio({ digits, scale }: Decimal): Ratio {
  return scale === 0 ? { num: digits, den: 1n } : ratio(digits, 10n ** BigInt(scale))
}

/** `num / den` in lowest terms. Throws RangeError for a zero denominator. */
export function ratio(num: bigint, den: bigint): Ratio {
  if (den === 0n) throw new RangeError('division by zero')
  const sign = den < 0n ? -1n : 1n
  const divisor = greatestCommonDivisor(num, den)
  return { num: (sign * num) / divisor, den: (sign * den) / divisor }
}

/** Of two numbers of which one is not zero. */
function greatestCommonDivisor(a: bigint, b: bigint): bigint {
  let [x, y] = [a < 0n ? -a : a, b < 0n ? -b : b]
  while (y !== 0n) [x, y] = [y, x % y]
  return x
}

/** The integer nearest to `num / den`, ties to the even one. `den > 0n`. */
export function roundHalfEven({ num, den }: Ratio): bigint {
  const floor = num >= 0n ? num / den : -((-num + den - 1n) / den)
  const twice = 2n * (num - floor * den)
  if (twice < den) return floor
  if (twice > den) return floor + 1n
  return floor % 2n === 0n ? floor : floor + 1n
}

/** Micro-tokens of an exact decimal number of tokens, rounded half to even at the sixth fractional digit. */
export function toMicro(tokens: Decimal): Micro {
  return roundHalfEven(ratio(tokens.digits * MICRO_PER_TOKEN, 10n ** BigInt(tokens.scale)))
}

/** Micro-tokens of a whole number of tokens. */
export function wholeTokens(tokens: bigint | number): Micro {
  return BigInt(tokens) * MICRO_PER_TOKEN
}

/** Decimal text of an amount in tokens without trailing zeros: 1_500_000n is `1.5`. Reads back exactly. */
export function formatMicro(amount: Micro): string {
  return formatDecimal({ digits: amount, scale: MICRO_SCALE })
}

/** Decimal text of a decimal, without exponent and without trailing fractional zeros. */
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
