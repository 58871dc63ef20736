/** Append-only, but for traffic, which is deleted after a while. */
import { type AuditFilter, type AuditRecord, isTraffic } from '../audit-records.ts'
import type { Sql } from './sql.ts'
import type { Row } from './tables.ts'

export function auditReader({ db }: Sql) {
  /** One kind of row: an index has them in order. */
  const rowsOf = async (filter: AuditFilter, traffic: bigint, limit: number, linked?: string) => {
    const { deviceId, instanceId, by, action, since, until, before } = filter
    let query = db.selectFrom('audit').selectAll().where('is_traffic', '=', traffic)
    if (linked !== undefined) {
      const links = db.selectFrom('audit_instances').select('seq').where('instance_id', '=', linked)
      query = query.where('seq', 'in', links)
    } else if (instanceId !== undefined) query = query.where('instance_id', '=', instanceId)
    if (deviceId !== undefined) query = query.where('device_id', '=', deviceId)
    if (by !== undefined)
      query = query.where((where) => where.or([where('key_id', '=', by), where('key_name', '=', by)]))
    if (action !== undefined) query = query.where('action', '=', action)
    if (since !== undefined) query = query.where('at', '>=', BigInt(since))
    if (until !== undefined) query = query.where('at', '<', BigInt(until))
    if (before !== undefined) query = query.where('seq', '<', before)
    return query.orderBy('seq', 'desc').limit(limit).execute()
  }
  return {
    /** Newest first. */
    async list(
      filter: AuditFilter,
      limit: number,
    ): Promise<{ readonly records: readonly AuditRecord[]; readonly next: bigint | null }> {
      const rows = await rowsOf(filter, 0n, limit + 1)
      if (filter.instanceId !== undefined) rows.push(...(await rowsOf(filter, 0n, limit + 1, filter.instanceId)))
      if (filter.traffic === true) rows.push(...(await rowsOf(filter, 1n, limit + 1)))
      rows.sort((a, b) => (a.seq < b.seq ? 1 : -1))
      const shown = rows.slice(0, limit)
      return { records: shown.map(recordOf), next: rows.length > limit ? (shown.at(-1)?.seq ?? null) : null }
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
          ...{ at: BigInt(at), by_kind: by.kind, key_id: by.keyId, key_name: by.name, issuer: by.issuer, action },
          ...{ instance_id: instanceId, line_item_id: lineItemId, device_id: deviceId, session_id: sessionId, detail },
          is_traffic: isTraffic(record) ? 1n : 0n,
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
