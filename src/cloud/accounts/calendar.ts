/**
 * Calendars: where the periods of a line item or of a consumption limit begin and end. Everything is UTC. A period is
 * counted from an anchor by calendar days, weeks, months or years; a month that is too short takes its last day, and the
 * next one the anchor's day again. Only boundaries as numbers leave this file.
 */
import { periodAt } from '../../core/rules/compile.ts'
import type { Period } from '../../core/rules/policy.ts'
import type { Calendar, ConsumptionLimitRecord, ResetFrequency } from '../storage/records.ts'

type Frequency = Exclude<ResetFrequency, 'NONE'>

/** Last instant of the service: the end of the year 9999. */
const LAST_INSTANT = 253_402_300_799_999

/** Periods listed after the current one. A policy is renewed when half of them have begun. */
const PERIODS_AHEAD: Readonly<Record<Frequency, number>> = { DAILY: 62, WEEKLY: 26, MONTHLY: 24, YEARLY: 10 }

const DAY_MS = 86_400_000

/** So far back from its issue a policy lists periods at least: the one before the current. */
export const LISTED_BACK_MS = DAY_MS

/** The instant `steps` whole periods after the anchor. */
export function boundary(frequency: Frequency, anchor: number, steps: number): number {
  switch (frequency) {
    case 'DAILY':
      return anchor + steps * DAY_MS
    case 'WEEKLY':
      return anchor + steps * 7 * DAY_MS
    case 'MONTHLY':
      return addMonths(anchor, steps)
    case 'YEARLY':
      return addMonths(anchor, steps * 12)
  }
}

function addMonths(anchor: number, months: number): number {
  const date = new Date(anchor)
  const [year, month] = [date.getUTCFullYear(), date.getUTCMonth() + months]
  const lastDay = new Date(Date.UTC(year, month + 1, 0)).getUTCDate()
  const midnight = Date.UTC(year, month, Math.min(date.getUTCDate(), lastDay))
  return midnight + (((anchor % DAY_MS) + DAY_MS) % DAY_MS)
}

/** How many whole periods after the anchor the period begins that holds the instant: negative before the anchor. */
export function stepsTo(frequency: Frequency, anchor: number, instant: number): number {
  const typical = { DAILY: 1, WEEKLY: 7, MONTHLY: 30.436875, YEARLY: 365.2425 }[frequency] * DAY_MS
  let steps = Math.floor((instant - anchor) / typical)
  while (boundary(frequency, anchor, steps) > instant) steps -= 1
  while (boundary(frequency, anchor, steps + 1) <= instant) steps += 1
  return steps
}

/** What a policy says about a calendar, and when it must be said again; null: it holds for good. */
export interface Listed {
  readonly periods: readonly Period[]
  readonly due: number | null
}

/**
 * The periods of a line item as a policy issued at `at` lists them: the one before the current, the current, and some
 * ahead. Boundaries count from the line item's start.
 */
export function lineItemPeriods(calendar: Calendar, start: number, at: number): Listed {
  const { frequency, first, firstAt } = calendar
  if (frequency === 'NONE') return { periods: [{ index: first, from: null, until: null }], due: null }
  return list(frequency, calendar, start, stepsTo(frequency, start, Math.max(firstAt, start)), at)
}

/** The same for a consumption limit, whose first period ends at its next reset. */
export function limitPeriods({ frequency, first, nextReset }: Calendared, at: number): Listed {
  return list(frequency, { first, next: first + 1 }, nextReset, -1, at)
}

type Calendared = Pick<ConsumptionLimitRecord, 'frequency' | 'first' | 'nextReset'>

/** @param firstSteps steps from the anchor to where the first period would begin if it did not reach back without end */
function list(
  frequency: Frequency,
  { first, next }: Pick<Calendar, 'first' | 'next'>,
  anchor: number,
  firstSteps: number,
  at: number,
): Listed {
  /** Periods are counted from the first one, which is 0. */
  const from = (count: number): number => boundary(frequency, anchor, count + firstSteps)
  const current = Math.max(0, stepsTo(frequency, anchor, at) - firstSteps)
  const ahead = PERIODS_AHEAD[frequency]
  const periods: Period[] = []
  for (let count = Math.max(0, current - 1); count <= current + ahead; count += 1) {
    const [begin, end] = [from(count), from(count + 1)]
    if (count > 0 && begin > LAST_INSTANT) break
    periods.push({
      index: count === 0 ? first : next + count - 1,
      from: count === 0 ? null : begin,
      until: end > LAST_INSTANT ? null : end,
    })
  }
  const due = from(current + Math.ceil(ahead / 2))
  return { periods, due: due > LAST_INSTANT ? null : due }
}

/** The number of the period in force; the last one listed where the list ends before. */
export function currentPeriod(calendar: Calendar, start: number, now: number): number {
  return periodAt(lineItemPeriods(calendar, start, now).periods, now)?.index ?? calendar.first
}

/** Whether the calendar still comes to a period of this number. One that it skips was in a calendar before it, or is over. */
export function isToCome(calendar: Calendar, start: number, period: number, now: number): boolean {
  return period > currentPeriod(calendar, start, now) && period >= calendar.next
}

/** The calendar of a line item that is mapped for the first time, or again after it was deleted. */
export function newCalendar(frequency: ResetFrequency, start: number, now: number, first = 0): Calendar {
  return { frequency, first, firstAt: Math.max(now, start), next: first + 1 }
}

/**
 * The calendar of a line item whose start or frequency changes: it never resets by itself, so the current period keeps
 * its number, and its counts, until the next boundary of the new calendar. All later periods have numbers that no policy has
 * listed: devices that have not heard of the change go on by the old calendar, and what they report must stay apart.
 *
 * @param listedAt when the newest policy was issued
 */
export function changedCalendar(
  before: { readonly calendar: Calendar; readonly start: number },
  frequency: ResetFrequency,
  start: number,
  now: number,
  listedAt: number,
): Calendar {
  const { calendar } = before
  if (calendar.frequency === frequency && before.start === start) return calendar
  return {
    frequency,
    first: currentPeriod(calendar, before.start, now),
    firstAt: Math.max(now, start),
    next: unlistedPeriod(calendar, before.start, listedAt),
  }
}

/**
 * The lowest number above all that policies have listed for a line item.
 *
 * @param listedAt when the newest policy was issued
 */
export function unlistedPeriod(calendar: Calendar, start: number, listedAt: number): number {
  return Math.max(calendar.next, lastListed(lineItemPeriods(calendar, start, listedAt), calendar.first) + 1)
}

/** The same for a consumption limit. */
export function unlistedLimitPeriod(limit: Calendared, listedAt: number): number {
  return lastListed(limitPeriods(limit, listedAt), limit.first) + 1
}

function lastListed({ periods }: Listed, first: number): number {
  return periods.at(-1)?.index ?? first
}
