import { sql as expression } from 'kysely'
import {
  NODES_DIFFER_MAX_MS,
  SESSION_REST_MS,
  type Session,
  type SessionState,
  nextDue,
  renewalDueBefore,
} from '../../../core/sessions/session.ts'
import { type StoredCharge, chargeOf, storedCharge } from '../../../core/sessions/stored-charge.ts'
import type { SessionCommand } from '../../../protocol/edge/sessions.ts'
import {
  type Sql,
  chunks,
  countOf,
  filledUp,
  prepared,
  rowsIn,
  rowsOf,
  repeated,
  toBigint,
  toNumber,
  updates,
  upsert,
} from './sql.ts'
import type { Row } from './tables.ts'

/** As literals, like in the partial indexes: SQLite uses such an index only if it can prove that it applies. */
const IS_LIVE = expression<boolean>`state IN ('IDLE', 'ACTIVE')`
export const HAS_NOT_ENDED = expression<boolean>`state IN ('IDLE', 'ACTIVE', 'LOCKED')`
/** Of a session that has not ended, with a command. */
const IS_NOT_AS_WANTED = expression<boolean>`(wanted = 'TERMINATE' OR (wanted = 'LOCK') = (state <> 'LOCKED'))`

const idsBy = (db: Sql['db'], column: 'device_id' | 'kept_by', deviceId: string) =>
  db.selectFrom('sessions').select('id').where(column, '=', deviceId).where(HAS_NOT_ENDED)

/** Each half uses its column's index; OR would not. */
const idsOf = (db: Sql['db'], deviceId: string) =>
  idsBy(db, 'device_id', deviceId).union(idsBy(db, 'kept_by', deviceId))

const notEnded = prepared((db) => idsOf(db, '').orderBy('id'))

const opened = prepared((db) => idsBy(db, 'device_id', '').orderBy('id'))

const commanded = prepared((db) =>
  db
    .selectFrom('sessions')
    .select(['id', 'wanted'])
    .where('kept_by', '=', '')
    .where(HAS_NOT_ENDED)
    .where(IS_NOT_AS_WANTED)
    .orderBy('id')
    .limit(1)
    .$narrowType<{ wanted: SessionCommand['command'] }>(),
)

const someOfDevices = (db: Sql['db'], count: number) =>
  db.selectFrom('sessions').selectAll().where('device_id', 'in', repeated(count, '')).where(HAS_NOT_ENDED)

const sessionsOfDevices = prepared((db, count) => someOfDevices(db, count).orderBy('id'))

const lockedOfDevices = prepared((db, count) => someOfDevices(db, count).orderBy('id').forNoKeyUpdate().skipLocked())

const updatedSessions = updates('sessions', ['id'])

export function sessionReader({ db }: Sql) {
  return {
    async get(id: string): Promise<Session | undefined> {
      const row = await db.selectFrom('sessions').selectAll().where('id', '=', id).executeTakeFirst()
      return row === undefined ? undefined : sessionOf(row)
    },
    /** Of those that are stored, by id. */
    async states(ids: readonly string[]): Promise<ReadonlyMap<string, SessionState>> {
      const rows = await rowsIn(ids, (some) =>
        db.selectFrom('sessions').select(['id', 'state']).where('id', 'in', some),
      )
      return new Map(rows.map(({ id, state }) => [id, state]))
    },
    /** Live ones (IDLE, ACTIVE), newest first. */
    async live(instanceId: string | null, limit: number): Promise<readonly Session[]> {
      let query = db.selectFrom('sessions').selectAll().where(IS_LIVE)
      if (instanceId !== null) query = query.where('instance_id', '=', instanceId)
      const rows = await query.orderBy('created', 'desc').orderBy('seq', 'desc').limit(limit).execute()
      return rows.map(sessionOf)
    },
    /** Those that have not ended, newest first. @param filter absent: all; `before`: the last one's number */
    async page(
      filter: {
        readonly instanceId?: string | undefined
        /** Opened or kept by it. */
        readonly deviceId?: string | undefined
        readonly before?: bigint | undefined
      },
      limit: number,
    ): Promise<readonly { readonly number: bigint; readonly session: Session }[]> {
      const { instanceId, deviceId, before } = filter
      let query = db.selectFrom('sessions').selectAll().where(HAS_NOT_ENDED)
      if (instanceId !== undefined) query = query.where('instance_id', '=', instanceId)
      if (deviceId !== undefined) query = query.where('id', 'in', idsOf(db, deviceId))
      if (before !== undefined) query = query.where('seq', '<', before)
      const rows = await query.orderBy('seq', 'desc').limit(limit).execute()
      return rows.map((row) => ({ number: row.seq, session: sessionOf(row) }))
    },
    async notEnded(deviceId: string): Promise<readonly string[]> {
      return (await db.executeQuery(notEnded(db, [deviceId, deviceId]))).rows.map(({ id }) => id)
    },
    /** Those of `notEnded` that the device does not keep. */
    async opened(deviceId: string): Promise<readonly string[]> {
      return (await db.executeQuery(opened(db, [deviceId]))).rows.map(({ id }) => id)
    },
    async ofDevice(deviceId: string): Promise<readonly Session[]> {
      const rows = await db
        .selectFrom('sessions')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where(HAS_NOT_ENDED)
        .where(IS_LIVE)
        .orderBy('id')
        .execute()
      return rows.map(sessionOf)
    },
    /** By id: the agent's own open sessions in the instance, and the one of this opening in any state. */
    async openedAs(
      deviceId: string,
      instanceId: string,
      opening: string,
    ): Promise<readonly { readonly session: Session; readonly isThis: boolean }[]> {
      const rows = await db
        .selectFrom('sessions')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where('instance_id', '=', instanceId)
        .where('opening', 'is not', null)
        .where((where) => where.or([where('opening', '=', opening), HAS_NOT_ENDED]))
        .orderBy('id')
        .execute()
      return rows.map((row) => ({ session: sessionOf(row), isThis: row.opening === opening }))
    },
    async countKeptBy(deviceId: string): Promise<number> {
      return countOf(db.selectFrom('sessions').where('kept_by', '=', deviceId).where(HAS_NOT_ENDED))
    },
    /** For sessions that the device keeps, by id, without commands that are in effect. */
    async commands(deviceId: string, limit: number): Promise<SessionCommand[]> {
      const { rows } = await db.executeQuery(commanded(db, [deviceId, limit]))
      return rows.map(({ id, wanted }) => ({ id, command: wanted }))
    },
    /** Cloud sessions automatically charged up to the instant, earliest first. */
    async renewedBy(until: number, limit: number): Promise<readonly Session[]> {
      const rows = await db
        .selectFrom('sessions')
        .selectAll()
        .where('next_due', '<=', BigInt(until))
        .where('state', '=', 'ACTIVE')
        .orderBy('next_due')
        .limit(limit)
        .execute()
      return rows.map(sessionOf).filter(({ charge }) => charge !== null && charge.until <= until)
    },
  }
}

