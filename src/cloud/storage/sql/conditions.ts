/** Each body is the JSON of the whole condition tree. */
import { sql as statement } from 'kysely'
import type { ConditionNode } from '../records.ts'
import { type Sql, chunks, replacing } from './sql.ts'

export function conditionReader({ db }: Sql) {
  return {
    async get(instanceId: string, id: string): Promise<ConditionNode | undefined> {
      const row = await db
        .selectFrom('conditions')
        .select('body')
        .where('instance_id', '=', instanceId)
        .where('id', '=', id)
        .executeTakeFirst()
      return row === undefined ? undefined : conditionOf(row.body)
    },
    /** By creation. */
    async list(instanceId: string): Promise<readonly ConditionNode[]> {
      const rows = await db
        .selectFrom('conditions')
        .select('body')
        .where('instance_id', '=', instanceId)
        .orderBy('seq')
        .execute()
      return rows.map(({ body }) => conditionOf(body))
    },
    async size(instanceId: string): Promise<{ readonly count: number; readonly characters: number }> {
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
    async referenced(instanceId: string): Promise<ReadonlySet<string>> {
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

export function conditionTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...conditionReader(sql),
    async save(instanceId: string, conditions: readonly ConditionNode[]): Promise<void> {
      const rows = conditions.map((condition) => ({
        instance_id: instanceId,
        id: condition.id,
        body: JSON.stringify(condition),
      }))
      for (const some of chunks(rows, 100)) {
        await replacing(db, 'conditions', some, { key: ['instance_id', 'id'] }).execute()
      }
    },
    async remove(instanceId: string, ids: readonly string[]): Promise<void> {
      for (const some of chunks(ids)) {
        await db.deleteFrom('conditions').where('instance_id', '=', instanceId).where('id', 'in', some).execute()
      }
    },
  }
}

function conditionOf(body: string): ConditionNode {
  return JSON.parse(body) as ConditionNode
}
