import { expect, test } from 'vitest'
import { backoff, RETRY_AFTER_MAX_MS } from '../../../src/agent/sync/backoff.ts'
import { type RoundResult, Rounds, type WakeReason } from '../../../src/agent/sync/rounds.ts'
import { FakeTime } from './fake-time.ts'

interface Running {
  readonly time: FakeTime
  readonly rounds: Rounds
  /** Boot-time readings at which a round began, from the first one on. */
  readonly begun: number[]
  readonly reasons: ReadonlySet<WakeReason>[]
  readonly signals: AbortSignal[]
  end: (result: RoundResult) => Promise<void>
}

const OK: RoundResult = { ok: true, nextMs: 60_000 }
const FAILED: RoundResult = { ok: false, retryAfterMs: 0 }

function start(fraction = 0.5): Running {
  const time = new FakeTime()
  const begin = time.sinceBoot()
  const ends: ((result: RoundResult) => void)[] = []
  const running: Running = {
    time,
    begun: [],
    reasons: [],
    signals: [],
    rounds: new Rounds({
      timers: time,
      sinceBoot: () => time.sinceBoot(),
      randomness: { fraction: () => fraction },
      backoffBaseMs: 1_000,
      backoffCapMs: 60_000,
      round: (reasons, signal) => {
        running.begun.push(time.sinceBoot() - begin)
        running.reasons.push(reasons)
        running.signals.push(signal)
        return new Promise((resolve) => ends.push(resolve))
      },
    }),
    end: async (result) => {
      ends.shift()?.(result)
      await new Promise((resolve) => setImmediate(resolve))
    },
  }
  return running
}

test('a wake during a round causes exactly one more, however many there are', async () => {
  const { time, rounds, begun, end } = start()
  rounds.wake('operator')
  time.advance(0)
  for (let i = 0; i < 20; i += 1) rounds.wake('notification')
  time.advance(5_000)
  expect(begun).toEqual([0])
  await end(OK)
  time.advance(0)
  expect(begun).toEqual([0, 5_000])
  await end(OK)
  time.advance(10_000)
  expect(begun).toHaveLength(2)
})

test('a flood of change notifications costs a few rounds at once, and then at most one per second', async () => {
  const { time, rounds, begun, end } = start()
  for (let i = 0; i < 1_000; i += 1) {
    rounds.wake('notification')
    time.advance(10)
    await end(OK)
  }
  expect(begun.filter((at) => at < 1_000).length).toBeLessThanOrEqual(11)
  expect(begun.length).toBeLessThanOrEqual(20)
  expect(begun.length).toBeGreaterThanOrEqual(18)
})

test('waiting requests get a few rounds at once, and then one per second', async () => {
  const { time, rounds, begun, end } = start()
  for (let i = 0; i < 2_000; i += 1) {
    rounds.wake('request')
    time.advance(10)
    await end(OK)
  }
  expect(begun.filter((at) => at < 500)).toHaveLength(10)
  expect(begun.filter((at) => at > 10_000)).toHaveLength(10)
})

test('without a wake the next round comes within its time, up to a quarter early', async () => {
  for (const [fraction, at] of [
    [0, 60_000],
    [0.999, 45_015],
  ] as const) {
    const { time, rounds, begun, end } = start(fraction)
    rounds.wake('timer')
    time.advance(0)
    await end(OK)
    time.advance(100_000)
    expect(begun).toEqual([0, at])
  }
})

test('a failed round waits longer each time, and no change notification shortens it', async () => {
  const { time, rounds, end } = start()
  rounds.wake('timer')
  time.advance(0)
  const waits: number[] = []
  for (let i = 0; i < 9; i += 1) {
    await end(FAILED)
    rounds.wake('notification')
    rounds.wake('request')
    waits.push(time.untilNext)
    expect(rounds.waiting).toBe(true)
    time.advance(time.untilNext)
  }
  expect(waits).toEqual([500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000])
  await end(OK)
  expect(rounds.waiting).toBe(false)
  expect(rounds.counts).toMatchObject({ done: 1, failed: 9 })
})

