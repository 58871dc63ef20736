/** Stores only values that differ from their defaults. */
import type { ConfigurationValue } from '../records.ts'
import type { Sql } from './sql.ts'

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
      const columns = { value, modified: BigInt(modified), updated_by: updatedBy }
      await sql.db
        .insertInto('configuration')
        .values({ name, ...columns })
        .onConflict((conflict) => conflict.column('name').doUpdateSet(columns))
        .execute()
    },
    async remove(name: string): Promise<void> {
      await sql.db.deleteFrom('configuration').where('name', '=', name).execute()
    },
  }
}