export function sessionTransaction(sql: Sql) {
  const { db, lockRows } = sql
  return {
    ...sessionReader(sql),
    /** @param opening the device's id for opening its agent's own session; null or absent: another session */
    async insert(session: Session, opening: string | null = null): Promise<void> {
      await db
        .insertInto('sessions')
        .values(rowOf(session, opening, null))
        .execute()
    },
    async insertKept(
      added: readonly { readonly session: Session; readonly wanted: SessionCommand['command'] | null }[],
    ): Promise<void> {
      for (const some of chunks(added, 50)) {
        const rows = some.map(({ session, wanted }) => rowOf(session, null, wanted))
        await db.insertInto('sessions').values(rows).execute()
      }
    },
    async lock(id: string): Promise<Session | undefined> {
      const query = db.selectFrom('sessions').selectAll().where('id', '=', id)
      const row = await (lockRows ? query.forNoKeyUpdate() : query).executeTakeFirst()
      return row === undefined ? undefined : sessionOf(row)
    },
    /** Locks those that are stored, by id. */
    async lockSome(ids: readonly string[]): Promise<readonly string[]> {
      const rows = await rowsIn([...new Set(ids)].sort(), (some) => {
        const query = db.selectFrom('sessions').select('id').where('id', 'in', filledUp(some)).orderBy('id')
        return lockRows ? query.forNoKeyUpdate() : query
      })
      return rows.map(({ id }) => id)
    },
    /** Locks and reads those that are stored, by id. */
    async lockStored(ids: readonly string[]): Promise<ReadonlyMap<string, Session>> {
      const rows = await rowsIn([...new Set(ids)].sort(), (some) => {
        const query = db.selectFrom('sessions').selectAll().where('id', 'in', filledUp(some)).orderBy('id')
        return lockRows ? query.forNoKeyUpdate() : query
      })
      return new Map(rows.map((row) => [row.id, sessionOf(row)]))
    },
    /** Locks those of the devices that have not ended and that no other transaction has locked, by device. */
    async lockOfDevices(deviceIds: readonly string[]): Promise<ReadonlyMap<string, readonly Session[]>> {
      const rows = await rowsOf(db, lockRows ? lockedOfDevices : sessionsOfDevices, deviceIds)
      return Map.groupBy(rows.map(sessionOf), ({ deviceId }) => deviceId ?? '')
    },
    /** Locks the earliest due session, or one that a clock that was ahead charged, skipping those locked by others. */
    async lockDue(now: number): Promise<Session | undefined> {
      const all = db.selectFrom('sessions').selectAll().limit(1)
      const due = all.where('next_due', '<=', BigInt(now)).orderBy('next_due')
      const chargedAhead = all.where('renewal_due_before', '>', BigInt(now)).orderBy('renewal_due_before')
      for (const query of [due, chargedAhead]) {
        const row = await (lockRows ? query.forNoKeyUpdate().skipLocked() : query).executeTakeFirst()
        if (row !== undefined) return sessionOf(row)
      }
      return undefined
    },
    /** All but id, instance, device, keeper and creation. */
    async save(session: Session): Promise<void> {
      await db.updateTable('sessions').set(columnsOf(session)).where('id', '=', session.id).execute()
    },
    /** As `save`. Writes only the columns that differ. */
    async saveSome(changes: readonly { readonly session: Session; readonly stored: Session }[]): Promise<void> {
      await updatedSessions(
        db,
        changes.map(({ session, stored }) => ({
          key: [session.id],
          before: columnsOf(stored),
          after: columnsOf(session),
        })),
      )
    },
    /** Those that the device keeps. */
    async disconnectKept(deviceId: string, now: number): Promise<void> {
      await disconnecting(db, 'kept_by', deviceId, now).execute()
    },
    /** Those that the device has opened and in which nothing is charged. */
    async disconnectIdle(deviceId: string, now: number): Promise<void> {
      await disconnecting(db, 'device_id', deviceId, now).where('state', '=', 'IDLE').execute()
    },
    async setWanted(id: string, command: SessionCommand['command']): Promise<void> {
      await db.updateTable('sessions').set({ wanted: command }).where('id', '=', id).execute()
    },
    /** For those that the device keeps, except those that it has to end. */
    async setWantedOfKept(deviceId: string, command: SessionCommand['command']): Promise<void> {
      await db
        .updateTable('sessions')
        .set({ wanted: command })
        .where('kept_by', '=', deviceId)
        .where(HAS_NOT_ENDED)
        .where((where) => where.or([where('wanted', 'is', null), where('wanted', '<>', 'TERMINATE')]))
        .execute()
    },
    async remove(id: string): Promise<void> {
      await db.deleteFrom('sessions').where('id', '=', id).execute()
    },
  }
}

