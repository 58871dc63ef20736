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

/**
 * The next reset of a limit that is set without one: a limit of the same frequency keeps its own, and any other one resets at
 * the end of the current period. Undefined for an unknown frequency.
 */
export function usualReset(
  frequency: unknown,
  current: { readonly frequency?: unknown; readonly nextReset?: unknown } | undefined,
  now: number,
): unknown {
  return frequency === current?.frequency ? current?.nextReset : endOfPeriod(frequency, now)
}

/** In UTC, POSIX ms; weeks begin on Monday. */
function endOfPeriod(frequency: unknown, now: number): number | undefined {
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
