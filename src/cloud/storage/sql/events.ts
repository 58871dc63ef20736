/** Events that are not usage. The transaction of the usage records writes them: they share its sequence of row numbers. */
import type { RawBuilder } from 'kysely'
import { type EventFilter, type EventRecord, type NumberedEvent, USAGE_ROW_POSITIONS } from '../records.ts'
import { deliveriesWith } from './edge-segments.ts'
import { inserter } from './row-numbers.ts'
import { eventSinkTransaction } from './event-sinks.ts'
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
      const rows = await deliveriesWith(db, [deviceId, epoch], entry, entry).select('seq').execute()
      return rows.map(({ seq }) => seq)
    },
    async get(id: string): Promise<NumberedEvent | undefined> {
      const row = await db.selectFrom('events').selectAll().where('id', '=', id).executeTakeFirst()
      return row === undefined ? undefined : numbered(row)
    },
  }
}

export interface OldEvents {
  /** A position. */
  readonly after: bigint
  /** POSIX ms: older ones are deleted if every sink has passed them. */
  readonly before: number
  /** POSIX ms: older ones are deleted in any case, if no sink that lacks them has received any since; null: none. */
  readonly undeliveredBefore: number | null
  /** How many to look at. */
  readonly limit: number
}

export interface ForgottenEvents {
  /** How many were deleted that a sink has not received, or keeps as dead letters. */
  readonly undelivered: number
  /** To continue after; null: there are no later old ones. */
  readonly next: bigint | null
}

export function eventTransaction(sql: Sql) {
  const { db } = sql
  const sinks = eventSinkTransaction(sql)
  return {
    ...eventReader(sql),
    /** The newest event stays: its position must not be used again. */
    async forget({ after, before, undeliveredBefore, limit }: OldEvents): Promise<ForgottenEvents> {
      const cursors = await sinks.lockCursors()
      const rows = await db
        .selectFrom('events')
        .select(['seq', 'at'])
        .where('seq', '>', after / USAGE_ROW_POSITIONS)
        .where('seq', '<', (of) => of.selectFrom('events').select((newest) => newest.fn.max('seq').as('seq')))
        .orderBy('seq')
        .limit(limit)
        .execute()
      const last = (rows.at(-1)?.seq ?? 0n) * USAGE_ROW_POSITIONS
      const dead = await sinks.deadWithin(after, last)
      const old = rows
        .map(({ seq, at }) => {
          const position = seq * USAGE_ROW_POSITIONS
          const waiting = cursors.filter((cursor) => cursor.position < position)
          // A sink that still delivers is not stuck, whatever the clock was when the event happened.
          const since = Math.max(Number(at), dead.get(position) ?? 0, ...waiting.map(({ deliveredAt }) => deliveredAt))
          return {
            seq,
            isPassed: waiting.length === 0,
            isDead: dead.has(position),
            isOld: at < before,
            isStuck: undeliveredBefore !== null && since < undeliveredBefore,
          }
        })
        .filter(({ isPassed, isOld, isStuck }) => isOld && (isPassed || isStuck))
      const due = old.filter(({ isDead, isStuck }) => isStuck || !isDead)
      if (due.length > 0) {
        const numbers = due.map(({ seq }) => seq)
        await db.deleteFrom('events').where('seq', 'in', numbers).execute()
      }
      return {
        undelivered: due.filter(({ isPassed, isDead }) => isDead || !isPassed).length,
        next: rows.length === limit && old.length > 0 ? last : null,
      }
    },
  }
}

export async function insertEvent(sql: Sql, seq: bigint | RawBuilder<bigint>, event: EventRecord): Promise<void> {
  const { id, type, at, instanceId, deviceId, data } = event
  await inserter(sql)
    .insertInto('events')
    .values({
      seq,
      id,
      type,
      at: BigInt(at),
      instance_id: instanceId,
      device_id: deviceId,
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
      type: row.type,
      at: Number(row.at),
      instanceId: row.instance_id,
      deviceId: row.device_id,
      data: JSON.parse(row.data) as EventRecord['data'],
    },
  }
}