test('the wait ends early when the network comes back, but not when the cloud asked for it', async () => {
  const { time, rounds, begun, end } = start()
  rounds.wake('timer')
  time.advance(0)
  for (let i = 0; i < 7; i += 1) {
    await end(FAILED)
    time.advance(64_000)
  }
  await end(FAILED)
  const failedAt = time.sinceBoot()
  const count = begun.length
  rounds.endBackoff()
  time.advance(500)
  expect(begun).toHaveLength(count + 1)
  expect(time.sinceBoot() - failedAt).toBe(500)

  await end({ ok: false, retryAfterMs: 100_000 })
  rounds.endBackoff()
  time.advance(99_999)
  expect(begun).toHaveLength(count + 1)
  time.advance(31_000)
  expect(begun).toHaveLength(count + 2)
})

test('a request that needs the cloud shortens a long wait, but not one that the cloud asked for', async () => {
  for (const [fraction, waitMs] of [
    [0.1, 5_500],
    [0.5, 7_500],
    [0.999, 9_995],
  ] as const) {
    const { time, rounds, begun, end } = start(fraction)
    rounds.wake('timer')
    time.advance(0)
    await end(FAILED)
    rounds.hasten()
    expect(time.untilNext).toBe(Math.floor(fraction * 1_000))
    for (let i = 0; i < 8; i += 1) {
      time.advance(time.untilNext)
      await end(FAILED)
    }
    const count = begun.length
    expect(rounds.waitMs).toBe(Math.floor(fraction * 60_000))
    for (let i = 0; i < 100; i += 1) rounds.hasten()
    expect([time.untilNext, rounds.waitMs]).toEqual([Math.min(waitMs, Math.floor(fraction * 60_000)), time.untilNext])
    time.advance(time.untilNext)
    expect([begun.length, rounds.waitMs]).toEqual([count + 1, null])

    await end({ ok: false, retryAfterMs: 100_000 })
    rounds.hasten()
    expect(time.untilNext).toBeGreaterThanOrEqual(100_000)
  }
})

test('an operator does not wait', async () => {
  const { time, rounds, begun, end } = start()
  rounds.wake('timer')
  time.advance(0)
  await end({ ok: false, retryAfterMs: 3_000_000 })
  rounds.wake('operator')
  time.advance(0)
  expect(begun).toHaveLength(2)
})

test('after a stop there is no further round, and the one in progress is canceled', async () => {
  const { time, rounds, begun, signals, end } = start()
  rounds.wake('timer')
  time.advance(0)
  const stopped = rounds.stop()
  expect(signals[0]?.aborted).toBe(true)
  await end(FAILED)
  await stopped
  rounds.wake('operator')
  time.advance(1_000_000)
  expect(begun).toHaveLength(1)
})

test('the wait is spread from nothing to its bound, doubles up to the cap, and never ends before the cloud allows', () => {
  const limits = { baseMs: 1_000, capMs: 300_000 }
  expect(backoff(1, 0, 0, limits)).toBe(0)
  expect(backoff(1, 0, 0.999, limits)).toBe(999)
  expect(backoff(4, 0, 0.5, limits)).toBe(4_000)
  expect(backoff(1_000_000, 0, 0.5, limits)).toBe(150_000)
  expect(backoff(1, 20_000, 0, limits)).toBe(20_000)
  expect(backoff(3, 20_000, 0.5, limits)).toBe(22_000)
})

test('an unsigned Retry-After delays the next round by minutes at most, with jitter', async () => {
  const limits = { baseMs: 1_000, capMs: 300_000 }
  expect(RETRY_AFTER_MAX_MS).toBe(300_000)
  expect(backoff(1, Number.MAX_SAFE_INTEGER, 0, limits)).toBe(RETRY_AFTER_MAX_MS)
  expect(backoff(1, Number.MAX_SAFE_INTEGER, 0.5, limits)).toBe(RETRY_AFTER_MAX_MS + 500)
  const { time, rounds, begun, end } = start()
  rounds.wake('timer')
  time.advance(0)
  await end({ ok: false, retryAfterMs: 3_600_000 })
  time.advance(RETRY_AFTER_MAX_MS - 1)
  expect(begun).toHaveLength(1)
  time.advance(1_000)
  expect(begun).toHaveLength(2)
})
