/** Each body is the JSON of the whole condition tree. */
import { sql as statement } from 'kysely'
import type { ConditionNode } from '../records.ts'
import type { ConditionReader, Transaction } from '../store.ts'
import { type Sql, chunks } from './sql.ts'

export function conditionReader({ db }: Sql): ConditionReader {
  return {
    async get(instanceId, id) {
      const row = await db
        .selectFrom('conditions')
        .select('body')
        .where('instance_id', '=', instanceId)
        .where('id', '=', id)
        .executeTakeFirst()
      return row === undefined ? undefined : conditionOf(row.body)
    },
    async list(instanceId) {
      const rows = await db
        .selectFrom('conditions')
        .select('body')
        .where('instance_id', '=', instanceId)
        .orderBy('seq')
        .execute()
      return rows.map(({ body }) => conditionOf(body))
    },
    async size(instanceId) {
      const { count, characters } = await db
        .selectFrom('conditions')
        .select((select) => [
          select.fn.countAll<bigint>().as('count'),
          statement<bigint | null>`sum(length(body))`.as('characters'),
        ])
        .where('instance_id', '=', instanceId)
        .executeTakeFirstOrThrow()
      return { count: Number(count), characters: Number(characters ?? 0) }
    },
    async referenced(instanceId) {
      const rows = await db
        .selectFrom('actions')
        .select('condition_id')
        .distinct()
        .where('instance_id', '=', instanceId)
        .where('condition_id', 'is not', null)
        .execute()
      return new Set(rows.map(({ condition_id }) => condition_id ?? ''))
    },
  }
}

export function conditionTransaction(sql: Sql): Transaction['conditions'] {
  const { db } = sql
  return {
    ...conditionReader(sql),
    async save(instanceId, conditions) {
      const rows = conditions.map((condition) => ({
        instance_id: instanceId,
        id: condition.id,
        body: JSON.stringify(condition),
      }))
      for (const some of chunks(rows, 100)) {
        await db
          .insertInto('conditions')
          .values(some)
          .onConflict((conflict) =>
            conflict
              .columns(['instance_id', 'id'])
              .doUpdateSet((excluded) => ({ body: excluded.ref('excluded.body') })),
          )
          .execute()
      }
    },
    async remove(instanceId, ids) {
      for (const some of chunks(ids)) {
        await db.deleteFrom('conditions').where('instance_id', '=', instanceId).where('id', 'in', some).execute()
      }
    },
  }
}

function conditionOf(body: string): ConditionNode {
  return JSON.parse(body) as ConditionNode
}
