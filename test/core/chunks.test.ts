import { expect, test } from 'vitest'
import { chunksOf } from '../../src/core/chunks.ts'

test('a list is cut into chunks of the size, and the last one takes the rest', () => {
  expect([...chunksOf(['a', 'b', 'c', 'd', 'e'], 2)]).toEqual([['a', 'b'], ['c', 'd'], ['e']])
  expect([...chunksOf(['a', 'b'], 2)]).toEqual([['a', 'b']])
  expect([...chunksOf([], 2)]).toEqual([])
})
