/** A PUT reports all problems, in the service's words. Source: interface, Errors; documentation on line items. */
import { z } from 'zod'
import { LINE_ITEM_ENCODED_MAX, fitsEncoded } from '../../core/accounts/account.ts'
import { MICRO_MAX, MICRO_PER_TOKEN } from '../../core/pricing/amount.ts'
import { type JsonObject, isJsonObject } from '../parse-json.ts'
import { INSTANT_MAX, instant, pathText, plainText, readOnlyField } from '../wire.ts'
import type { ApiVersion } from './status.ts'

export const LINE_ITEM_STATES = ['DEPLOYED', 'INACTIVE', 'OBSOLETE'] as const
export const OVERDRAFT_TYPES = ['Number', 'Unlimited'] as const
/** Values chosen by this project: docs/decisions/periods.md. */
export const RESET_FREQUENCIES = ['NONE', 'DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY'] as const

const TOKENS_MAX = Number(MICRO_MAX / MICRO_PER_TOKEN)

export const lineItemId = pathText.refine(
  (id) => fitsEncoded(LINE_ITEM_ENCODED_MAX, id),
  `must be at most ${LINE_ITEM_ENCODED_MAX} characters long after percent-encoding`,
)

/** 2^63, the double of Java's Long.MAX_VALUE. */
const INT64_LIMIT = 2 ** 63
const INT64_MAX = BigInt(INT64_LIMIT) - 1n

/** Larger values than the service counts with are {@link clamped}. */
const INT64_WIRE = { type: 'integer', format: 'int64', minimum: 0 }

const wholeTokens = z.int().min(0).max(TOKENS_MAX).meta({ wire: INT64_WIRE })
const lineItemInstant = instant.meta({ wire: INT64_WIRE })

const attributesV10 = z.strictObject({
  elastic: z.boolean().optional(),
  rateTableSeries: plainText(256).optional(),
  overdraftLimit: wholeTokens.optional(),
  overdraftType: z.enum(OVERDRAFT_TYPES).optional(),
})

const attributesV11 = attributesV10.extend({ resetFrequency: z.enum(RESET_FREQUENCIES).optional() })

const shape = {
  activationId: lineItemId,
  state: z.enum(LINE_ITEM_STATES),
  quantity: wholeTokens,
  start: lineItemInstant,
  end: lineItemInstant,
  used: readOnlyField,
  instanceId: z.string().optional(),
}

export const lineItemBodies = {
  'v1.0': z.strictObject({ ...shape, attributes: attributesV10 }).meta({ id: 'LineItemToMap' }),
  'v1.1': z.strictObject({ ...shape, attributes: attributesV11 }).meta({ id: 'LineItemToMap' }),
} as const

export type LineItemBody = z.infer<(typeof lineItemBodies)['v1.1']> & { readonly given?: GivenIntegers }

const shownInteger = z.number().min(0).meta({ wire: INT64_WIRE })

const shown = {
  activationId: z.string(),
  state: z.enum(LINE_ITEM_STATES),
  quantity: shownInteger,
  start: shownInteger,
  end: shownInteger,
  used: z.number().min(0),
}

export const lineItems = {
  'v1.0': z.strictObject({ ...shown, attributes: shownAttributes(attributesV10) }).meta({ id: 'LineItem' }),
  'v1.1': z.strictObject({ ...shown, attributes: shownAttributes(attributesV11) }).meta({ id: 'LineItem' }),
} as const
export type LineItemWire = z.infer<(typeof lineItems)['v1.1']>

function shownAttributes(attributes: typeof attributesV10) {
  return attributes.extend({ overdraftLimit: shownInteger.optional() })
}

const problemTexts = z.array(z.string()).min(1)

/** Problems of a PUT body. v1.1 renamed the key. */
export const lineItemProblems = {
  'v1.0': z.strictObject({ errors: problemTexts }).meta({ id: 'LineItemProblems' }),
  'v1.1': z.strictObject({ message: problemTexts }).meta({ id: 'LineItemProblems' }),
} as const

export type GivenIntegers = Readonly<Partial<Record<'start' | 'end' | 'quantity' | 'overdraftLimit', string>>>

/** Reduces integers to the largest that the service counts with; the interface sets no bound but their type. */
function clamped(payload: unknown): { readonly value: unknown; readonly given: GivenIntegers } {
  const fields = fieldsOf(payload)
  const attributes = fieldsOf(fields['attributes'])
  const given: Record<string, string> = {}
  const atMost = (name: string, value: unknown, max: number): unknown => {
    if (typeof value !== 'number' || !Number.isInteger(value) || value <= max || value > INT64_LIMIT) return value
    given[name] = String(value === INT64_LIMIT ? INT64_MAX : BigInt(value))
    return max
  }
  const start = atMost('start', fields['start'], INSTANT_MAX)
  const end = atMost('end', fields['end'], INSTANT_MAX)
  const quantity = atMost('quantity', fields['quantity'], TOKENS_MAX)
  const most = TOKENS_MAX - (isInteger(quantity) && quantity > 0 ? quantity : 0)
  const overdraftLimit = atMost('overdraftLimit', attributes['overdraftLimit'], most)
  if (Object.keys(given).length === 0) return { value: payload, given }
  const inner = given['overdraftLimit'] === undefined ? fields['attributes'] : { ...attributes, overdraftLimit }
  return { value: { ...fields, start, end, quantity, attributes: inner }, given }
}

export interface LineItemProblem {
  /** Name of the field in the body or its attributes; null: the body as a whole. */
  readonly field: string | null
  /** For people. */
  readonly problem: string
  /** In the service's words, with the path. */
  readonly text: string
}

export type LineItemParse =
  | { readonly ok: true; readonly body: LineItemBody }
  | { readonly ok: false; readonly problems: readonly LineItemProblem[] }

