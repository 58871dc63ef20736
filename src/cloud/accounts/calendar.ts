/** Periods in UTC, counted from an anchor. A month that is too short takes its last day, the next one the anchor's. */
import { type AccountId, lineAccount } from '../../core/accounts/account.ts'
import { periodAt } from '../../core/rules/compile.ts'
import type { Period } from '../../core/rules/policy.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import type { Calendar, ConsumptionLimitRecord, LineItemRecord, ResetFrequency } from '../storage/records.ts'

type Frequency = Exclude<ResetFrequency, 'NONE'>

/** Periods listed after the current one. A policy is renewed when half of them have begun. */
const PERIODS_AHEAD: Readonly<Record<Frequency, number>> = { DAILY: 62, WEEKLY: 26, MONTHLY: 24, YEARLY: 10 }

const DAY_MS = 86_400_000

export const LISTED_BACK_MS = DAY_MS

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

export function stepsTo(frequency: Frequency, anchor: number, instant: number): number {
  const typical = { DAILY: 1, WEEKLY: 7, MONTHLY: 30.436875, YEARLY: 365.2425 }[frequency] * DAY_MS
  let steps = Math.floor((instant - anchor) / typical)
  while (boundary(frequency, anchor, steps) > instant) steps -= 1
  while (boundary(frequency, anchor, steps + 1) <= instant) steps += 1
  return steps
}

/** `due`: when the periods must be listed again; null: never. */
export interface Listed {
  readonly periods: readonly Period[]
  readonly due: number | null
}

/** The periods in a policy issued at `at`: the previous, the current, and some ahead. Boundaries count from `start`. */
export function lineItemPeriods(calendar: Calendar, start: number, at: number): Listed {
  const { frequency, first, firstAt } = calendar
  if (frequency === 'NONE') return { periods: [{ index: first, from: null, until: null }], due: null }
  return list({ ...calendar, frequency }, start, stepsTo(frequency, start, Math.max(firstAt, start)), at)
}

export function limitPeriods({ frequency, first, nextReset }: Calendared, at: number): Listed {
  return list({ frequency, first, next: first + 1 }, nextReset, -1, at)
}

type Calendared = Pick<ConsumptionLimitRecord, 'frequency' | 'first' | 'nextReset'>

/** @param firstSteps steps from the anchor to the start of the first period, which itself is open to the past */
function list(
  { frequency, first, next }: Pick<Calendar, 'first' | 'next'> & { readonly frequency: Frequency },
  anchor: number,
  firstSteps: number,
  at: number,
): Listed {
  const from = (count: number): number => boundary(frequency, anchor, count + firstSteps)
  const current = Math.max(0, stepsTo(frequency, anchor, at) - firstSteps)
  const ahead = PERIODS_AHEAD[frequency]
  const periods: Period[] = []
  for (let count = Math.max(0, current - 1); count <= current + ahead; count += 1) {
    const [begin, end] = [from(count), from(count + 1)]
    if (count > 0 && begin > INSTANT_MAX) break
    periods.push({
      index: count === 0 ? first : next + count - 1,
      from: count === 0 ? null : begin,
      until: end > INSTANT_MAX ? null : end,
    })
  }
  const due = from(current + Math.ceil(ahead / 2))
  return { periods, due: due > INSTANT_MAX ? null : due }
}

export function currentPeriod(calendar: Calendar, start: number, now: number): number {
  return periodAt(lineItemPeriods(calendar, start, now).periods, now)?.index ?? calendar.first
}

/** The pool of its current period. */
export function currentAccount({ instanceId, id, calendar, start }: LineItemRecord, now: number): AccountId {
  return lineAccount(instanceId, id, currentPeriod(calendar, start, now))
}

/** False for a period that is over, or that only an earlier calendar had. */
export function isToCome(calendar: Calendar, start: number, period: number, now: number): boolean {
  return period > currentPeriod(calendar, start, now) && period >= calendar.next
}

export function newCalendar(frequency: ResetFrequency, start: number, now: number, first = 0): Calendar {
  return { frequency, first, firstAt: Math.max(now, start), next: first + 1 }
}

/**
 * The calendar after a changed start or frequency. The current period keeps its number and counts, unless devices with
 * older rules would begin to charge this number only after the new period has ended. Later periods get unlisted
 * numbers, to differ from those of devices with the old calendar.
 */
export function changedCalendar(
  before: { readonly calendar: Calendar; readonly start: number },
  { frequency, start }: { readonly frequency: ResetFrequency; readonly start: number },
  now: number,
  listedAt: number,
): Calendar {
  const { calendar } = before
  if (calendar.frequency === frequency && before.start === start) return calendar
  const unlisted = unlistedPeriod(calendar, before.start, listedAt)
  const anew = newCalendar(frequency, start, now, unlisted)
  if (firstEnd(anew, start) <= calendar.firstAt) return anew
  const first = currentPeriod(calendar, before.start, now)
  return { ...anew, first, firstAt: Math.max(anew.firstAt, calendar.firstAt), next: unlisted }
}

function firstEnd(calendar: Calendar, start: number): number {
  return lineItemPeriods(calendar, start, calendar.firstAt).periods[0]?.until ?? Infinity
}

/** The lowest number above all that policies have listed. */
export function unlistedPeriod(calendar: Calendar, start: number, listedAt: number): number {
  return Math.max(calendar.next, lastListed(lineItemPeriods(calendar, start, listedAt), calendar.first) + 1)
}

export function unlistedLimitPeriod(limit: Calendared, listedAt: number): number {
  return lastListed(limitPeriods(limit, listedAt), limit.first) + 1
}

function lastListed({ periods }: Listed, first: number): number {
  return periods.at(-1)?.index ?? first
}
