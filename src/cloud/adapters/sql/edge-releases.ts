/** What devices are asked to give back, in SQL. */
import type { EdgeReader, EdgeTransaction } from '../../app/edge/store.ts'
import { type Sql, chunks } from './sql.ts'

export function releaseReader({ db }: Sql): EdgeReader['releases'] {
  return {
    async of(deviceId) {
      const rows = await db
        .selectFrom('release_asks')
        .selectAll()
        .where('device_id', '=', deviceId)
        .orderBy('account')
        .execute()
      return rows.map(({ account, keep, asked_at }) => ({ account, keep, askedAt: Number(asked_at) }))
    },
  }
}

export function releaseTransaction(sql: Sql): EdgeTransaction['releases'] {
  const { db } = sql
  return {
    ...releaseReader(sql),
    async ask(deviceId, account, keep, askedAt, askedBefore) {
      const row = await db
        .insertInto('release_asks')
        .values({ device_id: deviceId, account, keep, asked_at: BigInt(askedAt) })
        .onConflict((conflict) =>
          conflict
            .columns(['device_id', 'account'])
            .doUpdateSet((excluded) => ({
              keep: excluded.ref('excluded.keep'),
              asked_at: excluded.ref('excluded.asked_at'),
            }))
            .where('release_asks.asked_at', '<=', BigInt(askedBefore)),
        )
        .returning('account')
        .executeTakeFirst()
      return row !== undefined
    },
    async remove(deviceId, accounts) {
      for (const some of chunks(accounts)) {
        await db.deleteFrom('release_asks').where('device_id', '=', deviceId).where('account', 'in', some).execute()
      }
    },
  }
}
