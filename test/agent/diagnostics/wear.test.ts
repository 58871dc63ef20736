import { expect, it } from 'vitest'
import { Wear } from '../../../src/agent/diagnostics/wear.ts'
import { FakeTime } from '../sync/fake-time.ts'

const MIB = 2 ** 20

function device(budget = 0) {
  const time = new FakeTime()
  const now = { written: (100 * MIB) as number | null, lastEntry: 40, budget }
  const wear = new Wear({
    written: () => now.written,
    lastEntry: () => now.lastEntry,
    sinceBoot: () => time.sinceBoot(),
    now: () => time.truth(),
    timers: time,
    budget: () => now.budget,
  })
  wear.start()
  return { wear, time, now }
}

it('shows bytes that were written before it measures, and does not project them', () => {
  const { wear, time, now } = device()
  expect(wear.reading()).toMatchObject({ written: 100 * MIB, perDecision: null, perDay: null })
  time.advance(3_600_000)
  now.written = 101 * MIB
  now.lastEntry = 140
  expect(wear.reading()).toEqual({
    written: 101 * MIB,
    measuredMs: 3_600_000,
    perDecision: Math.round(MIB / 100),
    perDay: 24 * MIB,
    budgetPerDay: null,
  })
})

it('a few minutes are not projected to a day', () => {
  const { wear, time, now } = device(MIB)
  now.written = 200 * MIB
  time.advance(9 * 60_000)
  expect(wear.reading()).toMatchObject({ perDay: null })
  expect(wear.condition()).toBeNull()
})

it('shows no bytes for each of a few decisions: they would include what else is written', () => {
  const { wear, time, now } = device()
  time.advance(600_000)
  now.written = 101 * MIB
  now.lastEntry = 139
  expect(wear.reading()).toMatchObject({ perDecision: null })
  now.lastEntry = 140
  expect(wear.reading()).toMatchObject({ perDecision: Math.round(MIB / 100) })
})

it('the projection uses the last day only', () => {
  const { wear, time, now } = device()
  now.written = 10_000 * MIB
  time.advance(86_400_000)
  expect(wear.reading()?.perDay).toBe(9_900 * MIB)
  now.written = 10_048 * MIB
  time.advance(86_400_000)
  expect(wear.reading()).toMatchObject({ perDay: 48 * MIB, measuredMs: 86_400_000 })
})

it('entries of another epoch count from one', () => {
  const { wear, time, now } = device()
  now.lastEntry = 134
  time.advance(600_000)
  now.lastEntry = 6
  now.written = 100 * MIB + 100_000
  expect(wear.reading()).toMatchObject({ perDecision: 1_000 })
})

it('above the budget there is a condition until it is below again', () => {
  const { wear, time, now } = device(24 * MIB)
  time.advance(3_600_000)
  now.written = 101 * MIB
  expect(wear.condition()).toBeNull()
  now.written = 102 * MIB
  expect(wear.condition()).toMatchObject({ subject: 'storage', code: 'WRITE_BUDGET_EXCEEDED' })
  expect(wear.condition()?.message).toBe(
    'At the rate of the last 60 minutes, 48 MiB are written a day; the budget is 24 MiB.',
  )
  now.budget = 100 * MIB
  expect(wear.condition()).toBeNull()
})

it('is omitted when the system does not report it', () => {
  const { wear, now } = device()
  now.written = null
  expect(wear.reading()).toBeNull()
  expect(wear.condition()).toBeNull()
})
