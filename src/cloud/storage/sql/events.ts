/** Events that are not usage. The transaction of the usage records writes them: they share its sequence of row numbers. */
import type { RawBuilder } from 'kysely'
import type { EventType } from '../../../protocol/edge/events.ts'
import { type EventFilter, type EventRecord, type NumberedEvent, USAGE_ROW_POSITIONS } from '../records.ts'
import { inserter } from './row-numbers.ts'
import type { Sql } from './sql.ts'
import type { Row } from './tables.ts'

export function eventReader({ db }: Sql) {
  return {
    /** Oldest first, after the first position and up to the second. */
    async range(after: bigint, upTo: bigint, limit: number): Promise<readonly NumberedEvent[]> {
      const rows = await db
        .selectFrom('events')
        .selectAll()
        .where('seq', '>', after / USAGE_ROW_POSITIONS)
        .where('seq', '<=', upTo / USAGE_ROW_POSITIONS)
        .orderBy('seq')
        .limit(limit)
        .execute()
      return rows.map(numbered)
    },
    /** Newest first. */
    async list({ instanceId, deviceId, type, before }: EventFilter, limit: number): Promise<readonly NumberedEvent[]> {
      let query = db.selectFrom('events').selectAll()
      if (instanceId !== undefined) query = query.where('instance_id', '=', instanceId)
      if (deviceId !== undefined) query = query.where('device_id', '=', deviceId)
      if (type !== undefined) query = query.where('type', '=', type)
      if (before !== undefined) query = query.where('seq', '<', before / USAGE_ROW_POSITIONS)
      return (await query.orderBy('seq', 'desc').limit(limit).execute()).map(numbered)
    },
    /** Numbers of the deliveries that can have a usage record of the entry. */
    async deliveriesOf(deviceId: string, epoch: bigint, entry: bigint): Promise<readonly bigint[]> {
      const rows = await db
        .selectFrom('deliveries')
        .select('seq')
        .where('device_id', '=', deviceId)
        .where('epoch', '=', epoch)
        .where('last_entry', '>=', entry)
        .where('first_entry', '<=', entry)
        .execute()
      return rows.map(({ seq }) => seq)
    },
    async get(id: string): Promise<NumberedEvent | undefined> {
      const row = await db.selectFrom('events').selectAll().where('id', '=', id).executeTakeFirst()
      return row === undefined ? undefined : numbered(row)
    },
  }
}

export async function insertEvent(sql: Sql, seq: bigint | RawBuilder<bigint>, event: EventRecord): Promise<void> {
  const { id, type, at, instanceId, deviceId, data } = event
  await inserter(sql)
    .insertInto('events')
    .values({
      ...{ seq, id, type, at: BigInt(at), instance_id: instanceId, device_id: deviceId },
      data: JSON.stringify(data),
    })
    .onConflict((conflict) => conflict.column('id').doNothing())
    .execute()
}

function numbered(row: Row<'events'>): NumberedEvent {
  return {
    position: row.seq * USAGE_ROW_POSITIONS,
    event: {
      id: row.id,
      type: row.type as EventType,
      at: Number(row.at),
      instanceId: row.instance_id,
      deviceId: row.device_id,
      data: JSON.parse(row.data) as EventRecord['data'],
    },
  }
}
