/** Parses JSON with each number as its source text, so that token amounts stay exact. The schema tells numbers from texts. */
import { z } from 'zod'
import { type Micro, MICRO_PER_TOKEN, parseDecimal } from '../core/pricing/amount.ts'

export function parseExactJson(text: string): unknown {
  return (JSON.parse as ParseWithSource)(text, (_key, value, context) =>
    typeof value === 'number' ? context.source : value,
  )
}

/** ECMAScript's JSON.parse source text access, missing in the library types. */
type ParseWithSource = (
  text: string,
  reviver: (key: string, value: unknown, context: { readonly source: string }) => unknown,
) => unknown

/** Token amount parsed by {@link parseExactJson}; rejects amounts finer than a micro-token. */
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

/** Parses JSON so that JSON.stringify repeats each number exactly: those that a double would change are raw. */
export function parseRepeatableJson(text: string): unknown {
  return (JSON.parse as ParseWithSource)(text, (_key, value, { source }) =>
    typeof value === 'number' && String(value) !== source ? rawJSON(source) : value,
  )
}

/** ECMAScript's JSON.rawJSON, missing in the library types. */
const { rawJSON } = JSON as unknown as { rawJSON: (text: string) => unknown }

/** Source text of a number that {@link parseRepeatableJson} has read; undefined for anything else. */
export function numberText(value: unknown): string | undefined {
  if (typeof value === 'number') return String(value)
  const isRaw = typeof value === 'object' && value !== null && 'rawJSON' in value
  return isRaw && typeof value.rawJSON === 'string' ? value.rawJSON : undefined
}
