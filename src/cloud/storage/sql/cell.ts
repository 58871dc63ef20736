import type { CellRecord } from '../records.ts'
import { type Sql, toFlag } from './sql.ts'

export function cellReader({ db }: Sql) {
  return {
    /** Undefined: the database is no cell. */
    async get(): Promise<CellRecord | undefined> {
      const row = await db.selectFrom('cell').selectAll().executeTakeFirst()
      return row === undefined ? undefined : { name: row.name, isControl: row.is_control === 1n, cloudId: row.cloud_id }
    },
    /** In the control cell: of all cells of the cloud, sorted. */
    async names(): Promise<readonly string[]> {
      const rows = await db.selectFrom('cell_name').select('name').orderBy('name').execute()
      return rows.map(({ name }) => name)
    },
  }
}

export function cellTransaction(sql: Sql) {
  const { db, lockRows } = sql
  return {
    ...cellReader(sql),
    async register({ name, isControl, cloudId }: CellRecord): Promise<void> {
      await db
        .insertInto('cell')
        .values({ slot: 1n, name, is_control: toFlag(isControl), cloud_id: cloudId })
        .execute()
    },
    /** In the control cell. */
    async addName(name: string): Promise<void> {
      await db
        .insertInto('cell_name')
        .values({ name })
        .onConflict((conflict) => conflict.doNothing())
        .execute()
    },
    /** Serializes copies of the rate tables, keys and configuration into this cell. No other work waits. */
    async lockCopies(): Promise<void> {
      if (lockRows) await db.selectFrom('cell').select('slot').forUpdate().execute()
    },
  }
}
