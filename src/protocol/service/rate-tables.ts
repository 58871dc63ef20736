/** Rate tables on the wire. Source: interface, Rate tables; documentation on rate tables. */
import { z } from 'zod'
import type { RatedItem } from '../../core/rules/policy.ts'
import { decimalNumber, formulaText, instant, plainText, readOnlyField } from '../wire.ts'
import type { ApiVersion } from './status.ts'

const RATED_ITEMS_MAX = 10_000

const named = { name: plainText(256).min(1), version: plainText(256).optional() }

const fixedRateItem = z
  .strictObject({ ...named, rate: decimalNumber('NON_NEGATIVE') })
  .meta({ id: 'NewRatedItem' })
  .transform(({ name, version = '', rate }): RatedItem => ({ name, version, rate }))

const ratedItem = z
  .strictObject({ ...named, rate: decimalNumber('NON_NEGATIVE').optional(), formula: formulaText.optional() })
  .meta({ id: 'NewRatedItem', description: 'Either a rate or a formula.' })
  .transform(({ name, version = '', rate, formula }, context): RatedItem => {
    if (rate !== undefined && formula === undefined) return { name, version, rate }
    if (rate === undefined && formula !== undefined) return { name, version, formula }
    context.addIssue({ code: 'custom', message: 'give either a rate or a formula' })
    return z.NEVER
  })

const bodyOf = (item: z.ZodType<RatedItem>) =>
  z
    .strictObject({
      effectiveFrom: instant,
      series: plainText(256).optional(),
      version: plainText(256).min(1),
      items: z.array(item).min(1).max(RATED_ITEMS_MAX),
      created: readOnlyField,
    })
    .superRefine(({ items }, context) => {
      const names = items.map(({ name, version }) => JSON.stringify([name, version]))
      const earlier = new Set<string>()
      const at = names.findIndex((name) => earlier.size === earlier.add(name).size)
      if (at < 0) return
      context.addIssue({ code: 'custom', path: ['items', at, 'name'], message: 'is listed twice with this version' })
    })
    .meta({ id: 'NewRateTable' })

export const rateTableBody = { 'v1.0': bodyOf(fixedRateItem), 'v1.1': bodyOf(ratedItem) }
export type RateTableBody = z.infer<(typeof rateTableBody)[ApiVersion]>

/** Without `series`, only a table without series. Strict: a misspelled `series` would delete another table. */
export const rateTableQuery = z.strictObject({
  series: plainText(256).optional(),
  version: plainText(256).min(1),
})

export const RATE_TABLE_SAVED = { message: 'Rate table successfully saved' }

export const rateTableSaved = z.strictObject({ message: z.literal(RATE_TABLE_SAVED.message) })

export const rateTableConflict = z.strictObject({ error: z.string() }).meta({ id: 'RateTableConflict' })

const shownItem = { name: z.string(), version: z.string().optional() }
const withRate = z.strictObject({ ...shownItem, rate: z.number().min(0) }).meta({ id: 'RatedItem' })
const withFormula = z.strictObject({ ...shownItem, formula: z.string() }).meta({ id: 'FormulaItem' })

const tableOf = <Item extends z.ZodType>(item: Item) =>
  z
    .strictObject({
      created: instant,
      effectiveFrom: instant,
      series: z.string(),
      version: z.string(),
      items: z.array(item),
    })
    .meta({ id: 'RateTable', description: '`series` is empty for a table without one.' })

const rateTable = tableOf(z.union([withRate, withFormula]))
export type RateTableWire = z.infer<typeof rateTable>

export const rateTables = { 'v1.0': z.array(tableOf(withRate)), 'v1.1': z.array(rateTable) } as const
