import { describe, expect, it } from 'vitest'
import { BurnRate } from '../../../src/agent/ledger/burn-rate.ts'

const HOUR = 3_600_000

describe('the burn rate', () => {
  it('of a steady use is that use over the horizon', () => {
    const rate = new BurnRate(0)
    for (let hour = 0; hour < 48; hour += 1) rate.add(1_000n, hour * HOUR)
    expect(rate.over(24 * HOUR, 47 * HOUR)).toBe(24_000n)
    expect(rate.over(12 * HOUR, 47 * HOUR)).toBe(12_000n)
  })

  it('of a burst right after the start is taken as that of an hour, and fades with the day', () => {
    const rate = new BurnRate(10 * HOUR)
    rate.add(1_000n, 10 * HOUR + 1)
    expect(rate.over(24 * HOUR, 10 * HOUR + 2)).toBe(24_000n)
    expect(rate.over(24 * HOUR, 22 * HOUR)).toBe(2_000n)
    expect(rate.over(24 * HOUR, 40 * HOUR)).toBe(0n)
  })

  it('forgets use that is older than a day, also after a long silence', () => {
    const rate = new BurnRate(0)
    rate.add(5n, 0)
    rate.add(7n, 1_000 * HOUR)
    expect(rate.over(24 * HOUR, 1_000 * HOUR)).toBe(7n)
  })

  it.each([
    ['within the first hour counts as over an hour', 30 * 60_000, 1_000n],
    ['counts from the beginning', 2 * HOUR, 500n],
    ['counts at most over a day', 24 * HOUR - 1, 41n],
  ])('%s', (_name, at, expected) => {
    const rate = new BurnRate(0)
    rate.add(1_000n, 0)
    expect(rate.over(HOUR, at)).toBe(expected)
  })

  it('says how long an amount lasts, and nothing without use or in the first hour', () => {
    const rate = new BurnRate(0)
    expect(rate.lasts(1_000n, 0)).toBeNull()
    rate.add(100n, 0)
    expect(rate.lasts(250n, HOUR - 1)).toBeNull()
    expect(rate.lasts(250n, 2 * HOUR)).toBe(5 * HOUR)
    expect(rate.lasts(0n, 2 * HOUR)).toBe(0)
    expect(rate.lasts(250n, 60 * HOUR)).toBeNull()
  })

  it('is idle when nothing was charged for a day', () => {
    const rate = new BurnRate(0)
    expect(rate.isIdle(0)).toBe(true)
    rate.add(1n, HOUR)
    expect([rate.isIdle(HOUR), rate.isIdle(24 * HOUR), rate.isIdle(25 * HOUR)]).toEqual([false, false, true])
  })
})
