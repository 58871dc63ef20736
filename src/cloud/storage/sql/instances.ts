import type { Instance } from '../records.ts'
import type { InstanceReader, Transaction } from '../store.ts'
import { type Sql, toFlag } from './sql.ts'
import type { Row } from './tables.ts'

export function instanceReader({ db }: Sql): InstanceReader {
  return {
    async get(id) {
      const row = await db.selectFrom('instances').selectAll().where('id', '=', id).executeTakeFirst()
      return row === undefined ? undefined : instanceOf(row)
    },
    async list(offset, limit) {
      const rows = await db.selectFrom('instances').selectAll().orderBy('seq').offset(offset).limit(limit).execute()
      return rows.map(instanceOf)
    },
    async defaultOf(accountId) {
      const row = await db
        .selectFrom('instances')
        .selectAll()
        .where('account_id', '=', accountId)
        .where('is_default', '=', 1n)
        .executeTakeFirst()
      return row === undefined ? undefined : instanceOf(row)
    },
  }
}

export function instanceTransaction(sql: Sql): Transaction['instances'] {
  return {
    ...instanceReader(sql),
    async insert(instance) {
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
