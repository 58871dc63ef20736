import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { StayAwake } from '../../src/platform/stay-awake.ts'

beforeEach(() => void vi.useFakeTimers({ toFake: ['performance', 'setImmediate'], now: 1_000 }))
afterEach(() => void vi.useRealTimers())

const isAwake = (): boolean => vi.getTimerCount() > 0

/** Turns the event loop. @param ms duration of each turn */
function turn(turns: number, ms: number): void {
  for (let count = 0; count < turns; count += 1) vi.advanceTimersByTime(ms)
}

function exchange(awake: StayAwake): void {
  awake.received()
  awake.answered()
}

test('a client that sends its next request at once finds the thread awake', () => {
  const awake = new StayAwake(2)
  exchange(awake)
  expect(isAwake()).toBe(false)
  exchange(awake)
  expect(isAwake()).toBe(true)
  turn(1, 0)
  expect(isAwake()).toBe(true)
})

test('without a next request, the thread sleeps after a short while', () => {
  const awake = new StayAwake(2)
  exchange(awake)
  exchange(awake)
  turn(2, 1)
  expect(isAwake()).toBe(false)
})

test('a request that comes later does not keep the thread awake', () => {
  const awake = new StayAwake(2)
  exchange(awake)
  exchange(awake)
  turn(2, 1)
  exchange(awake)
  expect(isAwake()).toBe(false)
})

test('while another request waits, the thread sleeps', () => {
  const awake = new StayAwake(2)
  exchange(awake)
  awake.received()
  awake.received()
  awake.answered()
  turn(1, 0)
  expect(isAwake()).toBe(false)
})

test('requests of several clients, which share a commit, do not keep the thread awake', () => {
  const awake = new StayAwake(2)
  exchange(awake)
  awake.received()
  awake.received()
  awake.answered()
  awake.answered()
  expect(isAwake()).toBe(false)
})

test('on a single processor, which the client needs, the thread sleeps', () => {
  const awake = new StayAwake(1)
  exchange(awake)
  exchange(awake)
  expect(isAwake()).toBe(false)
})
