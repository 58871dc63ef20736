import type { ConsumptionLimitRecord } from '../records.ts'
import { type Sql, upsert } from './sql.ts'
import type { Row } from './tables.ts'

export function consumptionLimitReader({ db }: Sql) {
  return {
    async get(instanceId: string, lineItemId: string): Promise<ConsumptionLimitRecord | undefined> {
      const row = await db
        .selectFrom('consumption_limits')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .where('line_item_id', '=', lineItemId)
        .executeTakeFirst()
      return row === undefined ? undefined : limitOf(row)
    },
    /** By line item. Includes removed ones. */
    async of(instanceId: string, lineItemIds: readonly string[]): Promise<ReadonlyMap<string, ConsumptionLimitRecord>> {
      if (lineItemIds.length === 0) return new Map()
      const rows = await db
        .selectFrom('consumption_limits')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .where('line_item_id', 'in', lineItemIds)
        .execute()
      return new Map(rows.map((row) => [row.line_item_id, limitOf(row)]))
    },
    /** Includes removed ones. */
    async list(instanceId: string): Promise<readonly ConsumptionLimitRecord[]> {
      const rows = await db
        .selectFrom('consumption_limits')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .orderBy('line_item_id')
        .execute()
      return rows.map(limitOf)
    },
  }
}

export function consumptionLimitTransaction(sql: Sql) {
  return {
    ...consumptionLimitReader(sql),
    async save(limit: ConsumptionLimitRecord): Promise<void> {
      const key = { instance_id: limit.instanceId, line_item_id: limit.lineItemId }
      await upsert(sql.db, 'consumption_limits', key, {
        limit_amount: limit.limit,
        frequency: limit.frequency,
        next_reset: BigInt(limit.nextReset),
        first_period: BigInt(limit.first),
      })
    },
  }
}

function limitOf(row: Row<'consumption_limits'>): ConsumptionLimitRecord {
  return {
    instanceId: row.instance_id,
    lineItemId: row.line_item_id,
    limit: row.limit_amount,
    frequency: row.frequency,
    nextReset: Number(row.next_reset),
    first: Number(row.first_period),
  }
}
