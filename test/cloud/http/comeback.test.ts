// When refused callers may try again.
import { expect, it } from 'vitest'
import { Comeback } from '../../../src/cloud/http/comeback.ts'

const waitsOf = (comeback: Comeback, count: number, from = 0): number[] =>
  Array.from({ length: count }, (_, index) => comeback.refused(`caller ${from + index}`))

it('one after another, at twice the pace of the responses', () => {
  let now = 10_000
  const comeback = new Comeback(() => now)
  expect(waitsOf(comeback, 3)).toEqual([1_000, 1_003, 1_005])
  for (let n = 0; n < 2_000; n += 1) {
    now += 2
    comeback.answered()
  }
  const [first = 0, second = 0, third = 0] = waitsOf(comeback, 3, 10)
  expect(first).toBe(1_000)
  expect(second - first).toBe(1)
  expect(third - second).toBe(1)
})

it('at its turn, if a caller is refused again before', () => {
  let now = 0
  const comeback = new Comeback(() => now)
  const waits = waitsOf(comeback, 2)
  for (let n = 0; n < 1_000; n += 1) expect(comeback.refused('caller 0')).toBe(waits[0])
  expect(comeback.refused('caller 2')).toBe(1_005)
  now = 400
  expect(comeback.refused('caller 1')).toBe(603)
  now = 1_006
  expect(comeback.refused('caller 1')).toBe(1_000)
})

it('after a minute at most', () => {
  const comeback = new Comeback(() => 0)
  const waits = waitsOf(comeback, 40_000)
  expect(Math.max(...waits)).toBe(60_000)
})

it('at twice the pace of requests in progress, however seldom they come', () => {
  let now = 0
  const comeback = new Comeback(() => now)
  for (let n = 0; n < 2_000; n += 1) {
    now += 10_000
    comeback.began()
    now += 2
    comeback.answered()
  }
  const [first = 0, second = 0] = waitsOf(comeback, 2)
  expect(second - first).toBe(1)
})

it('in whole milliseconds', () => {
  for (let n = 0; n < 1_000; n += 1) {
    const now = n * Math.PI
    expect(new Comeback(() => now).refused('caller')).toBe(1_000)
  }
})
