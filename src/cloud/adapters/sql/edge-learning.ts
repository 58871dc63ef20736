/** What a restored twin has still to hear of, in SQL. */
import { sql as expression } from 'kysely'
import type { Incarnation } from '../../app/edge/records.ts'
import type { EdgeReader, EdgeTransaction } from '../../app/edge/store.ts'
import { type Sql, chunks } from './sql.ts'

export function learningReader({ db }: Sql): EdgeReader['learning'] {
  /** Incarnations that can hold rights, and have not been heard of since. */
  const unheard = (since: number) =>
    db
      .selectFrom('device_accounts')
      .innerJoin('incarnations', (join) =>
        join
          .onRef('incarnations.device_id', '=', 'device_accounts.device_id')
          .onRef('incarnations.number', '=', 'device_accounts.incarnation'),
      )
      .where('incarnations.status', '<>', 'CLOSED')
      .where('incarnations.settled_at', 'is', null)
      .where((where) =>
        where.not(
          where.exists(
            where
              .selectFrom('segments')
              .select('segments.seq')
              .whereRef('segments.device_id', '=', 'incarnations.device_id')
              .whereRef('segments.incarnation', '=', 'incarnations.number')
              .where('segments.received_at', '>=', BigInt(since)),
          ),
        ),
      )
  return {
    async since(instanceId) {
      const row = await db
        .selectFrom('learning')
        .select('since')
        .where('instance_id', '=', instanceId)
        .executeTakeFirst()
      return row === undefined ? undefined : Number(row.since)
    },
    async all() {
      const rows = await db.selectFrom('learning').selectAll().orderBy('instance_id').execute()
      return rows.map(({ instance_id, since }) => ({ instanceId: instance_id, since: Number(since) }))
    },
    async blocked(accounts, since, except) {
      const found = new Set<string>()
      for (const some of chunks([...accounts])) {
        const rows = await unheard(since)
          .select('device_accounts.account')
          .distinct()
          .where('device_accounts.account', 'in', some)
          .where(
            expression<boolean>`not (device_accounts.device_id = ${except.deviceId} and device_accounts.incarnation = ${BigInt(except.incarnation)})`,
          )
          .execute()
        for (const { account } of rows) found.add(account)
      }
      return found
    },
    async waitingFor(instanceId, since, limit) {
      const rows = await unheard(since)
        .innerJoin('accounts', 'accounts.id', 'device_accounts.account')
        .where('accounts.instance_id', '=', instanceId)
        .select(['incarnations.device_id', 'incarnations.number', 'incarnations.status'])
        .distinct()
        .orderBy('incarnations.device_id')
        .orderBy('incarnations.number')
        .limit(limit)
        .execute()
      return rows.map(({ device_id, number, status }) => ({
        deviceId: device_id,
        incarnation: Number(number),
        status: status as Incarnation['status'],
      }))
    },
  }
}

export function learningTransaction(sql: Sql): EdgeTransaction['learning'] {
  return {
    ...learningReader(sql),
    async begin(instanceId, since) {
      await sql.db
        .insertInto('learning')
        .values({ instance_id: instanceId, since: BigInt(since) })
        .onConflict((conflict) =>
          // A backup may have been made while the twin was learning: who was heard of before it has to be heard of again.
          conflict.column('instance_id').doUpdateSet({
            since: later('learning', 'since'),
          }),
        )
        .execute()
    },
    async restored(at) {
      await sql.db
        .insertInto('last_restore')
        .values({ slot: 1n, at: BigInt(at) })
        .onConflict((conflict) =>
          conflict.column('slot').doUpdateSet({
            at: later('last_restore', 'at'),
          }),
        )
        .execute()
    },
    async end(instanceId) {
      await sql.db.deleteFrom('learning').where('instance_id', '=', instanceId).execute()
    },
  }
}

/** Of the instant that is there and the one that would replace it. */
function later(table: 'learning' | 'last_restore', column: 'since' | 'at') {
  const there = expression.ref(`${table}.${column}`)
  const other = expression.ref(`excluded.${column}`)
  return expression<bigint>`CASE WHEN ${other} > ${there} THEN ${other} ELSE ${there} END`
}
