/** Scalars on the wire. JSON numbers are written from exact decimal text, never from a double. */
import { z } from 'zod'
import {
  type Decimal,
  type Micro,
  MICRO_MAX,
  formatDecimal,
  formatMicro,
  parseDecimal,
  toMicro,
} from '../core/pricing/amount.ts'
import { parseFormula } from '../core/pricing/formula.ts'
import './problem-texts.ts'

/** Text that all stores and encodings accept: no lone surrogates, no NUL. */
export const plainText = (maxLength: number, tooLong?: string) =>
  z
    .string()
    .max(maxLength, tooLong)
    .refine((text) => text.isWellFormed() && !text.includes('\u0000'), 'must be well-formed Unicode without NUL')

/** A request that is repeated with the same value has one effect, and gets the same response. */
export const idempotencyHeader = 'idempotency-key'

export const idempotencyKeyText = plainText(255).min(1)

/** Text for a path segment: clients resolve `.` and `..` themselves and could never address such a name. */
export const pathText = plainText(256)
  .min(1)
  .refine((text) => text !== '.' && text !== '..', 'must not be . or ..')

export const uuid = z.guid()

/** Made once: a schema is compiled at its first use. */
export const uuidInLowerCase = uuid.toLowerCase()

/** Name of a cell of the cloud. */
export const cellName = z.string().regex(/^[a-z0-9][a-z0-9-]{0,30}$/)

/** The end of the year 9999. */
export const INSTANT_MAX = 253_402_300_799_999

export const instant = z.int().min(0).max(INSTANT_MAX)

export const microText = z
  .string()
  .regex(/^(0|[1-9]\d{0,18})$/, 'must be a whole number of micro-tokens as text')
  .transform((text) => BigInt(text))
  .refine((amount) => amount <= MICRO_MAX, 'must fit a signed 64-bit integer')

/** Of micro-tokens from several accounts, which may exceed a counter of 64 bits. */
export const sumText = z
  .string()
  .regex(/^(0|[1-9]\d{0,24})$/, 'must be a whole number of micro-tokens as text')
  .transform((text) => BigInt(text))

export const decimalText = z
  .string()
  .max(80)
  .transform((text, context): Decimal => {
    const value = parseDecimal(text)
    if (value !== undefined && value.digits >= 0n) return value
    context.addIssue({ code: 'custom', message: 'must be a non-negative decimal as text' })
    return z.NEVER
  })

/** The text of a formula that core can evaluate. */
export const formulaText = z.string().superRefine((text, context) => {
  const parsed = parseFormula(text)
  if (!('problem' in parsed)) return
  context.addIssue({ code: 'custom', message: `at character ${parsed.position}: ${parsed.problem}` })
})

/** A JSON number, possibly fractional, read by its shortest decimal text. */
export const decimalNumber = (rule: 'POSITIVE' | 'NON_NEGATIVE') =>
  bounded(rule).transform((number, context): Decimal => {
    const value = parseDecimal(number)
    if (value !== undefined && (rule === 'POSITIVE' ? value.digits > 0n : value.digits >= 0n)) return value
    context.addIssue({ code: 'custom', message: 'must be a number in the supported range' })
    return z.NEVER
  })

/** A JSON number of tokens. Not an amount that rounding would turn into 0: that has another meaning. */
export const tokenAmount = (rule: 'POSITIVE' | 'NON_NEGATIVE') =>
  decimalNumber(rule).transform((tokens, context): Micro => {
    const amount = toMicro(tokens)
    const most = amount > MICRO_MAX ? `must be at most ${formatMicro(MICRO_MAX)} tokens` : undefined
    const problem = isTooFine(tokens) ? TOO_FINE : most
    if (problem === undefined) return amount
    context.addIssue({ code: 'custom', message: problem })
    return z.NEVER
  })

export const TOO_FINE = 'is above 0 and below 0.000001 tokens, the smallest amount'

export function isTooFine(tokens: Decimal): boolean {
  return tokens.digits > 0n && toMicro(tokens) === 0n
}

/** A separate check, so that the API description can show the bound. */
function bounded(rule: 'POSITIVE' | 'NON_NEGATIVE') {
  const number = z.number({ error: quotedNumber })
  return rule === 'POSITIVE' ? number.gt(0, 'must be greater than 0') : number.min(0, 'must be 0 or more')
}

/** Undefined for anything but a number in quotes: the usual message fits. */
function quotedNumber({ input }: { readonly input?: unknown }): string | undefined {
  if (typeof input !== 'string' || parseDecimal(input) === undefined) return undefined
  return `must be a number, not text: write ${input} without quotes`
}

export function tokensNumber(amount: Micro): number {
  return rawNumber(formatMicro(amount))
}

export function exactNumber(value: Decimal): number {
  return rawNumber(formatDecimal(value))
}

/** ECMAScript's JSON.rawJSON, which the library types do not declare. */
const { rawJSON } = JSON as unknown as { rawJSON: (text: string) => number }

/** JSON.stringify writes the bare number; typed `number` because readers get one. */
export function rawNumber(text: string): number {
  const number = Number(text)
  return String(number) === text ? number : rawJSON(text)
}

/** A field of responses only. A body can repeat it, so that a client can send back what it read; it is ignored. */
export const readOnlyField = z.unknown().optional().meta({ readOnly: true })

export const queryInstant = z
  .string()
  .regex(/^\d{1,15}$/, 'must be POSIX milliseconds')
  .transform(Number)
  .pipe(instant)

export const queryBoolean = z
  .string()
  .toLowerCase()
  .pipe(z.enum(['true', 'false']))
  .transform((text) => text === 'true')
  .meta({ wire: { type: 'boolean' } })

export const API_PREFIX = '/dynamicmonetization'

/** Header with the cloud's version for authenticated devices and administrators. */
export const VERSION_HEADER = 'x-tallygate-version'
