/** Consumption limits on the wire: this project's form of them (docs/decisions/periods.md). */
import { z } from 'zod'
import { MICRO_MAX, toMicro } from '../../core/pricing/amount.ts'
import { decimalNumber, instant } from '../wire.ts'
import { RESET_FREQUENCIES } from './line-items.ts'

const frequency = z.enum(RESET_FREQUENCIES).exclude(['NONE'])

export const consumptionLimitBody = z
  .strictObject({
    limit: decimalNumber('POSITIVE')
      .transform(toMicro)
      .refine((amount) => amount > 0n && amount <= MICRO_MAX, 'must be a number of tokens in the supported range'),
    frequency,
    nextReset: instant,
  })
  .meta({ id: 'ConsumptionLimitToSave' })

export const consumptionLimit = z
  .strictObject({ limit: z.number().gt(0), frequency, nextReset: instant })
  .meta({ id: 'ConsumptionLimit', description: 'Maximum tokens for one requester from the line item in a period.' })
