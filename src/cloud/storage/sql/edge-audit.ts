/** Append-only, but for traffic, which is deleted after a while. */
import type { ExpressionBuilder } from 'kysely'
import { type AuditFilter, type AuditRecord, isTraffic } from '../audit-records.ts'
import { type Sql, toFlag } from './sql.ts'
import type { Row, Tables } from './tables.ts'

/** Rows that one step compares with what no index has: SQLite takes some milliseconds, in which nothing else runs. */
const ROWS_COMPARED = 20_000n

/** Newest first. */
export interface AuditStep {
  readonly records: readonly AuditRecord[]
  /** To continue before; null: there are no others. There can be none before it either. */
  readonly next: bigint | null
}

export function auditReader({ db }: Sql) {
  /** The oldest row of a step; 0: all. */
  const endOf = async ({ by, action, since, until, before, ...object }: AuditFilter): Promise<bigint> => {
    const isOfBoth = object.deviceId !== undefined && object.instanceId !== undefined
    if (!isOfBoth && [by, action, since, until].every((each) => each === undefined)) return 0n
    let query = db.selectFrom('audit').select('seq')
    if (before !== undefined) query = query.where('seq', '<', before)
    const newest = await query.orderBy('seq', 'desc').limit(1).executeTakeFirst()
    return newest === undefined || newest.seq <= ROWS_COMPARED ? 0n : newest.seq - ROWS_COMPARED
  }
  const fits =
    ({ deviceId, by, action, since, until }: AuditFilter, traffic: bigint) =>
    (where: ExpressionBuilder<Tables, 'audit'>) => {
      const all = [where('is_traffic', '=', traffic)]
      if (deviceId !== undefined) all.push(where('device_id', '=', deviceId))
      if (by !== undefined) all.push(where.or([where('key_id', '=', by), where('key_name', '=', by)]))
      if (action !== undefined) all.push(where('action', '=', action))
      if (since !== undefined) all.push(where('at', '>=', BigInt(since)))
      if (until !== undefined) all.push(where('at', '<', BigInt(until)))
      return where.and(all)
    }
  /** One kind of row: an index has them in order. */
  const rowsOf = (filter: AuditFilter, end: bigint, traffic: bigint, limit: number) => {
    let query = db.selectFrom('audit').selectAll().where(fits(filter, traffic)).where('seq', '>=', end)
    if (filter.instanceId !== undefined) query = query.where('instance_id', '=', filter.instanceId)
    if (filter.before !== undefined) query = query.where('seq', '<', filter.before)
    return query.orderBy('seq', 'desc').limit(limit).execute()
  }
  /** Of rows about several instances: the links of each instance are in order. */
  const linkedRows = (filter: AuditFilter, end: bigint, limit: number) => {
    let query = db
      .selectFrom('audit_instances')
      .innerJoin('audit', 'audit.seq', 'audit_instances.seq')
      .selectAll('audit')
      .where('audit_instances.instance_id', '=', filter.instanceId ?? '')
      .where('audit_instances.seq', '>=', end)
      .where(fits(filter, 0n))
    if (filter.before !== undefined) query = query.where('audit_instances.seq', '<', filter.before)
    return query.orderBy('audit_instances.seq', 'desc').limit(limit).execute()
  }
  return {
    /** In a bounded step. */
    async list(filter: AuditFilter, limit: number): Promise<AuditStep> {
      const end = await endOf(filter)
      const rows = await rowsOf(filter, end, 0n, limit + 1)
      if (filter.instanceId !== undefined) rows.push(...(await linkedRows(filter, end, limit + 1)))
      if (filter.traffic === true) rows.push(...(await rowsOf(filter, end, 1n, limit + 1)))
      rows.sort((a, b) => (a.seq < b.seq ? 1 : -1))
      const shown = rows.slice(0, limit)
      const last = rows.length > limit ? shown.at(-1)?.seq : end === 0n ? undefined : end
      return { records: shown.map(recordOf), next: last ?? null }
    },
  }
}

export function auditTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...auditReader(sql),
    /** @param instanceIds of a record without `instanceId` */
    async append(record: AuditRecord, instanceIds: readonly string[]): Promise<void> {
      const { at, by, action, instanceId, lineItemId, deviceId, sessionId, detail } = record
      const { seq } = await db
        .insertInto('audit')
        .values({
          at: BigInt(at),
          by_kind: by.kind,
          key_id: by.keyId,
          key_name: by.name,
          issuer: by.issuer,
          action,
          instance_id: instanceId,
          line_item_id: lineItemId,
          device_id: deviceId,
          session_id: sessionId,
          detail,
          is_traffic: toFlag(isTraffic(record)),
        })
        .returning('seq')
        .executeTakeFirstOrThrow()
      if (instanceIds.length === 0) return
      await db
        .insertInto('audit_instances')
        .values(instanceIds.map((id) => ({ instance_id: id, seq })))
        .execute()
    },
    /**
     * Deletes traffic that is older than an instant, or behind the newest `most` rows of the audit.
     * @returns number of deleted rows, up to `limit`
     */
    async forgetTraffic(before: number, most: number, limit: number): Promise<number> {
      const newest = await db.selectFrom('audit').select('seq').orderBy('seq', 'desc').limit(1).executeTakeFirst()
      const oldest = await db
        .selectFrom('audit')
        .select(['seq', 'at'])
        .where('is_traffic', '=', 1n)
        .orderBy('seq')
        .limit(limit)
        .execute()
      const last = (newest?.seq ?? 0n) - BigInt(most)
      const over = oldest.filter(({ seq, at }) => at < BigInt(before) || seq <= last).map(({ seq }) => seq)
      if (over.length > 0) await db.deleteFrom('audit').where('seq', 'in', over).execute()
      return over.length
    },
  }
}

function recordOf(row: Row<'audit'>): AuditRecord {
  return {
    at: Number(row.at),
    by: { kind: row.by_kind as AuditRecord['by']['kind'], keyId: row.key_id, name: row.key_name, issuer: row.issuer },
    action: row.action as AuditRecord['action'],
    instanceId: row.instance_id,
    lineItemId: row.line_item_id,
    deviceId: row.device_id,
    sessionId: row.session_id,
    detail: row.detail,
  }
}
