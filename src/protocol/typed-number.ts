/** Numbers that people type. JSON has about 16 digits for a number, and none is rounded silently. */
import { formatDecimal, parseDecimal } from '../core/pricing/amount.ts'

/** NaN for anything but digits with an optional sign and fraction: schemas refuse it. */
export function typedNumber(text: string): number {
  return /^-?\d+(?:\.\d+)?$/.test(text) && parseDecimal(text) !== undefined ? Number(text) : Number.NaN
}

/** Undefined if JSON has the number of the text, or the text is no decimal. Files may write it with an exponent. */
export function digitsProblem(text: string): string | undefined {
  const [given, nearest] = [parseDecimal(text), parseDecimal(Number(text))]
  if (given === undefined || nearest === undefined || formatDecimal(given) === formatDecimal(nearest)) return undefined
  return `has too many digits. The nearest number is ${formatDecimal(nearest)}`
}

/** A whole number that JSON rounds exceeds every amount of tokens: the schemas refuse it, or reduce it to the largest amount. */
export function tokenDigitsProblem(text: string): string | undefined {
  const isBeyond = parseDecimal(text)?.scale === 0 && !Number.isSafeInteger(Number(text))
  return isBeyond ? undefined : digitsProblem(text)
}