export function parseLineItem(version: ApiVersion, instanceId: string, payload: unknown): LineItemParse {
  const { value, given } = clamped(payload)
  const parsed = lineItemBodies[version].safeParse(value, { reportInput: true })
  const problems = [
    ...(parsed.success ? [] : parsed.error.issues.flatMap(problemsOf)),
    ...(isOfAnother(instanceId, value) ? [problemAt(['instanceId'], 'must be the instance of the path')] : []),
    ...contradictions(payload).map(({ path, problem, lacks }) =>
      lacks === undefined ? problemAt(path, problem) : missing([...path, lacks]),
    ),
  ]
  return parsed.success && problems.length === 0
    ? { ok: true, body: { ...parsed.data, given } }
    : { ok: false, problems }
}

function isOfAnother(instanceId: string, payload: unknown): boolean {
  const { instanceId: given } = fieldsOf(payload)
  return typeof given === 'string' && given.toLowerCase() !== instanceId
}

interface Contradiction {
  readonly path: readonly string[]
  readonly problem: string
  /** The property that is missing. */
  readonly lacks?: string
}

/** Rules across fields; they skip fields that are malformed themselves. */
export function contradictions(payload: unknown): readonly Contradiction[] {
  const { start, end, attributes } = fieldsOf(payload)
  const { overdraftType, overdraftLimit } = fieldsOf(attributes)
  const found: Contradiction[] = []
  if (isInteger(start) && isInteger(end) && end < start)
    found.push({ path: ['end'], problem: 'must not be before start' })
  if (overdraftLimit !== undefined && overdraftType === undefined) found.push(lacking('overdraftType'))
  if (overdraftType === 'Number' && overdraftLimit === undefined) found.push(lacking('overdraftLimit'))
  return found
}

function lacking(attribute: string): Contradiction {
  return { path: ['attributes'], problem: notFound(attribute), lacks: attribute }
}

/**
 * @param before null: the line item is not mapped
 * @returns undefined if the state may follow. Source: documentation on the state of a line item
 */
export function stateProblem(before: string | null, state: string): string | undefined {
  if (before === null && state !== 'DEPLOYED') return `${state} may be set only on a line item that is mapped already`
  if (before === 'OBSOLETE' && state !== 'OBSOLETE') return `OBSOLETE is final and cannot become ${state}`
  return undefined
}

function fieldsOf(value: unknown): JsonObject {
  return isJsonObject(value) ? value : {}
}

function isInteger(value: unknown): value is number {
  return Number.isInteger(value)
}

const INTEGERS = new Set(['$.quantity', '$.start', '$.end', '$.attributes.overdraftLimit'])

function problemsOf(issue: z.core.$ZodIssue): readonly LineItemProblem[] {
  const problems = inServiceWords(issue)
  return issue.input === undefined ? problems : problems.map((each) => ({ ...each, problem: issue.message }))
}

function inServiceWords(issue: z.core.$ZodIssue): readonly LineItemProblem[] {
  const { path } = issue
  switch (issue.code) {
    case 'invalid_type': {
      if (issue.input === undefined) return [missing(path)]
      const expected = INTEGERS.has(pathOf(path)) ? 'integer' : issue.expected
      return [problemAt(path, `${typeOf(issue.input)} found, ${expected} expected`)]
    }
    case 'invalid_value':
      if (issue.input === undefined) return [missing(path)]
      return [problemAt(path, enumerated(issue.input, issue.values))]
    case 'unrecognized_keys':
      return issue.keys.map((key) =>
        problemAt(
          path,
          `property '${shorten(key)}' is not defined in the schema and the schema does not allow additional properties`,
        ),
      )
    case 'too_small':
      if (isSafeBound(issue.minimum)) return []
      return [
        problemAt(
          path,
          issue.origin === 'string'
            ? `must be at least ${issue.minimum} characters long`
            : `must have a minimum value of ${issue.minimum}`,
        ),
      ]
    case 'too_big':
      if (isSafeBound(issue.maximum)) return []
      return [
        problemAt(
          path,
          issue.origin === 'string'
            ? `must be at most ${issue.maximum} characters long`
            : `must have a maximum value of ${INT64_MAX}`,
        ),
      ]
    default:
      return [problemAt(path, issue.message)]
  }
}

export function problemAt(path: readonly PropertyKey[], problem: string): LineItemProblem {
  return { field: fieldAt(path), problem, text: `${pathOf(path)}: ${problem}` }
}

function fieldAt(path: readonly PropertyKey[]): string | null {
  return path.length === 0 ? null : String(path.at(-1))
}

function isSafeBound(bound: number | bigint): boolean {
  return bound === Number.MAX_SAFE_INTEGER || bound === Number.MIN_SAFE_INTEGER
}

function enumerated(input: unknown, values: readonly unknown[]): string {
  return typeof input === 'string'
    ? `does not have a value in the enumeration [${values.join(', ')}]`
    : `${typeOf(input)} found, string expected`
}

function missing(path: readonly PropertyKey[]): LineItemProblem {
  if (path.length === 0) return problemAt(path, 'nothing found, object expected')
  const { text } = problemAt(path.slice(0, -1), notFound(String(path.at(-1))))
  return { field: fieldAt(path), problem: 'is missing', text }
}

function notFound(property: string): string {
  return `required property '${property}' not found`
}

function pathOf(path: readonly PropertyKey[]): string {
  return ['$', ...path.map(String)].join('.')
}

/** Type names of the validator: a number without a fraction is an integer. */
function typeOf(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'array'
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number'
  return typeof value
}

function shorten(key: string): string {
  return key.length > 100 ? `${key.slice(0, 100)}…` : key
}
