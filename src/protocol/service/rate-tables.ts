/** Rate tables on the wire. Source: contract, Rate tables; facts on rate tables. */
import { z } from 'zod'
import { decimalNumber, instant, plainText } from '../wire.ts'

const RATED_ITEMS_MAX = 10_000

const ratedItem = z.strictObject({
  name: plainText(256).min(1),
  version: plainText(256).optional(),
  rate: decimalNumber('NON_NEGATIVE'),
})

/** Body of POST. Formula items are not supported: docs/decisions/rate-tables.md. */
export const rateTableBody = z
  .strictObject({
    effectiveFrom: instant,
    series: plainText(256).optional(),
    version: plainText(256).min(1),
    items: z.array(ratedItem).min(1).max(RATED_ITEMS_MAX),
  })
  .refine(
    ({ items }) =>
      new Set(items.map(({ name, version = '' }) => JSON.stringify([name, version]))).size === items.length,
    {
      path: ['items'],
      message: 'must not hold the same name and version twice',
    },
  )
export type RateTableBody = z.infer<typeof rateTableBody>

/** Query of DELETE; without series: only a table without one. */
export const rateTableQuery = z.strictObject({
  series: plainText(256).optional(),
  version: plainText(256).min(1),
})

export const RATE_TABLE_SAVED = { message: 'Rate table successfully saved' }

export const rateTable = z.strictObject({
  created: instant,
  effectiveFrom: instant,
  series: z.string().optional(),
  version: z.string(),
  items: z.array(z.strictObject({ name: z.string(), version: z.string().optional(), rate: z.number() })),
})
export type RateTableWire = z.infer<typeof rateTable>
