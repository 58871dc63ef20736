import { expect, test } from 'vitest'
import type { Area } from '../../mutation/areas.ts'
import { page, survivorList } from '../../mutation/page.ts'

const AREA: Area = { name: 'never-run', title: 'Never run', target: 80, mutate: [], tests: [] }
const ROW = '| Never run | `never-run` | 9 | 5 | 0 | 4 | 55.6 % | 80 % |'

test('an area without a report keeps its row', () => {
  expect(page([AREA], `${ROW}\n`).trimEnd().split('\n').at(-1)).toBe(ROW)
})

test('an area without results is listed as not measured', () => {
  expect(page([AREA], '')).toContain('| Never run | `never-run` | | | | | not measured | 80 % |')
})

test('survivors are listed by reason, the most frequent first, as Markdown that keeps backticks', () => {
  const file = 'src/gone.ts'
  const survivors = [
    { file, line: 3, lines: 'return a < b ? a : b', before: 'a < b', after: 'a <= b' },
    { file, line: 7, lines: 'throw new Error(`gone`)', before: 'throw new Error(`gone`)', after: '' },
    { file, line: 8, lines: 'f(`of ${what}`)', before: '`of ${what}`', after: '``' },
  ]

  const [title, ...parts] = survivorList({ area: AREA, survivors }).trimEnd().split('\n\n')
  expect(title).toBe('# Survivors of never-run')
  expect(parts).toEqual([
    'No reason yet.',
    '- `src/gone.ts:7` `` throw new Error(`gone`) `` → (removed)\n- `src/gone.ts:8` `` `of ${what}` `` → ``` `` ```',
    'Maximum or minimum of two numbers: if they are equal, both are the same number.',
    '- `src/gone.ts:3` `a < b` → `a <= b`',
  ])
})

test('an area in which no mutant survives is reported as such', () => {
  expect(survivorList({ area: AREA, survivors: [] })).toContain('None.')
})
