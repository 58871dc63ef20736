import type { OfflinePolicyRecord, CloudReserve } from '../device-records.ts'
import { type Sql, upsert } from './sql.ts'

export function offlinePolicyReader({ db }: Sql) {
  return {
    async list(instanceId: string): Promise<readonly OfflinePolicyRecord[]> {
      const rows = await db
        .selectFrom('offline_policies')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .orderBy('line_item_id')
        .execute()
      return rows.map((row) => ({
        instanceId: row.instance_id,
        lineItemId: row.line_item_id,
        overspendCap: row.overspend_cap,
        overspendCapMax: row.overspend_cap_max,
      }))
    },
  }
}

export function offlinePolicyTransaction(sql: Sql) {
  return {
    ...offlinePolicyReader(sql),
    async save({ instanceId, lineItemId, overspendCap, overspendCapMax }: OfflinePolicyRecord): Promise<void> {
      const key = { instance_id: instanceId, line_item_id: lineItemId }
      await upsert(sql.db, 'offline_policies', key, { overspend_cap: overspendCap, overspend_cap_max: overspendCapMax })
    },
  }
}

export function cloudReserveReader({ db }: Sql) {
  return {
    /** @param instanceId null: all instances */
    async list(instanceId: string | null): Promise<readonly CloudReserve[]> {
      let query = db.selectFrom('cloud_reserves').selectAll()
      if (instanceId !== null) query = query.where('instance_id', '=', instanceId)
      const rows = await query.orderBy('instance_id').orderBy('line_item_id').execute()
      return rows.map((row) => ({ instanceId: row.instance_id, lineItemId: row.line_item_id, tokens: row.tokens }))
    },
  }
}

export function cloudReserveTransaction(sql: Sql) {
  return {
    ...cloudReserveReader(sql),
    async save({ instanceId, lineItemId, tokens }: CloudReserve): Promise<void> {
      await upsert(sql.db, 'cloud_reserves', { instance_id: instanceId, line_item_id: lineItemId }, { tokens })
    },
  }
}
