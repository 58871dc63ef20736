import { sql as expression } from 'kysely'
import type { AwaitedDevice, Recovery } from '../device-records.ts'
import { type Sql, toFlag, toNumber } from './sql.ts'
import type { Row } from './tables.ts'

export function recoveryReader({ db }: Sql) {
  return {
    async get(instanceId: string): Promise<Recovery | undefined> {
      const row = await db.selectFrom('recoveries').selectAll().where('instance_id', '=', instanceId).executeTakeFirst()
      return row === undefined ? undefined : recoveryOf(row)
    },
    async underWay(): Promise<readonly Recovery[]> {
      const rows = await db
        .selectFrom('recoveries')
        .selectAll()
        .where('ended_at', 'is', null)
        .orderBy('instance_id')
        .execute()
      return rows.map(recoveryOf)
    },
    /** POSIX ms; null: none is known; Infinity: its time is not known yet. */
    async lastRestore(): Promise<number | null> {
      const row = await db.selectFrom('last_restore').select(['at', 'dated']).executeTakeFirst()
      if (row === undefined) return null
      return row.dated === 1n ? Number(row.at) : Infinity
    },
    /**
     * Devices, neither revoked nor terminated, that have not reported in this recovery or a newer one: one row per epoch
     * neither closed nor settled, or for a device that has never attached. An epoch that was replaced before the restore
     * got no grant since, and its device reports in a later one.
     */
    async waitingFor({ instanceId, number, since }: Recovery, limit: number): Promise<readonly AwaitedDevice[]> {
      const rows = await db
        .selectFrom('device_instances')
        .innerJoin('devices', 'devices.id', 'device_instances.device_id')
        .leftJoin('epochs', 'epochs.device_id', 'devices.id')
        .where('device_instances.instance_id', '=', instanceId)
        .where('devices.revoked_at', 'is', null)
        .where(expression<boolean>`COALESCE(devices.suspension_state, '') <> 'TERMINATED'`)
        .where((or) =>
          or.or([
            or('epochs.number', 'is', null),
            or.and([
              or('epochs.recovery', '<', BigInt(number)),
              or('epochs.status', '<>', 'CLOSED'),
              or('epochs.settled_at', 'is', null),
              or.or([
                or('epochs.number', '=', or.ref('devices.epoch')),
                or('epochs.fenced_at', 'is', null),
                or('epochs.fenced_at', '>=', BigInt(since)),
              ]),
            ]),
          ]),
        )
        .select(['devices.id', 'epochs.number', 'epochs.status'])
        .orderBy('devices.id')
        .orderBy('epochs.number')
        .limit(limit)
        .execute()
      return rows.map(({ id, number, status }): AwaitedDevice => ({
        deviceId: id,
        epoch: toNumber(number),
        status,
      }))
    },
  }
}

/** The longer lasting reason and the later instant. */
const stronger = expression<'MARK' | 'NODE' | null>`CASE
  WHEN recoveries.ended_at IS NOT NULL THEN excluded.unproven
  WHEN recoveries.unproven = 'MARK' OR excluded.unproven = 'MARK' THEN 'MARK'
  ELSE COALESCE(excluded.unproven, recoveries.unproven) END`
/** The same for all instances of one statement. */
const next = expression<bigint>`(SELECT COALESCE(MAX(number), 0) + 1 FROM recoveries)`
const later = expression<bigint>`CASE WHEN excluded.since > recoveries.since THEN excluded.since ELSE recoveries.since END`

export function recoveryTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...recoveryReader(sql),
    /** During a recovery, all devices must report again. */
    async begin(instanceId: string, since: number, unproven: Recovery['unproven']): Promise<void> {
      await db
        .insertInto('recoveries')
        .values({ instance_id: instanceId, number: next, since: BigInt(since), unproven, ended_at: null })
        .onConflict((conflict) =>
          conflict.column('instance_id').doUpdateSet((excluded) => ({
            number: excluded.ref('excluded.number'),
            since: later,
            unproven: stronger,
            ended_at: null,
          })),
        )
        .execute()
    },
    async beginAll(since: number, unproven: Recovery['unproven']): Promise<void> {
      await expression`
        INSERT INTO recoveries (instance_id, number, since, unproven, ended_at)
        SELECT id, ${next}, CAST(${BigInt(since)} AS BIGINT), CAST(${unproven} AS TEXT), NULL FROM instances WHERE TRUE
        ON CONFLICT (instance_id)
        DO UPDATE SET number = excluded.number, since = ${later}, unproven = ${stronger}, ended_at = NULL`.execute(db)
    },
    async proveAll(): Promise<void> {
      await db.updateTable('recoveries').set({ unproven: null }).where('unproven', '=', 'NODE').execute()
    },
    /** Not a newer one, which another transaction may have begun. */
    async end({ instanceId, number }: Pick<Recovery, 'instanceId' | 'number'>, at: number): Promise<void> {
      await db
        .updateTable('recoveries')
        .set({ unproven: null, ended_at: BigInt(at) })
        .where('instance_id', '=', instanceId)
        .where('number', '=', BigInt(number))
        .execute()
    },
    /**
     * Records a restore: inactivity from before it does not count, because reports may be lost.
     * @param dated false: it may have been later. The next trusted reading of a clock dates it
     */
    async restored(at: number, dated: boolean): Promise<void> {
      await db
        .insertInto('last_restore')
        .values({ slot: 1n, at: BigInt(at), dated: toFlag(dated) })
        .onConflict((conflict) =>
          conflict.column('slot').doUpdateSet({
            at: expression<bigint>`CASE WHEN excluded.at > last_restore.at THEN excluded.at ELSE last_restore.at END`,
            dated: toFlag(dated),
          }),
        )
        .execute()
    },
  }
}

function recoveryOf(row: Row<'recoveries'>): Recovery {
  return {
    instanceId: row.instance_id,
    number: Number(row.number),
    since: Number(row.since),
    unproven: row.unproven,
    endedAt: toNumber(row.ended_at),
  }
}
