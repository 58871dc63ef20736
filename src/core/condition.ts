/**
 * Conditions on the requester's dictionary, compiled once per policy. A verdict has three values: what cannot be
 * evaluated is an ERROR, and an ERROR never becomes an allow: the ladder refuses on it. Evaluation never throws on data.
 */
import { CONDITION_DEPTH_MAX, type Condition } from './policy.ts'

export type Verdict = 'TRUE' | 'FALSE' | 'ERROR'

export type Dictionary = Readonly<Record<string, unknown>>

export type Evaluate = (dictionary: Dictionary) => Verdict

/** Stands in for a condition that does not exist. */
export const ALWAYS_ERROR: Evaluate = () => 'ERROR'

/** @param depth nesting level of `condition`, 1 at the top */
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

function not(verdict: Verdict): Verdict {
  if (verdict === 'ERROR') return 'ERROR'
  return verdict === 'TRUE' ? 'FALSE' : 'TRUE'
}

/** Kleene's AND (decided by a FALSE) and OR (decided by a TRUE); the order of the parts never matters. */
function compileAll(parts: readonly Condition[], decidedBy: 'TRUE' | 'FALSE', depth: number): Evaluate {
  if (parts.length === 0) return ALWAYS_ERROR
  const inner = parts.map((part) => compileCondition(part, depth + 1))
  return (dictionary) => {
    let error = false
    for (const evaluate of inner) {
      const verdict = evaluate(dictionary)
      if (verdict === decidedBy) return decidedBy
      if (verdict === 'ERROR') error = true
    }
    if (error) return 'ERROR'
    return not(decidedBy)
  }
}

/**
 * True if the value of the property, or any element of it when it is an array, is one of the values: text as it stands,
 * numbers and booleans by their JSON text. Absent or null is FALSE; an object cannot be compared.
 */
function compileIn(property: string, values: readonly string[]): Evaluate {
  const wanted = new Set(values)
  const compare = (value: unknown): Verdict => {
    switch (typeof value) {
      case 'string':
        return wanted.has(value) ? 'TRUE' : 'FALSE'
      case 'number':
      case 'boolean':
        return wanted.has(JSON.stringify(value)) ? 'TRUE' : 'FALSE'
      case 'undefined':
        return 'FALSE'
      default:
        return value === null ? 'FALSE' : 'ERROR'
    }
  }
  return (dictionary) => {
    if (!Object.hasOwn(dictionary, property)) return 'FALSE'
    const value = dictionary[property]
    if (!Array.isArray(value)) return compare(value)
    let error = false
    for (const element of value) {
      const verdict = compare(element)
      if (verdict === 'TRUE') return 'TRUE'
      if (verdict === 'ERROR') error = true
    }
    return error ? 'ERROR' : 'FALSE'
  }
}
