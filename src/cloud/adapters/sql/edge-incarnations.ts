/** Incarnations in SQL. The table itself refuses a second active one of a device. */
import { sql as expression } from 'kysely'
import type { Incarnation } from '../../app/edge/records.ts'
import type { EdgeReader, EdgeTransaction } from '../../app/edge/store.ts'
import { type Sql, toBigint, toFlag, toNumber } from './sql.ts'
import type { Row } from './tables.ts'

export function incarnationReader({ db }: Sql): EdgeReader['incarnations'] {
  const unsettledIncarnations = () =>
    db.selectFrom('incarnations').where('settled_at', 'is', null).where('status', '<>', 'CLOSED')
  /** Quiet since before the instant, with something that can be settled. */
  const silent = (before: number) =>
    unsettledIncarnations()
      .select(['device_id', 'number', 'quiet_since'])
      .where('quiet_since', '<', BigInt(before))
      .where((or) =>
        or.or([
          or('status', '=', 'FENCED'),
          or.exists(
            or
              .selectFrom('device_accounts')
              .select('device_accounts.account')
              .whereRef('device_accounts.device_id', '=', 'incarnations.device_id')
              .whereRef('device_accounts.incarnation', '=', 'incarnations.number')
              .where(
                expression<boolean>`device_accounts.granted - device_accounts.returned > device_accounts.used - device_accounts.refunded + device_accounts.branch_used`,
              ),
          ),
        ]),
      )
      // Whom a restored twin remembers as silent it may have heard, and granted to, after the backup.
      .where((where) =>
        where.not(
          where.exists(where.selectFrom('last_restore').select('last_restore.slot').where('at', '>=', BigInt(before))),
        ),
      )
  return {
    async get(deviceId, number) {
      const row = await db
        .selectFrom('incarnations')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where('number', '=', BigInt(number))
        .executeTakeFirst()
      return row === undefined ? undefined : incarnationOf(row)
    },
    async byNonce(deviceId, nonce) {
      const row = await db
        .selectFrom('incarnations')
        .selectAll()
        .where('device_id', '=', deviceId)
        .where('nonce', '=', nonce)
        .executeTakeFirst()
      return row === undefined ? undefined : incarnationOf(row)
    },
    async attachedSince(deviceId, since) {
      const rows = await db
        .selectFrom('incarnations')
        .select('created_at')
        .where('device_id', '=', deviceId)
        .where('created_at', '>', BigInt(since))
        .where('nonce', 'is not', null)
        .orderBy('created_at')
        .execute()
      return rows.map(({ created_at }) => Number(created_at))
    },
    async nextSilent(before) {
      const row = await silent(before).orderBy('quiet_since').limit(1).executeTakeFirst()
      return row === undefined
        ? undefined
        : { deviceId: row.device_id, number: Number(row.number), quietSince: Number(row.quiet_since) }
    },
    async settlementLoad(before, settledSince) {
      const count = expression<bigint>`count(DISTINCT device_id)`.as('count')
      const due = await db.selectFrom(silent(before).as('due')).select(count).executeTakeFirstOrThrow()
      const unsettled = await unsettledIncarnations().select(count).executeTakeFirstOrThrow()
      const settled = await db
        .selectFrom('incarnations')
        .select(count)
        .where('settled_at', 'is not', null)
        .where('settled_at', '>', BigInt(settledSince))
        .executeTakeFirstOrThrow()
      return { due: Number(due.count), unsettled: Number(unsettled.count), settled: Number(settled.count) }
    },
  }
}

export function incarnationTransaction(sql: Sql): EdgeTransaction['incarnations'] {
  const { db } = sql
  return {
    ...incarnationReader(sql),
    async insert(incarnation) {
      await db.insertInto('incarnations').values(rowOf(incarnation)).execute()
    },
    async save(incarnation) {
      await db
        .updateTable('incarnations')
        .set(rowOf(incarnation))
        .where('device_id', '=', incarnation.deviceId)
        .where('number', '=', BigInt(incarnation.number))
        .execute()
    },
  }
}

function rowOf(incarnation: Incarnation): Row<'incarnations'> {
  return {
    device_id: incarnation.deviceId,
    number: BigInt(incarnation.number),
    status: incarnation.status,
    created_at: BigInt(incarnation.createdAt),
    fenced_at: toBigint(incarnation.fencedAt),
    fence_reason: incarnation.fenceReason,
    quiet_since: BigInt(incarnation.quietSince),
    settlement: incarnation.settlement,
    settled_at: toBigint(incarnation.settledAt),
    forked: toFlag(incarnation.forked),
    rejected: toFlag(incarnation.rejected),
    grants_forgotten: toFlag(incarnation.grantsForgotten),
    carried_on: toFlag(incarnation.carriedOn),
    last_seq: BigInt(incarnation.lastSeq),
    last_hash: incarnation.lastHash,
    last_entry: BigInt(incarnation.lastEntry),
    entry_head: incarnation.entryHead,
    term: BigInt(incarnation.term),
    nonce: incarnation.nonce,
    attach_answer: incarnation.attachAnswer,
  }
}

function incarnationOf(row: Row<'incarnations'>): Incarnation {
  return {
    deviceId: row.device_id,
    number: Number(row.number),
    status: row.status as Incarnation['status'],
    createdAt: Number(row.created_at),
    fencedAt: toNumber(row.fenced_at),
    fenceReason: row.fence_reason as Incarnation['fenceReason'],
    quietSince: Number(row.quiet_since),
    settlement: row.settlement as Incarnation['settlement'],
    settledAt: toNumber(row.settled_at),
    forked: row.forked === 1n,
    rejected: row.rejected === 1n,
    grantsForgotten: row.grants_forgotten === 1n,
    carriedOn: row.carried_on === 1n,
    lastSeq: Number(row.last_seq),
    lastHash: row.last_hash,
    lastEntry: Number(row.last_entry),
    entryHead: row.entry_head,
    term: Number(row.term),
    nonce: row.nonce,
    attachAnswer: row.attach_answer,
  }
}
