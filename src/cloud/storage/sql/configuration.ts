/** Stores only values that differ from their defaults. */
import type { ConfigurationValue } from '../records.ts'
import { type Sql, upsert } from './sql.ts'

export function configurationReader({ db }: Sql) {
  return {
    /** Changed values only. */
    async list(): Promise<readonly ConfigurationValue[]> {
      const rows = await db.selectFrom('configuration').selectAll().orderBy('name').execute()
      return rows.map(({ name, value, modified, updated_by }) => ({
        name,
        value,
        modified: Number(modified),
        updatedBy: updated_by,
      }))
    },
  }
}

export function configurationTransaction(sql: Sql) {
  return {
    ...configurationReader(sql),
    async save({ name, value, modified, updatedBy }: ConfigurationValue): Promise<void> {
      await upsert(sql.db, 'configuration', { name }, { value, modified: BigInt(modified), updated_by: updatedBy })
    },
    async remove(name: string): Promise<void> {
      await sql.db.deleteFrom('configuration').where('name', '=', name).execute()
    },
  }
}
