/** Commands for sessions that their devices have not reported. Under the device's lock. */
import type { SessionCommand } from '../../../protocol/edge/sessions.ts'
import type { Sql } from './sql.ts'

export function sessionCommandTransaction({ db }: Sql) {
  return {
    async note(deviceId: string, sessionId: string, command: SessionCommand['command'], at: number): Promise<void> {
      const columns = { wanted: command, at: BigInt(at) }
      await db
        .insertInto('session_commands')
        .values({ device_id: deviceId, session_id: sessionId, ...columns })
        .onConflict((conflict) => conflict.columns(['device_id', 'session_id']).doUpdateSet(columns))
        .execute()
    },
    async count(deviceId: string): Promise<number> {
      const { count } = await db
        .selectFrom('session_commands')
        .select(({ fn }) => fn.countAll<bigint | number | string>().as('count'))
        .where('device_id', '=', deviceId)
        .executeTakeFirstOrThrow()
      return Number(count)
    },
    async take(deviceId: string, sessionId: string): Promise<SessionCommand['command'] | undefined> {
      const row = await db
        .deleteFrom('session_commands')
        .where('device_id', '=', deviceId)
        .where('session_id', '=', sessionId)
        .returning('wanted')
        .executeTakeFirst()
      return row?.wanted
    },
    async forget(deviceId: string, before: number): Promise<void> {
      await db
        .deleteFrom('session_commands')
        .where('device_id', '=', deviceId)
        .where('at', '<', BigInt(before))
        .execute()
    },
  }
}
