/** Consumption limits on the wire: this project's form of them (docs/decisions/periods.md). */
import { z } from 'zod'
import { instant, tokenAmount } from '../wire.ts'
import { RESET_FREQUENCIES } from './line-items.ts'

const frequency = z.enum(RESET_FREQUENCIES).exclude(['NONE'])

export const LIMIT_FREQUENCIES = frequency.options

export const consumptionLimitBody = z
  .strictObject({
    limit: tokenAmount('POSITIVE'),
    frequency,
    nextReset: instant,
  })
  .meta({ id: 'ConsumptionLimitToSave' })

export const consumptionLimit = z
  .strictObject({ limit: z.number().gt(0), frequency, nextReset: instant })
  .meta({ id: 'ConsumptionLimit', description: 'Maximum tokens for one requester from the line item in a period.' })

/** The end of the current period in UTC, POSIX ms; weeks begin on Monday. Undefined for an unknown frequency. */
export function endOfPeriod(frequency: unknown, now: number): number | undefined {
  const date = new Date(now)
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()]
  switch (frequency) {
    case 'DAILY':
      return Date.UTC(year, month, day + 1)
    case 'WEEKLY':
      return Date.UTC(year, month, day + 7 - ((date.getUTCDay() + 6) % 7))
    case 'MONTHLY':
      return Date.UTC(year, month + 1, 1)
    case 'YEARLY':
      return Date.UTC(year + 1, 0, 1)
    default:
      return undefined
  }
}
