import type { EdgeTransaction } from '../device-store.ts'
import type { Sql } from './sql.ts'

export function sessionCommandTransaction({ db }: Sql): EdgeTransaction['sessionCommands'] {
  return {
    async note(deviceId, sessionId, command, at) {
      const columns = { wanted: command, at: BigInt(at) }
      await db
        .insertInto('session_commands')
        .values({ device_id: deviceId, session_id: sessionId, ...columns })
        .onConflict((conflict) => conflict.columns(['device_id', 'session_id']).doUpdateSet(columns))
        .execute()
    },
    async count(deviceId) {
      const { count } = await db
        .selectFrom('session_commands')
        .select(({ fn }) => fn.countAll<bigint | number | string>().as('count'))
        .where('device_id', '=', deviceId)
        .executeTakeFirstOrThrow()
      return Number(count)
    },
    async take(deviceId, sessionId) {
      const row = await db
        .deleteFrom('session_commands')
        .where('device_id', '=', deviceId)
        .where('session_id', '=', sessionId)
        .returning('wanted')
        .executeTakeFirst()
      return row?.wanted
    },
    async forget(deviceId, before) {
      await db
        .deleteFrom('session_commands')
        .where('device_id', '=', deviceId)
        .where('at', '<', BigInt(before))
        .execute()
    },
  }
}