function disconnecting(db: Sql['db'], column: 'device_id' | 'kept_by', deviceId: string, now: number) {
  return db
    .updateTable('sessions')
    .set({
      state: 'DISCONNECTED',
      charge: null,
      since: BigInt(now),
      next_due: BigInt(now + SESSION_REST_MS),
    })
    .where(column, '=', deviceId)
    .where(HAS_NOT_ENDED)
}

function rowOf(session: Session, opening: string | null, wanted: SessionCommand['command'] | null) {
  return {
    id: session.id,
    instance_id: session.instanceId,
    device_id: session.deviceId,
    opening,
    kept_by: session.keptBy,
    wanted,
    created: BigInt(session.created),
    ...columnsOf(session),
  }
}

function columnsOf(session: Session) {
  return {
    state: session.state,
    requester: session.requester === null ? null : JSON.stringify(session.requester),
    charge: session.charge === null ? null : JSON.stringify(storedCharge(session.charge)),
    interval_ms: BigInt(session.intervalMs),
    heartbeat_due: toBigint(session.heartbeatDue),
    last_heartbeat: BigInt(session.lastHeartbeat),
    last_access_request: BigInt(session.lastAccessRequest),
    since: BigInt(session.since),
    next_due: BigInt(nextDue(session)),
    renewal_due_before: toBigint(renewalDueBefore(session, NODES_DIFFER_MAX_MS)),
  }
}

function sessionOf(row: Row<'sessions'>): Session {
  return {
    id: row.id,
    instanceId: row.instance_id,
    deviceId: row.device_id,
    keptBy: row.kept_by,
    state: row.state,
    created: Number(row.created),
    requester: row.requester === null ? null : (JSON.parse(row.requester) as NonNullable<Session['requester']>),
    charge: row.charge === null ? null : chargeOf(JSON.parse(row.charge) as StoredCharge),
    intervalMs: Number(row.interval_ms),
    heartbeatDue: toNumber(row.heartbeat_due),
    lastHeartbeat: Number(row.last_heartbeat),
    lastAccessRequest: Number(row.last_access_request),
    since: Number(row.since),
  }
}

/** Commands for sessions that their devices have not reported. Under the device's lock. */
export function sessionCommandTransaction({ db }: Sql) {
  return {
    async note(deviceId: string, sessionId: string, command: SessionCommand['command'], at: number): Promise<void> {
      const key = { device_id: deviceId, session_id: sessionId }
      await upsert(db, 'session_commands', key, { wanted: command, at: BigInt(at) })
    },
    count: (deviceId: string): Promise<number> =>
      countOf(db.selectFrom('session_commands').where('device_id', '=', deviceId)),
    async take(
      deviceId: string,
      sessionIds: readonly string[],
    ): Promise<ReadonlyMap<string, SessionCommand['command']>> {
      const rows = await rowsIn(sessionIds, (some) =>
        db
          .deleteFrom('session_commands')
          .where('device_id', '=', deviceId)
          .where('session_id', 'in', some)
          .returning(['session_id', 'wanted']),
      )
      return new Map(rows.map(({ session_id, wanted }) => [session_id, wanted]))
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
