import { expect, it } from 'vitest'
import { CHECKS } from '../../conformance/all-checks.ts'
import { junit, line, summary } from '../../conformance/report.ts'
import type { Result } from '../../conformance/runner.ts'
import { STATEMENTS } from '../../conformance/statements.ts'

it('every statement has a check, or the reason why there can be none', () => {
  const shown = new Set(CHECKS.flatMap(({ shows }) => shows))
  const wrong = [...STATEMENTS].filter(([id, { notShown }]) => shown.has(id) === (notShown !== undefined))
  expect(wrong.map(([id]) => id)).toEqual([])
})

it('every check shows at least one statement', () => {
  expect(CHECKS.filter(({ shows }) => shows.length === 0)).toEqual([])
})

it('results are lines for people and test cases for machines', () => {
  const [first] = CHECKS
  const result: Result = {
    check: first!,
    version: 'v1.1',
    name: 'Errors, 1: "a" < b',
    outcome: 'failed',
    because: '400 & more\nin two lines\u001B[0m',
    ms: 12.3,
  }
  const others: readonly Result[] = [
    { ...result, outcome: 'not shown', because: 'needs a clock' },
    { ...result, outcome: 'passed' },
  ]
  expect(line(result)).toContain('FAIL Errors, 1: "a" < b (12 ms)\n     400 & more\n     in two lines')
  expect(line(others[0]!)).toBe('--   Errors, 1: "a" < b: not shown, needs a clock')
  expect(summary([result, ...others])).toBe('1 passed, 1 failed, 1 not shown')
  const xml = junit([result, ...others])
  expect(xml).toContain('tests="3" failures="1" skipped="1"')
  expect(xml).toContain('name="Errors, 1: &quot;a&quot; &lt; b" time="0.012"')
  expect(xml).toContain('<failure message="400 &amp; more in two lines [0m"/>')
})
