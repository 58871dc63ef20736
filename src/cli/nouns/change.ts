import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { numberText } from '../../client/exact-json.ts'
import { CodedError, messageOf } from '../../protocol/errors.ts'
import { nearest } from '../../settings/nearest.ts'
import { timeArgument } from '../arguments.ts'
import type { Path } from './document.ts'
import { type Noun, type Setting, valueText } from './noun.ts'
import type { Row } from './service.ts'

export interface Difference {
  readonly path: string
  readonly before: string | null
  readonly after: string | null
}

export interface Planned {
  readonly body: Row
  readonly existing: Row | undefined
  readonly differences: readonly Difference[]
}

export type Settable = Noun & { readonly set: Setting }

/** @throws CodedError CONFLICT if the object cannot become so */
export function plan({ set, one, nameOf }: Settable, given: Row, existing: Row | undefined, now: number): Planned {
  const current = existing === undefined ? {} : set.current(existing)
  const body = set.complete(given, current, now)
  const refusal = set.refuse?.(body, existing)
  if (refusal !== undefined) throw new CodedError('CONFLICT', `The ${one} ${nameOf(body)}: ${refusal}.`)
  const differences = differencesOf(current, body)
  if (existing !== undefined && set.fixed === true && differences.length > 0) {
    const paths = differences.map(({ path, before, after }) => `${path}: ${before ?? '-'} → ${after ?? '-'}`)
    throw new CodedError(
      'CONFLICT',
      `The ${one} ${nameOf(existing)} exists and cannot be changed (${paths.join(', ')}). Use another ${set.called}.`,
    )
  }
  return { body, existing, differences }
}

export interface Problem {
  readonly path: Path
  readonly problem: string
  readonly isMissing?: true
}

/** @param sections fields that a file has beside those of the body */
export function problemsOf({ set }: Settable, body: Row, sections: readonly string[] = []): readonly Problem[] {
  const parsed = set.schema.safeParse(body, { reportInput: true })
  if (parsed.success) return []
  const { issues } = parsed.error
  return issues
    .filter((issue) => !issues.some((other) => isStricter(other, issue)))
    .flatMap((issue) => {
      const known = fieldsAt(set.schema, issue.path)
      return problemOf(issue, issue.path.length === 0 ? [...known, ...sections] : known)
    })
}

/** An integer that is too large also exceeds what a number can count exactly. */
function isStricter(issue: z.core.$ZodIssue, than: z.core.$ZodIssue): boolean {
  return (
    issue.code === 'too_big' &&
    than.code === 'too_big' &&
    issue.maximum < than.maximum &&
    isDeepStrictEqual(issue.path, than.path)
  )
}

/** @param known the fields of the object that the issue is about */
function problemOf(issue: z.core.$ZodIssue, known: readonly string[]): readonly Problem[] {
  const { path } = issue
  if (issue.code === 'unrecognized_keys')
    return issue.keys.map((key) => ({ path: [...path, key], problem: noSuchField(key, known) }))
  if (issue.input === undefined && issue.code.startsWith('invalid'))
    return [{ path, problem: 'is missing', isMissing: true }]
  const isUnquoted = issue.code === 'invalid_type' && issue.expected === 'string' && typeof issue.input === 'number'
  return [{ path, problem: isUnquoted ? 'must be text: write it in quotes' : issue.message }]
}

export function noSuchField(name: string, known: readonly string[]): string {
  const close = nearest(name, known)
  return `there is no such field${close === undefined ? '' : `. Did you mean ${close}?`}`
}

/** Names of the fields of an object in a body, with those of all alternatives. */
function fieldsAt(schema: unknown, path: Path): readonly string[] {
  if (schema instanceof z.ZodOptional || schema instanceof z.ZodLazy) return fieldsAt(schema.unwrap(), path)
  if (schema instanceof z.ZodUnion) return schema.options.flatMap((option) => fieldsAt(option, path))
  const [first, ...rest] = path
  if (schema instanceof z.ZodArray) return fieldsAt(schema.element, rest)
  if (!(schema instanceof z.ZodObject)) return []
  return first === undefined ? Object.keys(schema.shape) : fieldsAt(schema.shape[String(first)], rest)
}

export function withTimes({ set }: Settable, given: Row, where: (path: Path) => string): Row {
  const times = set.fields.filter(({ kind, path }) => kind === 'time' && typeof given[path] === 'string')
  const parsed = times.map(({ path }): readonly [string, number] => {
    try {
      return [path, timeArgument(String(given[path]))]
    } catch (cause) {
      throw new CodedError('FILE_INVALID', `${where([path])}: ${messageOf(cause)}`, { cause })
    }
  })
  const byPath: Row = Object.fromEntries(parsed)
  return { ...given, ...byPath }
}

function differencesOf(before: unknown, after: unknown, path = ''): readonly Difference[] {
  if (isRow(before) && isRow(after)) {
    const names = new Set([...Object.keys(before), ...Object.keys(after)])
    return [...names].flatMap((name) =>
      differencesOf(before[name], after[name], path === '' ? name : `${path}.${name}`),
    )
  }
  if (isDeepStrictEqual(comparable(before), comparable(after))) return []
  const shown = (value: unknown): string | null => (value === undefined ? null : valueText(value))
  return [{ path, before: shown(before), after: shown(after) }]
}

export function isRow(value: unknown): value is Row {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && numberText(value) === undefined
}

/** Numbers as text, and absent values like missing ones. */
function comparable(value: unknown): unknown {
  const number = numberText(value)
  if (number !== undefined) return { number }
  if (Array.isArray(value)) return value.map(comparable)
  if (!isRow(value)) return value
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, each]) => each !== undefined)
      .map(([name, each]) => [name, comparable(each)]),
  )
}
