/**
 * A message stays until published; a claim reserves it for one node for a while. Keeps one message per subject, so a
 * long broker outage does not fill the table.
 */
import { sql as statement } from 'kysely'
import type { ChangeNotification, OutboxMessage } from '../records.ts'
import { type Sql, chunks } from './sql.ts'
import type { Row } from './tables.ts'

/** @param written called after an append: publishers should look after the commit */
export function outboxTransaction({ db, lockRows }: Sql, written: () => void) {
  const waitingAt = (at: number) => db.selectFrom('outbox').select('id').where('claimed_until', '<=', BigInt(at))
  /** Skips messages being published by another node, without waiting. */
  const dropWaiting = async (
    at: number,
    of: (waiting: ReturnType<typeof waitingAt>) => ReturnType<typeof waitingAt>,
  ): Promise<void> => {
    const found = of(waitingAt(at))
    await db
      .deleteFrom('outbox')
      .where('id', 'in', lockRows ? found.forUpdate().skipLocked() : found)
      .execute()
  }
  /** Moves the end of claims. 0 ends them: any node may publish the notifications. */
  const claimUntil = async (ids: readonly bigint[], until: number): Promise<void> => {
    for (const some of chunks(ids)) {
      await db
        .updateTable('outbox')
        .set({ claimed_until: BigInt(until) })
        .where('id', 'in', some)
        .execute()
    }
  }
  return {
    async append(notifications: readonly ChangeNotification[], at: number): Promise<void> {
      if (notifications.length === 0) return
      for (const some of chunks(
        notifications.flatMap((notification) => (notification.kind === 'policy' ? [notification.instanceId] : [])),
      )) {
        await dropWaiting(at, (waiting) => waiting.where('kind', '=', 'policy').where('instance_id', 'in', some))
      }
      for (const reason of ['session', 'sync'] as const) {
        const devices = notifications.flatMap((notification) =>
          notification.kind === 'device' && notification.reason === reason ? [notification.deviceId] : [],
        )
        for (const some of chunks(devices)) {
          await dropWaiting(at, (waiting) => waiting.where('reason', '=', reason).where('device_id', 'in', some))
        }
      }
      const rows = notifications.map((notification) => ({
        ...columnsOf(notification),
        written: BigInt(at),
        claimed_until: 0n,
      }))
      for (const some of chunks(rows, 100)) await db.insertInto('outbox').values(some).execute()
      written()
    },
    async appendPolicies(at: number): Promise<void> {
      await dropWaiting(at, (waiting) => waiting.where('kind', '=', 'policy'))
      const policies = db
        .selectFrom('policy_revisions')
        .select(['instance_id', 'revision'])
        .select([
          statement<string>`'policy'`.as('kind'),
          statement<bigint>`CAST(${BigInt(at)} AS BIGINT)`.as('written'),
          statement<bigint>`0`.as('claimed_until'),
        ])
        .orderBy('instance_id')
      await db
        .insertInto('outbox')
        .columns(['instance_id', 'revision', 'kind', 'written', 'claimed_until'])
        .expression(policies)
        .execute()
      written()
    },
    /** Claims the oldest unclaimed notifications until the given instant; other nodes skip them until then. */
    async claim(limit: number, now: number, until: number): Promise<readonly OutboxMessage[]> {
      const query = db
        .selectFrom('outbox')
        .selectAll()
        .where((eb) =>
          // No valid claim is longer: this one was made when the clock was ahead.
          eb.or([eb('claimed_until', '<=', BigInt(now)), eb('claimed_until', '>', BigInt(2 * until - now))]),
        )
        .orderBy('id')
        .limit(limit)
      const rows = await (lockRows ? query.forUpdate().skipLocked() : query).execute()
      await claimUntil(
        rows.map(({ id }) => id),
        until,
      )
      return rows.map((row) => ({ id: row.id, notification: notificationOf(row) }))
    },
    claimUntil,
    async remove(ids: readonly bigint[]): Promise<void> {
      for (const some of chunks(ids)) await db.deleteFrom('outbox').where('id', 'in', some).execute()
    },
  }
}

function columnsOf(notification: ChangeNotification) {
  const none = { instance_id: null, revision: null, device_id: null, reason: null }
  return notification.kind === 'policy'
    ? {
        ...none,
        kind: notification.kind,
        instance_id: notification.instanceId,
        revision: BigInt(notification.revision),
      }
    : { ...none, kind: notification.kind, device_id: notification.deviceId, reason: notification.reason }
}

function notificationOf(row: Row<'outbox'>): ChangeNotification {
  return row.kind === 'policy'
    ? { kind: 'policy', instanceId: row.instance_id ?? '', revision: Number(row.revision) }
    : { kind: 'device', deviceId: row.device_id ?? '', reason: row.reason as 'session' | 'sync' }
}
