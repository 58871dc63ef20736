// Conditions one by one: what is compared with what, and what an error does to AND, OR and NOT.
import { expect, test } from 'vitest'
import { compileCondition } from '../../../src/core/rules/condition.ts'
import { CONDITION_DEPTH_MAX, type Condition } from '../../../src/core/rules/policy.ts'

const is = (property: string, ...values: string[]): Condition => ({ operator: 'IN', property, values })
const all = (...conditions: Condition[]): Condition => ({ operator: 'AND', conditions })
const any = (...conditions: Condition[]): Condition => ({ operator: 'OR', conditions })
const not = (condition: Condition): Condition => ({ operator: 'NOT', condition })

const dictionary = { yes: 'a', none: null, list: ['a', 1, true, null], object: {}, mixed: ['a', {}], huge: Infinity }
const [TRUE, FALSE, ERROR] = [is('yes', 'a'), is('absent', 'a'), is('object', 'a')]

test.each<[string, Condition, 'TRUE' | 'FALSE' | 'ERROR']>([
  ['text that is among the values', TRUE, 'TRUE'],
  ['text that is not', is('yes', 'b', 'A', ''), 'FALSE'],
  ['a property that is absent', FALSE, 'FALSE'],
  ['a property that is absent, among its own name', is('absent', 'undefined', 'null'), 'FALSE'],
  ['null', is('none', 'null', ''), 'FALSE'],
  ['an object', ERROR, 'ERROR'],
  ['a number that is too large to be one', is('huge', 'null', 'Infinity'), 'ERROR'],
  ['an array by each of its elements', is('list', '1'), 'TRUE'],
  ['an array by a boolean of it', is('list', 'true'), 'TRUE'],
  ['an array by a null of it', is('list', 'null'), 'FALSE'],
  ['an array with an object that matches otherwise', is('mixed', 'a'), 'TRUE'],
  ['an array with an object that matches nothing', is('mixed', 'b'), 'ERROR'],
  ['AND of true and true', all(TRUE, TRUE), 'TRUE'],
  ['AND that a false decides over an error, in any order', all(ERROR, FALSE), 'FALSE'],
  ['AND of true and an error', all(ERROR, TRUE), 'ERROR'],
  ['AND of nothing', all(), 'ERROR'],
  ['OR of false and false', any(FALSE, FALSE), 'FALSE'],
  ['OR that a true decides over an error, in any order', any(ERROR, TRUE), 'TRUE'],
  ['OR of false and an error', any(ERROR, FALSE), 'ERROR'],
  ['OR of nothing', any(), 'ERROR'],
  ['NOT of true', not(TRUE), 'FALSE'],
  ['NOT of false', not(FALSE), 'TRUE'],
  ['NOT of an error', not(ERROR), 'ERROR'],
  ['an unknown operator', { operator: 'XOR', conditions: [] } as unknown as Condition, 'ERROR'],
])('%s', (_name, condition, result) => {
  expect(compileCondition(condition)(dictionary)).toBe(result)
})

test.each([
  ['AND', all],
  ['OR', any],
  ['NOT', not],
])('%s may be nested so deep, and no deeper', (_name, nest) => {
  const nested = (levels: number): Condition =>
    Array.from({ length: levels }).reduce<Condition>((inner) => nest(inner), TRUE)
  const results = [0, 1].map((more) => compileCondition(nested(CONDITION_DEPTH_MAX - 1 + more))(dictionary))
  expect(results.map((result) => result === 'ERROR')).toEqual([false, true])
})
