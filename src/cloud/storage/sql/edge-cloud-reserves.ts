import type { EdgeReader, EdgeTransaction } from '../device-store.ts'
import type { Sql } from './sql.ts'

export function cloudReserveReader({ db }: Sql): EdgeReader['cloudReserves'] {
  return {
    async list(instanceId) {
      let query = db.selectFrom('cloud_reserves').selectAll()
      if (instanceId !== null) query = query.where('instance_id', '=', instanceId)
      const rows = await query.orderBy('instance_id').orderBy('line_item_id').execute()
      return rows.map((row) => ({ instanceId: row.instance_id, lineItemId: row.line_item_id, tokens: row.tokens }))
    },
  }
}

export function cloudReserveTransaction(sql: Sql): EdgeTransaction['cloudReserves'] {
  return {
    ...cloudReserveReader(sql),
    async save({ instanceId, lineItemId, tokens }) {
      await sql.db
        .insertInto('cloud_reserves')
        .values({ instance_id: instanceId, line_item_id: lineItemId, tokens })
        .onConflict((conflict) => conflict.columns(['instance_id', 'line_item_id']).doUpdateSet({ tokens }))
        .execute()
    },
  }
}
