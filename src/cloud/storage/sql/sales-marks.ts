import type { EdgeReader, EdgeTransaction } from '../device-store.ts'
import { type Sql, toFlag } from './sql.ts'

export function salesMarkReader({ db }: Sql): EdgeReader['salesMarks'] {
  return {
    async list() {
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

export function salesMarkTransaction(sql: Sql): EdgeTransaction['salesMarks'] {
  const { db } = sql
  return {
    ...salesMarkReader(sql),
    async save({ id, turn, seenAt, awaited, accepted }) {
      const columns = {
        turn: BigInt(turn),
        seen_at: BigInt(seenAt),
        awaited: toFlag(awaited),
        accepted: toFlag(accepted),
      }
      await db
        .insertInto('sales_marks')
        .values({ id, ...columns })
        .onConflict((conflict) => conflict.column('id').doUpdateSet(columns))
        .execute()
    },
    async turn(id, from, seenAt) {
      const turned = await db
        .updateTable('sales_marks')
        .set({ turn: BigInt(from + 1), seen_at: BigInt(seenAt) })
        .where('id', '=', id)
        .where('turn', '=', BigInt(from))
        .returning('id')
        .execute()
      return turned.length === 1
    },
    async forget(before) {
      await db.deleteFrom('sales_marks').where('seen_at', '<', BigInt(before)).where('awaited', '=', 0n).execute()
    },
    async acceptAll() {
      await db.updateTable('sales_marks').set({ accepted: 1n }).where('accepted', '=', 0n).execute()
    },
  }
}
