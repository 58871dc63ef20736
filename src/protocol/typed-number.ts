/** Numbers that people type. JSON has about 16 digits for a number, and none is rounded silently. */
import { formatDecimal, parseDecimal } from '../core/pricing/amount.ts'

/** NaN for anything but a decimal: schemas refuse it. */
export function typedNumber(text: string): number {
  return parseDecimal(text) === undefined ? Number.NaN : Number(text)
}

/** Undefined if JSON has the number of the text, or the text is no decimal. */
export function digitsProblem(text: string): string | undefined {
  const [given, nearest] = [parseDecimal(text), parseDecimal(typedNumber(text))]
  if (given === undefined || nearest === undefined || formatDecimal(given) === formatDecimal(nearest)) return undefined
  return `has too many digits. The nearest number is ${formatDecimal(nearest)}`
}

/** A whole number that JSON rounds exceeds every amount of tokens: the schemas refuse it, or reduce it to the largest amount. */
export function tokenDigitsProblem(text: string): string | undefined {
  const isBeyond = parseDecimal(text)?.scale === 0 && !Number.isSafeInteger(Number(text))
  return isBeyond ? undefined : digitsProblem(text)
}
