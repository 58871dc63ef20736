/** Append-only. */
import type { AuditFilter, AuditRecord } from '../audit-records.ts'
import type { Sql } from './sql.ts'
import type { Row } from './tables.ts'

export function auditReader({ db }: Sql) {
  return {
    /** Newest first. */
    async list(
      { deviceId, instanceId, before }: AuditFilter,
      limit: number,
    ): Promise<{ readonly records: readonly AuditRecord[]; readonly next: bigint | null }> {
      let query = db.selectFrom('audit').selectAll()
      if (deviceId !== null) query = query.where('device_id', '=', deviceId)
      if (instanceId !== null) query = query.where('instance_id', '=', instanceId)
      if (before !== null) query = query.where('seq', '<', before)
      const rows = await query
        .orderBy('seq', 'desc')
        .limit(limit + 1)
        .execute()
      const shown = rows.slice(0, limit)
      return { records: shown.map(recordOf), next: rows.length > limit ? (shown.at(-1)?.seq ?? null) : null }
    },
  }
}

export function auditTransaction(sql: Sql) {
  return {
    ...auditReader(sql),
    async append({ at, by, action, instanceId, lineItemId, deviceId, sessionId, detail }: AuditRecord): Promise<void> {
      await sql.db
        .insertInto('audit')
        .values({
          ...{ at: BigInt(at), by_kind: by.kind, key_id: by.keyId, key_name: by.name, action },
          ...{ instance_id: instanceId, line_item_id: lineItemId, device_id: deviceId, session_id: sessionId, detail },
        })
        .execute()
    },
  }
}

function recordOf(row: Row<'audit'>): AuditRecord {
  return {
    at: Number(row.at),
    by: { kind: row.by_kind as AuditRecord['by']['kind'], keyId: row.key_id, name: row.key_name },
    action: row.action as AuditRecord['action'],
    instanceId: row.instance_id,
    lineItemId: row.line_item_id,
    deviceId: row.device_id,
    sessionId: row.session_id,
    detail: row.detail,
  }
}
