import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import {
  boundary,
  changedCalendar,
  currentPeriod,
  isToCome,
  limitPeriods,
  lineItemPeriods,
  newCalendar,
  stepsTo,
  unlistedLimitPeriod,
  unlistedPeriod,
} from '../../../src/cloud/accounts/calendar.ts'
import type { Calendar } from '../../../src/cloud/storage/records.ts'

const DAY = 86_400_000
const HOUR = 3_600_000
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

  it('begin exactly at their instant, also in months that are longer or shorter than most', () => {
    const steps = (anchor: string, instant: string) => stepsTo('MONTHLY', utc(anchor), utc(instant))
    expect(steps('2024-01-01T00:00', '2024-01-31T23:59')).toBe(0)
    expect(steps('2024-01-01T00:00', '2024-02-01T00:00')).toBe(1)
    expect(steps('2023-02-01T00:00', '2023-02-28T23:59')).toBe(0)
    expect(steps('2023-02-01T00:00', '2023-03-01T00:00')).toBe(1)
    expect(steps('2023-03-01T00:00', '2023-02-01T00:00')).toBe(-1)
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
    const listed = lineItemPeriods({ frequency: 'NONE', first: 7, firstAt: 5, next: 8 }, 5, 99)
    expect(listed).toEqual({ periods: [{ index: 7, from: null, until: null }], due: null })
  })

  it('are listed from the one before the current, without gaps, with the first open to the past', () => {
    fc.assert(
      fc.property(fc.constantFrom(...frequencies), instants, instants, (frequency, start, at) => {
        const { periods, due } = lineItemPeriods({ frequency, first: 3, firstAt: start, next: 7 }, start, at)
        const current = periods.findIndex(({ from, until }) => (from ?? -Infinity) <= at && at < (until ?? Infinity))
        expect(current).toBeGreaterThanOrEqual(0)
        expect(current).toBeLessThanOrEqual(1)
        expect(periods[0]?.from === null).toBe(periods[0]?.index === 3)
        for (const [index, { until }] of periods.slice(0, -1).entries()) expect(periods[index + 1]?.from).toBe(until)
        const numbers = periods.map(({ index }) => index)
        const [second = 0] = numbers[0] === 3 ? [7] : numbers
        const following = numbers[0] === 3 ? numbers.slice(1) : numbers
        expect(following).toEqual(following.map((_, index) => second + index))
        expect(due).toBeGreaterThan(at)
        expect(due).toBeLessThan(periods.at(-1)?.until ?? 0)
      }),
    )
  })

  it.each([
    ['DAILY', 62],
    ['WEEKLY', 26],
    ['MONTHLY', 24],
    ['YEARLY', 10],
  ] as const)('%s are listed %i ahead, for devices that are rarely online', (frequency, ahead) => {
    const start = utc('2026-01-01T00:00')
    const { periods } = lineItemPeriods({ frequency, first: 0, firstAt: start, next: 1 }, start, start)
    expect(periods).toHaveLength(1 + ahead)
  })

  it('keep their numbers and boundaries as time goes by', () => {
    fc.assert(
      fc.property(fc.constantFrom(...frequencies), instants, instants, instants, (frequency, start, a, b) => {
        const calendar: Calendar = { frequency, first: 0, firstAt: start, next: 5 }
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
    const { periods, due } = lineItemPeriods({ frequency: 'YEARLY', first: 0, firstAt: 0, next: 1 }, 0, at)
    expect(periods.at(-1)?.until).toBeNull()
    expect(due).toBeNull()
  })

  it('end with the last instant of the service, which may be the only one of its period', () => {
    const last = 253_402_300_799_999
    const start = last - 3 * DAY
    const calendar: Calendar = { frequency: 'DAILY', first: 0, firstAt: start, next: 1 }
    expect(lineItemPeriods(calendar, start, start).periods).toEqual([
      { index: 0, from: null, until: last - 2 * DAY },
      { index: 1, from: last - 2 * DAY, until: last - DAY },
      { index: 2, from: last - DAY, until: last },
      { index: 3, from: last, until: null },
    ])
    const half = 31 * DAY
    expect(lineItemPeriods({ ...calendar, firstAt: last - half }, last - half, last - half).due).toBe(last)
    expect(lineItemPeriods({ ...calendar, firstAt: last - half + 1 }, last - half + 1, last - half + 1).due).toBeNull()
  })

  it('list the one before, the current one and 62 more days, and are listed anew when half of these have begun', () => {
    const start = utc('2026-05-01T00:00')
    const calendar: Calendar = { frequency: 'DAILY', first: 0, firstAt: start, next: 1 }
    const { periods, due } = lineItemPeriods(calendar, start, start + 10 * DAY)
    expect(periods.map(({ index }) => index)).toEqual(Array.from({ length: 64 }, (_, n) => 9 + n))
    expect(due).toBe(start + 41 * DAY)
  })

  it('list the first one even if it begins after the last instant of the service', () => {
    const start = 253_402_300_799_999 + DAY
    const calendar: Calendar = { frequency: 'DAILY', first: 4, firstAt: start, next: 5 }
    expect(lineItemPeriods(calendar, start, start).periods).toEqual([{ index: 4, from: null, until: null }])
  })

  it('are to come if they begin later, by the calendar in force', () => {
    const start = utc('2026-05-01T00:00')
    const calendar: Calendar = { frequency: 'DAILY', first: 4, firstAt: start, next: 9 }
    const toCome = (now: number) => [3, 4, 5, 8, 9, 10, 11].filter((period) => isToCome(calendar, start, period, now))
    expect(toCome(start)).toEqual([9, 10, 11])
    expect(toCome(start + DAY)).toEqual([10, 11])
  })

  it('count from now for a line item that has begun, and from its start for one that has not', () => {
    const now = utc('2026-05-06T12:00')
    expect(newCalendar('DAILY', now - 9.5 * DAY, now)).toMatchObject({ first: 0, firstAt: now, next: 1 })
    expect(newCalendar('DAILY', now + DAY, now, 7)).toMatchObject({ first: 7, firstAt: now + DAY, next: 8 })
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
          const calendar: Calendar = { frequency: before, first: 0, firstAt: start, next: 1 }
          const changed = changedCalendar({ calendar, start }, { frequency: after, start: newStart }, now, now)
          const end = lineItemPeriods(changed, newStart, changed.firstAt).periods[0]?.until ?? Infinity
          if (end > start) expect(currentPeriod(changed, newStart, now)).toBe(currentPeriod(calendar, start, now))
          else expect(changed.first).toBe(unlistedPeriod(calendar, start, now))
        },
      ),
    )
  })

  it('give no number to a time that ends before an earlier policy begins to charge it', () => {
    const start = utc('2026-03-01T00:00')
    const ahead = start + 2 * DAY + 8 * HOUR
    const daily = newCalendar('DAILY', start, start)
    const yearly = changedCalendar({ calendar: daily, start }, { frequency: 'YEARLY', start }, ahead, ahead)
    expect(currentPeriod(yearly, start, ahead)).toBe(2)
    const now = start + 9 * HOUR
    const again = changedCalendar({ calendar: yearly, start }, { frequency: 'DAILY', start }, now, ahead)
    expect(currentPeriod(again, start, now)).toBe(unlistedPeriod(yearly, start, ahead))
    const monthly = changedCalendar({ calendar: yearly, start }, { frequency: 'MONTHLY', start }, now, ahead)
    expect(currentPeriod(monthly, start, now)).toBe(2)
    const third = changedCalendar({ calendar: monthly, start }, { frequency: 'DAILY', start }, now, ahead)
    expect(currentPeriod(third, start, now)).toBe(unlistedPeriod(monthly, start, ahead))
  })

  it('stay as they are when nothing about them changes', () => {
    const calendar: Calendar = { frequency: 'DAILY', first: 2, firstAt: 5, next: 3 }
    expect(changedCalendar({ calendar, start: 5 }, { frequency: 'DAILY', start: 5 }, 1e12, 1e12)).toBe(calendar)
  })

  it('after a change have numbers that no earlier policy has listed, the current one excepted', () => {
    const change = fc.record({
      frequency: fc.constantFrom('NONE' as const, ...frequencies),
      start: instants,
      // The clock of the cloud may go back.
      passed: fc.integer({ min: -400 * DAY, max: 800 * DAY }),
      remapped: fc.boolean(),
    })
    fc.assert(
      fc.property(fc.array(change, { minLength: 2, maxLength: 12 }), instants, (changes, begin) => {
        let [now, listedAt, start] = [begin, begin, begin]
        /** `kept`: the number of the period in which the calendar took the place of the one before. */
        interface Version {
          readonly calendar: Calendar
          readonly kept: number | null
          readonly listed: Set<number>
        }
        let version: Version = { calendar: newCalendar('DAILY', start, now), kept: null, listed: new Set() }
        const versions = [version]
        const windows = new Map<number, { readonly from: number; readonly until: number }>()
        const list = (): void => {
          listedAt = Math.max(listedAt, now)
          for (const { index, from, until } of lineItemPeriods(version.calendar, start, listedAt).periods) {
            version.listed.add(index)
            const others = windows.get(index) ?? { from: -Infinity, until: Infinity }
            const common = {
              from: Math.max(others.from, from ?? -Infinity),
              until: Math.min(others.until, until ?? Infinity),
            }
            expect(common.from).toBeLessThan(common.until)
            windows.set(index, common)
          }
        }
        list()
        for (const { frequency, start: newStart, passed, remapped } of changes) {
          now = Math.max(0, now + passed)
          list()
          const { calendar } = version
          const changed = remapped
            ? newCalendar(frequency, newStart, now, unlistedPeriod(calendar, start, listedAt))
            : changedCalendar({ calendar, start }, { frequency, start: newStart }, now, listedAt)
          if (changed === calendar) continue
          const current = currentPeriod(calendar, start, now)
          version = {
            calendar: changed,
            kept: changed.first === current ? current : null,
            listed: new Set(),
          }
          versions.push(version)
          start = newStart
          list()
        }
        for (const [earlier, { listed }] of versions.entries()) {
          for (const [later, other] of versions.entries()) {
            if (later <= earlier) continue
            for (const number of [...listed].filter((each) => other.listed.has(each))) {
              const between = versions.slice(earlier + 1, later + 1)
              expect(between.map(({ kept }) => kept)).toEqual(between.map(() => number))
            }
          }
        }
      }),
      { numRuns: 500 },
    )
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

  it('have numbers that no earlier policy has listed when the limit is set anew', () => {
    fc.assert(
      fc.property(
        fc.constantFrom(...frequencies),
        instants,
        instants,
        fc.integer({ min: 0, max: 9_000 * DAY }),
        (frequency, nextReset, begin, passed) => {
          const limit = { frequency, first: 3, nextReset }
          const numbers = [begin, begin + passed].flatMap((at) =>
            limitPeriods(limit, at).periods.map(({ index }) => index),
          )
          expect(unlistedLimitPeriod(limit, begin + passed)).toBeGreaterThan(Math.max(...numbers))
        },
      ),
    )
  })
})
