import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import {
  boundary,
  changedCalendar,
  currentPeriod,
  limitPeriods,
  lineItemPeriods,
  stepsTo,
} from '../../../src/cloud/app/calendar.ts'
import type { Calendar } from '../../../src/cloud/app/records.ts'

const utc = (text: string): number => Date.parse(`${text}Z`)
const iso = (instant: number): string => new Date(instant).toISOString().slice(0, 16)
const frequencies = ['DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY'] as const
const instants = fc.integer({ min: 0, max: Date.UTC(2300, 0, 1) })

describe('boundaries', () => {
  it('fall on the same calendar day, or on the last of a month that is too short, and do not drift', () => {
    const anchor = utc('2024-01-31T05:30')
    expect([1, 2, 3, 13].map((n) => iso(boundary('MONTHLY', anchor, n)))).toEqual([
      '2024-02-29T05:30',
      '2024-03-31T05:30',
      '2024-04-30T05:30',
      '2025-02-28T05:30',
    ])
    expect([1, 4].map((n) => iso(boundary('YEARLY', utc('2024-02-29T00:00'), n)))).toEqual([
      '2025-02-28T00:00',
      '2028-02-29T00:00',
    ])
    expect(iso(boundary('WEEKLY', anchor, 2))).toBe('2024-02-14T05:30')
    expect(iso(boundary('DAILY', anchor, -31))).toBe('2023-12-31T05:30')
    expect(iso(boundary('MONTHLY', anchor, -2))).toBe('2023-11-30T05:30')
  })

  it('enclose every instant', () => {
    fc.assert(
      fc.property(fc.constantFrom(...frequencies), instants, instants, (frequency, anchor, instant) => {
        const steps = stepsTo(frequency, anchor, instant)
        expect(boundary(frequency, anchor, steps)).toBeLessThanOrEqual(instant)
        expect(boundary(frequency, anchor, steps + 1)).toBeGreaterThan(instant)
      }),
    )
  })
})

describe('the periods of a line item', () => {
  it('are one without end where nothing resets', () => {
    const listed = lineItemPeriods({ frequency: 'NONE', first: 7, firstAt: 5 }, 5, 99)
    expect(listed).toEqual({ periods: [{ index: 7, from: null, until: null }], due: null })
  })

  it('are listed from the one before the current, without gaps, with the first open to the past', () => {
    fc.assert(
      fc.property(fc.constantFrom(...frequencies), instants, instants, (frequency, start, at) => {
        const { periods, due } = lineItemPeriods({ frequency, first: 3, firstAt: start }, start, at)
        const current = periods.findIndex(({ from, until }) => (from ?? -Infinity) <= at && at < (until ?? Infinity))
        expect(current).toBeGreaterThanOrEqual(0)
        expect(current).toBeLessThanOrEqual(1)
        expect(periods[0]?.from === null).toBe(periods[0]?.index === 3)
        for (const [index, { until }] of periods.slice(0, -1).entries()) expect(periods[index + 1]?.from).toBe(until)
        expect(periods.map(({ index }) => index)).toEqual(periods.map((_, index) => (periods[0]?.index ?? 0) + index))
        expect(due).toBeGreaterThan(at)
        expect(due).toBeLessThan(periods.at(-1)?.until ?? 0)
      }),
    )
  })

  it('keep their numbers and boundaries as time goes by', () => {
    fc.assert(
      fc.property(fc.constantFrom(...frequencies), instants, instants, instants, (frequency, start, a, b) => {
        const calendar: Calendar = { frequency, first: 0, firstAt: start }
        const [early, late] = [lineItemPeriods(calendar, start, a), lineItemPeriods(calendar, start, b)]
        for (const period of early.periods) {
          const same = late.periods.find(({ index }) => index === period.index)
          if (same !== undefined) expect(same).toEqual(period)
        }
      }),
    )
  })

  it('end with the last instant of the service', () => {
    const at = Date.UTC(9999, 10, 1)
    const { periods, due } = lineItemPeriods({ frequency: 'YEARLY', first: 0, firstAt: 0 }, 0, at)
    expect(periods.at(-1)?.until).toBeNull()
    expect(due).toBeNull()
  })

  it('go on with the number of the current one when the calendar changes', () => {
    fc.assert(
      fc.property(
        fc.constantFrom('NONE' as const, ...frequencies),
        fc.constantFrom('NONE' as const, ...frequencies),
        instants,
        instants,
        instants,
        (before, after, start, newStart, now) => {
          const calendar: Calendar = { frequency: before, first: 0, firstAt: start }
          const changed = changedCalendar({ calendar, start }, after, newStart, now)
          expect(currentPeriod(changed, newStart, now)).toBe(currentPeriod(calendar, start, now))
        },
      ),
    )
  })

  it('stay as they are when nothing about them changes', () => {
    const calendar: Calendar = { frequency: 'DAILY', first: 2, firstAt: 5 }
    expect(changedCalendar({ calendar, start: 5 }, 'DAILY', 5, 1e12)).toBe(calendar)
  })
})

describe('the periods of a consumption limit', () => {
  it('begin anew at the next reset and from there by the calendar', () => {
    const limit = { frequency: 'MONTHLY', first: 4, nextReset: utc('2026-03-01T00:00') } as const
    const { periods } = limitPeriods(limit, utc('2026-02-10T12:00'))
    expect(periods.slice(0, 3)).toEqual([
      { index: 4, from: null, until: utc('2026-03-01T00:00') },
      { index: 5, from: utc('2026-03-01T00:00'), until: utc('2026-04-01T00:00') },
      { index: 6, from: utc('2026-04-01T00:00'), until: utc('2026-05-01T00:00') },
    ])
    const later = limitPeriods(limit, utc('2026-04-01T00:00')).periods
    expect(later[1]).toEqual({ index: 6, from: utc('2026-04-01T00:00'), until: utc('2026-05-01T00:00') })
  })
})
