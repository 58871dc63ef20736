/** Query of the usage report, as existing reporters call it; see docs/reference/usage-report.md. */
import { z } from 'zod'
import { uuidInLowerCase } from '../wire.ts'

export const REPORT_PAGE_RECORDS = 10_000

/** A hundred years. */
const PAST_DAYS_MAX = 36_500

const queryCount = (max: number) =>
  z
    .string()
    .regex(/^\d{1,9}$/, 'must be a whole number')
    .meta({ wire: { type: 'integer', minimum: 1, maximum: max } })
    .transform(Number)
    .refine((number) => number >= 1 && number <= max, `must be from 1 to ${max}`)

/** Query of `GET .../report/usage`. A page after the last one is empty. */
export const usageReportQuery = z.object({
  mode: z.literal('batch', 'must be batch').optional(),
  format: z.literal('json', 'must be json').optional(),
  meterType: z.literal('elastic', 'must be elastic').optional(),
  pastDays: queryCount(PAST_DAYS_MAX),
  pageNumber: queryCount(999_999_999).optional(),
  instanceId: uuidInLowerCase.optional(),
})
