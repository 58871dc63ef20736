/** Orders for sessions that their devices have not told of yet, in SQL. */
import type { EdgeTransaction } from '../../app/edge/store.ts'
import type { Sql } from './sql.ts'

export function sessionOrderTransaction({ db }: Sql): EdgeTransaction['sessionOrders'] {
  return {
    async note(deviceId, sessionId, order, at) {
      const columns = { wanted: order, at: BigInt(at) }
      await db
        .insertInto('session_orders')
        .values({ device_id: deviceId, session_id: sessionId, ...columns })
        .onConflict((conflict) => conflict.columns(['device_id', 'session_id']).doUpdateSet(columns))
        .execute()
    },
    async count(deviceId) {
      const { count } = await db
        .selectFrom('session_orders')
        .select(({ fn }) => fn.countAll<bigint | number | string>().as('count'))
        .where('device_id', '=', deviceId)
        .executeTakeFirstOrThrow()
      return Number(count)
    },
    async take(deviceId, sessionId) {
      const row = await db
        .deleteFrom('session_orders')
        .where('device_id', '=', deviceId)
        .where('session_id', '=', sessionId)
        .returning('wanted')
        .executeTakeFirst()
      return row?.wanted
    },
    async forget(deviceId, before) {
      await db.deleteFrom('session_orders').where('device_id', '=', deviceId).where('at', '<', BigInt(before)).execute()
    },
  }
}
