import { sql as expression } from 'kysely'
import type { Instance } from '../records.ts'
import { type Sql, toFlag } from './sql.ts'
import type { Row } from './tables.ts'

export function instanceReader({ db }: Sql) {
  return {
    async get(id: string): Promise<Instance | undefined> {
      const row = await db.selectFrom('instances').selectAll().where('id', '=', id).executeTakeFirst()
      return row === undefined ? undefined : instanceOf(row)
    },
    /** By creation. */
    async list(offset: number, limit: number): Promise<readonly Instance[]> {
      const rows = await db.selectFrom('instances').selectAll().orderBy('seq').offset(offset).limit(limit).execute()
      return rows.map(instanceOf)
    },
    async hasAccount(accountId: string): Promise<boolean> {
      const row = await db.selectFrom('instances').select('id').where('account_id', '=', accountId).executeTakeFirst()
      return row !== undefined
    },
    async defaultOf(accountId: string): Promise<Instance | undefined> {
      const row = await db
        .selectFrom('instances')
        .selectAll()
        .where('account_id', '=', accountId)
        .where(expression<boolean>`is_default = 1`)
        .executeTakeFirst()
      return row === undefined ? undefined : instanceOf(row)
    },
  }
}

export function instanceTransaction(sql: Sql) {
  return {
    ...instanceReader(sql),
    async insert(instance: Instance): Promise<void> {
      await sql.db
        .insertInto('instances')
        .values({
          id: instance.id,
          short_name: instance.shortName,
          account_id: instance.accountId,
          is_default: toFlag(instance.defaultInstance),
          created: BigInt(instance.created),
          modified: BigInt(instance.modified),
        })
        .execute()
    },
    async rename(id: string, shortName: string, modified: number): Promise<void> {
      await sql.db
        .updateTable('instances')
        .set({ short_name: shortName, modified: BigInt(modified) })
        .where('id', '=', id)
        .execute()
    },
  }
}

function instanceOf(row: Row<'instances'>): Instance {
  return {
    id: row.id,
    shortName: row.short_name,
    accountId: row.account_id,
    defaultInstance: row.is_default === 1n,
    created: Number(row.created),
    modified: Number(row.modified),
  }
}
