/**
 * JSON whose numbers keep every digit: each number becomes its source text, so that amounts of tokens can be added and
 * compared exactly. What reads such a document knows by its schema which texts are numbers.
 */
import { z } from 'zod'
import { type Micro, MICRO_PER_TOKEN, parseDecimal } from '../core/amount.ts'

/** @throws SyntaxError */
export function parseExactJson(text: string): unknown {
  return (JSON.parse as ParseWithSource)(text, (_key, value, context) =>
    typeof value === 'number' ? context.source : value,
  )
}

/** ECMAScript's JSON.parse with source text access, which the library types do not declare. */
type ParseWithSource = (
  text: string,
  reviver: (key: string, value: unknown, context: { readonly source: string }) => unknown,
) => unknown

/** A number of tokens as parsed by {@link parseExactJson}; refused when it is finer than a micro-token. */
export const exactTokens = z.string().transform((text, context): Micro => {
  const value = parseDecimal(text)
  if (value !== undefined) {
    const divisor = 10n ** BigInt(value.scale)
    const scaled = value.digits * MICRO_PER_TOKEN
    if (scaled % divisor === 0n) return scaled / divisor
  }
  context.addIssue({ code: 'custom', message: 'must be a number of whole micro-tokens' })
  return z.NEVER
})
