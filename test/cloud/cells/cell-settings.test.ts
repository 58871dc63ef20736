import { expect, it } from 'vitest'
import { cellSettings } from '../../../src/cloud/cells/cell-settings.ts'

const NORTH = { name: 'north', url: 'postgres://u@north/db' }
const SOUTH = { name: 'south', url: 'postgresql://u@a:5432,b:5432/db', password_file: '/p', new_accounts: false }

it('takes cells with different names', () => {
  expect(cellSettings.safeParse([NORTH, SOUTH]).success).toBe(true)
})

it.each([
  ['no cell', []],
  ['a name twice', [NORTH, NORTH]],
  ['no cell for new accounts', [{ ...NORTH, new_accounts: false }, SOUTH]],
  ['another database', [{ ...NORTH, url: 'mysql://u@north/db' }]],
  ['a name that is no label', [{ ...NORTH, name: 'North East' }]],
  ['an unknown key', [{ ...NORTH, password: 'x' }]],
])('refuses %s', (_, given) => {
  expect(cellSettings.safeParse(given).success).toBe(false)
})
