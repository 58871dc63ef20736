import type { Action } from '../../../core/rules/policy.ts'
import type { LineItemActions } from '../records.ts'
import { type Sql, chunks, rowsIn } from './sql.ts'
import type { Row } from './tables.ts'

export function actionReader({ db }: Sql) {
  const of = (instanceId: string, lineItemIds: readonly string[]): Promise<readonly Row<'actions'>[]> =>
    rowsIn(lineItemIds, (ids) =>
      db
        .selectFrom('actions')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .where('line_item_id', 'in', ids)
        .orderBy('line_item_id')
        .orderBy('position'),
    )
  return {
    async of(instanceId: string, lineItemId: string): Promise<readonly Action[]> {
      return (await of(instanceId, [lineItemId])).map(actionOf)
    },
    async list(instanceId: string, offset: number, limit: number): Promise<readonly LineItemActions[]> {
      const lineItems = await db
        .selectFrom('line_items')
        .select('line_items.id')
        .where('line_items.instance_id', '=', instanceId)
        .where('line_items.deleted', 'is', null)
        .where((where) =>
          where.exists(
            where
              .selectFrom('actions')
              .select('actions.id')
              .whereRef('actions.instance_id', '=', 'line_items.instance_id')
              .whereRef('actions.line_item_id', '=', 'line_items.id'),
          ),
        )
        .orderBy('line_items.seq')
        .offset(offset)
        .limit(limit)
        .execute()
      const ids = lineItems.map(({ id }) => id)
      const byLineItem = Map.groupBy(await of(instanceId, ids), (row) => row.line_item_id)
      return ids.map((lineItemId): LineItemActions => ({
        lineItemId,
        actions: (byLineItem.get(lineItemId) ?? []).map(actionOf),
      }))
    },
  }
}

export function actionTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...actionReader(sql),
    async replace(instanceId: string, lineItemId: string, actions: readonly Action[]): Promise<void> {
      await db
        .deleteFrom('actions')
        .where('instance_id', '=', instanceId)
        .where('line_item_id', '=', lineItemId)
        .execute()
      const rows = actions.map((action, position) => ({
        instance_id: instanceId,
        line_item_id: lineItemId,
        position: BigInt(position),
        id: action.id,
        name: action.name,
        condition_id: action.conditionId,
        effect: action.effect,
        allocation: action.allocation,
      }))
      for (const some of chunks(rows, 100)) await db.insertInto('actions').values(some).execute()
    },
  }
}

function actionOf(row: Row<'actions'>): Action {
  return {
    id: row.id,
    name: row.name,
    conditionId: row.condition_id,
    effect: row.effect,
    allocation: row.allocation,
  }
}
