import { expect, it } from 'vitest'
import { nearest } from '../../src/settings/nearest.ts'

it.each([
  ['desing', 'design'],
  ['Wrkshop', 'Workshop'],
  ['b1', 'B0'],
  ['X', undefined],
  ['xy', undefined],
  ['', undefined],
])('for %j suggests %j', (word, suggestion) => {
  expect(nearest(word, ['B0', 'design', 'Workshop'])).toBe(suggestion)
})
