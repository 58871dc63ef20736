import type { LineItemRecord } from '../records.ts'
import { type Sql, toBigint, toFlag, toNumber } from './sql.ts'
import type { Row } from './tables.ts'

export function lineItemReader({ db }: Sql) {
  return {
    /** Includes deleted ones. */
    async get(instanceId: string, id: string): Promise<LineItemRecord | undefined> {
      const row = await db
        .selectFrom('line_items')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .where('id', '=', id)
        .executeTakeFirst()
      return row === undefined ? undefined : lineItemOf(row)
    },
    /** Excludes deleted ones; by creation. */
    async list(instanceId: string): Promise<readonly LineItemRecord[]> {
      const rows = await db
        .selectFrom('line_items')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .where('deleted', 'is', null)
        .orderBy('seq')
        .execute()
      return rows.map(lineItemOf)
    },
  }
}

export function lineItemTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...lineItemReader(sql),
    async insert(lineItem: LineItemRecord): Promise<void> {
      await db
        .insertInto('line_items')
        .values({ instance_id: lineItem.instanceId, id: lineItem.id, ...columnsOf(lineItem) })
        .execute()
    },
    async update(lineItem: LineItemRecord): Promise<void> {
      await db
        .updateTable('line_items')
        .set(columnsOf(lineItem))
        .where('instance_id', '=', lineItem.instanceId)
        .where('id', '=', lineItem.id)
        .execute()
    },
  }
}

function columnsOf(lineItem: LineItemRecord) {
  return {
    state: lineItem.state,
    quantity: lineItem.quantity,
    start_at: BigInt(lineItem.start),
    end_at: BigInt(lineItem.end),
    elastic: toFlag(lineItem.elastic),
    rate_table_series: lineItem.rateTableSeries,
    overdraft_type: lineItem.overdraftType,
    overdraft_limit: lineItem.overdraftLimit,
    reset_frequency: lineItem.resetFrequency,
    given: JSON.stringify(lineItem.given),
    calendar_frequency: lineItem.calendar.frequency,
    calendar_first: BigInt(lineItem.calendar.first),
    calendar_first_at: BigInt(lineItem.calendar.firstAt),
    calendar_next: BigInt(lineItem.calendar.next),
    created: BigInt(lineItem.created),
    modified: BigInt(lineItem.modified),
    deleted: toBigint(lineItem.deleted),
  }
}

function lineItemOf(row: Row<'line_items'>): LineItemRecord {
  return {
    instanceId: row.instance_id,
    id: row.id,
    state: row.state,
    quantity: row.quantity,
    start: Number(row.start_at),
    end: Number(row.end_at),
    elastic: row.elastic === 1n,
    rateTableSeries: row.rate_table_series,
    overdraftType: row.overdraft_type,
    overdraftLimit: row.overdraft_limit,
    resetFrequency: row.reset_frequency,
    given: JSON.parse(row.given) as LineItemRecord['given'],
    calendar: {
      frequency: row.calendar_frequency,
      first: Number(row.calendar_first),
      firstAt: Number(row.calendar_first_at),
      next: Number(row.calendar_next),
    },
    created: Number(row.created),
    modified: Number(row.modified),
    deleted: toNumber(row.deleted),
  }
}
