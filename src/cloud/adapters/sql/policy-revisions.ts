/** Policy revisions in SQL: the row of an instance is also the lock of its rules. */
import type { PolicyRevision } from '../../app/records.ts'
import type { PolicyRevisionReader, Transaction } from '../../app/store.ts'
import { type Sql, toBigint, toNumber } from './sql.ts'
import type { Row } from './tables.ts'

export function policyRevisionReader({ db }: Sql): PolicyRevisionReader {
  return {
    async get(instanceId) {
      const row = await db
        .selectFrom('policy_revisions')
        .selectAll()
        .where('instance_id', '=', instanceId)
        .executeTakeFirst()
      return row === undefined ? undefined : revisionOf(row)
    },
    async calendarDue(now, limit) {
      const rows = await db
        .selectFrom('policy_revisions')
        .select('instance_id')
        .where('calendar_due', '<=', BigInt(now))
        .orderBy('calendar_due')
        .limit(limit)
        .execute()
      return rows.map(({ instance_id }) => instance_id)
    },
  }
}

export function policyRevisionTransaction(sql: Sql): Transaction['policyRevisions'] {
  const { db, lockRows } = sql
  const take = async (instanceId: string, strength: 'SHARE' | 'UPDATE'): Promise<PolicyRevision | undefined> => {
    const query = db.selectFrom('policy_revisions').selectAll().where('instance_id', '=', instanceId)
    const locked = !lockRows ? query : strength === 'SHARE' ? query.forShare() : query.forUpdate()
    const row = await locked.executeTakeFirst()
    return row === undefined ? undefined : revisionOf(row)
  }
  return {
    ...policyRevisionReader(sql),
    hold: (instanceId) => take(instanceId, 'SHARE'),
    lock: (instanceId) => take(instanceId, 'UPDATE'),
    async lockAll() {
      const query = db.selectFrom('policy_revisions').selectAll().orderBy('instance_id')
      return (await (lockRows ? query.forUpdate() : query).execute()).map(revisionOf)
    },
    async insert(revision) {
      await db
        .insertInto('policy_revisions')
        .values({ instance_id: revision.instanceId, ...columnsOf(revision) })
        .execute()
    },
    async save(revision) {
      await db
        .updateTable('policy_revisions')
        .set(columnsOf(revision))
        .where('instance_id', '=', revision.instanceId)
        .execute()
    },
  }
}

function columnsOf(revision: PolicyRevision) {
  return {
    revision: BigInt(revision.revision),
    raised_at: BigInt(revision.raisedAt),
    calendar_due: toBigint(revision.calendarDue),
  }
}

function revisionOf(row: Row<'policy_revisions'>): PolicyRevision {
  return {
    instanceId: row.instance_id,
    revision: Number(row.revision),
    raisedAt: Number(row.raised_at),
    calendarDue: toNumber(row.calendar_due),
  }
}
