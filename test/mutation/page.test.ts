import { expect, test } from 'vitest'
import type { Area } from '../../mutation/areas.ts'
import { page } from '../../mutation/page.ts'

const AREA: Area = { name: 'never-run', title: 'Never run', target: 80, mutate: [], tests: [] }
const ROW = '| Never run | `never-run` | 9 | 5 | 0 | 4 | 55.6 % | 80 % |'
const SURVIVORS = [
  '- `src/core/pricing/amount.ts:61` `scale === 0` → `false`',
  '- `src/core/pricing/amount.ts:1` `a < 0n` → `a <= 0n`',
  '- `src/gone.ts:7` ``throw new Error(`gone`)`` → `;`',
  '- `src/gone.ts:8` `` `of ${what}` `` → ``` `` ```',
]

test('an area without a report keeps its row and its survivors, by the reasons of today', () => {
  const text = page([AREA], `${ROW}\n\n### Never run\n\nAn old reason.\n\n${SURVIVORS.join('\n')}\n`)

  expect(text).toContain(ROW)
  expect(text).not.toContain('An old reason.')
  const [, section] = text.split('### Never run\n\n')
  expect(section?.split('\n\n').map((each) => each.trim())).toEqual([
    'No reason yet.',
    SURVIVORS.slice(2)
      .join('\n')
      .replace(/``(throw.+?)``/, '`` $1 ``'),
    'A shortcut: the general calculation gives the same number.',
    SURVIVORS[0],
    'Zero has no sign.',
    SURVIVORS[1],
  ])
})

test('an area without results is listed as not measured', () => {
  expect(page([AREA], '')).toContain('| Never run | `never-run` | | | | | not measured | 80 % |')
})
