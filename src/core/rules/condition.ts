/** Evaluation never throws on data: the result is ERROR if it is not possible, and an ERROR always refuses. */
import { CONDITION_DEPTH_MAX, type Condition } from './policy.ts'

export type ConditionResult = 'TRUE' | 'FALSE' | 'ERROR'

export type Dictionary = Readonly<Record<string, unknown>>

export type Evaluate = (dictionary: Dictionary) => ConditionResult

export const ALWAYS_ERROR: Evaluate = () => 'ERROR'

export function compileCondition(condition: Condition, depth = 1): Evaluate {
  if (depth > CONDITION_DEPTH_MAX) return ALWAYS_ERROR
  switch (condition.operator) {
    case 'AND':
      return compileAll(condition.conditions, 'FALSE', depth)
    case 'OR':
      return compileAll(condition.conditions, 'TRUE', depth)
    case 'NOT': {
      const inner = compileCondition(condition.condition, depth + 1)
      return (dictionary) => not(inner(dictionary))
    }
    case 'IN':
      return compileIn(condition.property, condition.values)
    default:
      return ALWAYS_ERROR
  }
}

function not(result: ConditionResult): ConditionResult {
  if (result === 'ERROR') return 'ERROR'
  return result === 'TRUE' ? 'FALSE' : 'TRUE'
}

/** Kleene's AND (decided by FALSE) and OR (decided by TRUE); the sequence of parts has no effect. */
function compileAll(parts: readonly Condition[], decidedBy: 'TRUE' | 'FALSE', depth: number): Evaluate {
  if (parts.length === 0) return ALWAYS_ERROR
  const inner = parts.map((part) => compileCondition(part, depth + 1))
  return (dictionary) => {
    let error = false
    for (const evaluate of inner) {
      const result = evaluate(dictionary)
      if (result === decidedBy) return decidedBy
      if (result === 'ERROR') error = true
    }
    if (error) return 'ERROR'
    return not(decidedBy)
  }
}

/**
 * True if the property, or any element of an array, is one of the values. Numbers and booleans are compared by their
 * JSON text. Absent or null is FALSE; an object cannot be compared.
 */
function compileIn(property: string, values: readonly string[]): Evaluate {
  const wanted = new Set(values)
  const compare = (value: unknown): ConditionResult => {
    const text = comparableText(value)
    if (text === undefined) return 'ERROR'
    return text !== null && wanted.has(text) ? 'TRUE' : 'FALSE'
  }
  return (dictionary) => {
    if (!Object.hasOwn(dictionary, property)) return 'FALSE'
    const value = dictionary[property]
    if (!Array.isArray(value)) return compare(value)
    const { texts, incomparable } = elementsOf(value)
    for (const text of wanted) if (texts.has(text)) return 'TRUE'
    return incomparable ? 'ERROR' : 'FALSE'
  }
}

interface Elements {
  readonly texts: ReadonlySet<string>
  readonly incomparable: boolean
}

/** Caches arrays of the dictionary, so that a long one is read once and not per condition. */
const KNOWN_ELEMENTS = new WeakMap<readonly unknown[], Elements>()

function elementsOf(array: readonly unknown[]): Elements {
  const known = KNOWN_ELEMENTS.get(array)
  if (known !== undefined) return known
  const texts = new Set<string>()
  let incomparable = false
  for (const element of array) {
    const text = comparableText(element)
    if (text === undefined) incomparable = true
    else if (text !== null) texts.add(text)
  }
  const elements = { texts, incomparable }
  KNOWN_ELEMENTS.set(array, elements)
  return elements
}

/** Null: absent or null value; undefined: not comparable. */
function comparableText(value: unknown): string | null | undefined {
  switch (typeof value) {
    case 'string':
      return value
    case 'number':
      // Not finite: its JSON text would be "null".
      return Number.isFinite(value) ? JSON.stringify(value) : undefined
    case 'boolean':
      return JSON.stringify(value)
    case 'undefined':
      return null
    default:
      return value === null ? null : undefined
  }
}
