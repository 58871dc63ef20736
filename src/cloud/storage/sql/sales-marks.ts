import type { SalesMarkRecord } from '../device-records.ts'
import { type Sql, toFlag, upsert } from './sql.ts'

export function salesMarkReader({ db }: Sql) {
  return {
    /** By id. */
    async list(): Promise<readonly SalesMarkRecord[]> {
      const rows = await db.selectFrom('sales_marks').selectAll().orderBy('id').execute()
      return rows.map(({ id, turn, seen_at, awaited, accepted }) => ({
        id,
        turn: Number(turn),
        seenAt: Number(seen_at),
        awaited: awaited === 1n,
        accepted: accepted === 1n,
      }))
    },
  }
}

export function salesMarkTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...salesMarkReader(sql),
    async save({ id, turn, seenAt, awaited, accepted }: SalesMarkRecord): Promise<void> {
      const seen = { turn: BigInt(turn), seen_at: BigInt(seenAt) }
      await upsert(db, 'sales_marks', { id }, { ...seen, awaited: toFlag(awaited), accepted: toFlag(accepted) })
    },
    /** False if the database does not have turn `from`: it is older or newer than the file. */
    async turn(id: string, from: number, seenAt: number): Promise<boolean> {
      const turned = await db
        .updateTable('sales_marks')
        .set({ turn: BigInt(from + 1), seen_at: BigInt(seenAt) })
        .where('id', '=', id)
        .where('turn', '=', BigInt(from))
        .returning('id')
        .execute()
      return turned.length === 1
    },
    /** Deletes marks not seen since the instant, unless a recovery waits for them. */
    async forget(before: number): Promise<void> {
      await db.deleteFrom('sales_marks').where('seen_at', '<', BigInt(before)).where('awaited', '=', 0n).execute()
    },
    /** A node with its own mark accepts nodes that joined since. */
    async acceptAll(): Promise<void> {
      await db.updateTable('sales_marks').set({ accepted: 1n }).where('accepted', '=', 0n).execute()
    },
  }
}
