/** Positions of usage records and events: each row has {@link USAGE_ROW_POSITIONS}, and its records take the last ones. */
import { USAGE_ROW_POSITIONS } from '../records.ts'
import type { Sql } from './sql.ts'

/** The first row with a later position. */
export function rowAfter(position: bigint): bigint {
  return position / USAGE_ROW_POSITIONS + 1n
}

/** The highest position so far. */
export async function endOf(sql: Sql): Promise<bigint> {
  return highest(await endsOf(sql).execute())
}

export function highest(ends: readonly { readonly end: bigint | null }[]): bigint {
  return ends.reduce((most, { end }) => (end !== null && end > most ? end : most), 0n)
}

/** The highest position of each table. */
export function endsOf({ db }: Sql) {
  const newest = (table: 'usage' | 'events') =>
    db.selectFrom(table).select((of) => of(of.fn.max<bigint | null>('seq'), '*', USAGE_ROW_POSITIONS).as('end'))
  return newest('usage')
    .unionAll(newest('events'))
    .unionAll(db.selectFrom('forgotten_usage').select((of) => of.fn.max<bigint | null>('lost_up_to').as('end')))
    .unionAll(db.selectFrom('usage_archives').select((of) => of.fn.max<bigint | null>('up_to').as('end')))
}
