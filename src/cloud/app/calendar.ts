/**
 * Calendars: where the periods of a line item or of a consumption limit begin and end. Everything is UTC. A period is
 * counted from an anchor by calendar days, weeks, months or years; a month that is too short takes its last day, and the
 * next one the anchor's day again. Only boundaries as numbers leave this file.
 */
import type { Period } from '../../core/policy.ts'
import type { Calendar, ConsumptionLimitRecord, ResetFrequency } from './records.ts'

type Frequency = Exclude<ResetFrequency, 'NONE'>

/** Last instant of the service: the end of the year 9999. */
const LAST_INSTANT = 253_402_300_799_999

/**
 * Between the numbers of periods that must never be taken for each other (a line item deleted and mapped again, a limit
 * set anew) lie more numbers than a policy ever lists ahead.
 */
export const PERIOD_GAP = 1_000

/** Periods listed after the current one. A policy is renewed when half of them have begun. */
const PERIODS_AHEAD: Readonly<Record<Frequency, number>> = { DAILY: 62, WEEKLY: 26, MONTHLY: 24, YEARLY: 10 }

const DAY_MS = 86_400_000

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
  return list(frequency, first, start, stepsTo(frequency, start, Math.max(firstAt, start)), at)
}

/** The same for a consumption limit, whose first period ends at its next reset. */
export function limitPeriods({ frequency, first, nextReset }: Calendared, at: number): Listed {
  return list(frequency, first, nextReset, -1, at)
}

type Calendared = Pick<ConsumptionLimitRecord, 'frequency' | 'first' | 'nextReset'>

/** @param firstSteps steps from the anchor to where period `first` would begin if it did not reach back without end */
function list(frequency: Frequency, first: number, anchor: number, firstSteps: number, at: number): Listed {
  const from = (index: number): number => boundary(frequency, anchor, index - first + firstSteps)
  const current = Math.max(first, stepsTo(frequency, anchor, at) - firstSteps + first)
  const ahead = PERIODS_AHEAD[frequency]
  const periods: Period[] = []
  for (let index = Math.max(first, current - 1); index <= current + ahead; index += 1) {
    const [begin, end] = [from(index), from(index + 1)]
    if (index > first && begin > LAST_INSTANT) break
    periods.push({ index, from: index === first ? null : begin, until: end > LAST_INSTANT ? null : end })
  }
  const due = from(current + Math.ceil(ahead / 2))
  return { periods, due: due > LAST_INSTANT ? null : due }
}

/** The number of the period in force; the last one listed where the list ends before. */
export function currentPeriod(calendar: Calendar, start: number, now: number): number {
  const { periods } = lineItemPeriods(calendar, start, now)
  const holding = periods.find(({ from, until }) => (from === null || from <= now) && (until === null || now < until))
  return holding?.index ?? calendar.first
}

/**
 * The calendar of a line item whose start or frequency changes: it never resets by itself, so the current period keeps
 * its number, and its counts, until the next boundary of the new calendar.
 */
export function changedCalendar(
  before: { readonly calendar: Calendar; readonly start: number },
  frequency: ResetFrequency,
  start: number,
  now: number,
): Calendar {
  const { calendar } = before
  if (calendar.frequency === frequency && before.start === start) return calendar
  return { frequency, first: currentPeriod(calendar, before.start, now), firstAt: Math.max(now, start) }
}
