/** Items are JSON, with rates as exact decimal text and formulas as given. */
import { decimal, formatDecimal } from '../../../core/pricing/amount.ts'
import type { RatedItem } from '../../../core/rules/policy.ts'
import type { RateTableRecord } from '../records.ts'
import type { Sql } from './sql.ts'
import type { Row } from './tables.ts'

export function rateTableReader({ db }: Sql) {
  return {
    async get(series: string, version: string): Promise<RateTableRecord | undefined> {
      const row = await db
        .selectFrom('rate_tables')
        .selectAll()
        .where('series', '=', series)
        .where('version', '=', version)
        .executeTakeFirst()
      return row === undefined ? undefined : rateTableOf(row)
    },
    /** Without items; latest effective first. `isReplaced`: another one of its series has taken effect since, until `now`. */
    async page(
      offset: number,
      limit: number,
      now: number,
    ): Promise<readonly (Omit<RateTableRecord, 'items'> & { readonly isReplaced: boolean })[]> {
      const rows = await db
        .selectFrom('rate_tables as shown')
        .select(['series', 'version', 'effective_from', 'created'])
        .select((outer) =>
          outer
            .exists(
              outer
                .selectFrom('rate_tables as later')
                .select('later.seq')
                .whereRef('later.series', '=', 'shown.series')
                .where('later.effective_from', '<=', BigInt(now))
                .where((at) =>
                  at.or([
                    at('later.effective_from', '>', at.ref('shown.effective_from')),
                    at.and([
                      at('later.effective_from', '=', at.ref('shown.effective_from')),
                      at('later.seq', '>', at.ref('shown.seq')),
                    ]),
                  ]),
                ),
            )
            .as('replaced'),
        )
        .orderBy('effective_from', 'desc')
        .orderBy('seq', 'desc')
        .offset(offset)
        .limit(limit)
        .execute()
      return rows.map(({ series, version, effective_from, created, replaced }) => ({
        series,
        version,
        effectiveFrom: Number(effective_from),
        created: Number(created),
        isReplaced: Boolean(replaced),
      }))
    },
    /** Without items, by creation. */
    async names(): Promise<readonly Omit<RateTableRecord, 'items'>[]> {
      const rows = await db
        .selectFrom('rate_tables')
        .select(['series', 'version', 'effective_from', 'created'])
        .orderBy('seq')
        .execute()
      return rows.map(({ effective_from, created, ...name }) => ({
        ...name,
        effectiveFrom: Number(effective_from),
        created: Number(created),
      }))
    },
    /** By creation. */
    async list(): Promise<readonly RateTableRecord[]> {
      return (await db.selectFrom('rate_tables').selectAll().orderBy('seq').execute()).map(rateTableOf)
    },
  }
}

export function rateTableTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...rateTableReader(sql),
    async insert(table: RateTableRecord): Promise<void> {
      await db
        .insertInto('rate_tables')
        .values({
          series: table.series,
          version: table.version,
          effective_from: BigInt(table.effectiveFrom),
          created: BigInt(table.created),
          items: JSON.stringify(table.items.map(storedItem)),
        })
        .execute()
    },
    async remove(series: string, version: string): Promise<void> {
      await db.deleteFrom('rate_tables').where('series', '=', series).where('version', '=', version).execute()
    },
  }
}

type StoredItem = { readonly name: string; readonly version: string } & (
  { readonly rate: string; readonly formula?: never } | { readonly formula: string; readonly rate?: never }
)

function storedItem({ name, version, rate, formula }: RatedItem): StoredItem {
  return rate === undefined ? { name, version, formula } : { name, version, rate: formatDecimal(rate) }
}

function ratedItemOf({ name, version, rate, formula }: StoredItem): RatedItem {
  return rate === undefined ? { name, version, formula } : { name, version, rate: decimal(rate) }
}

function rateTableOf(row: Row<'rate_tables'>): RateTableRecord {
  const items = JSON.parse(row.items) as readonly StoredItem[]
  return {
    series: row.series,
    version: row.version,
    effectiveFrom: Number(row.effective_from),
    created: Number(row.created),
    items: items.map(ratedItemOf),
  }
}
