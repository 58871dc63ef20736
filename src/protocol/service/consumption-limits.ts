/** Consumption limits on the wire: this project's form of them (docs/decisions/periods.md). */
import { z } from 'zod'
import { instant, tokenAmount } from '../wire.ts'
import { RESET_FREQUENCIES } from './line-items.ts'

const frequency = z.enum(RESET_FREQUENCIES).exclude(['NONE'])

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
