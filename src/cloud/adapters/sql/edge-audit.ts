/** The audit in SQL: rows are added and read, never changed. */
import type { AuditRecord } from '../../app/edge/records.ts'
import type { EdgeReader, EdgeTransaction } from '../../app/edge/store.ts'
import type { Sql } from './sql.ts'

export function auditReader({ db }: Sql): EdgeReader['audit'] {
  return {
    async list(deviceId, before, limit) {
      let query = db.selectFrom('audit').selectAll()
      if (deviceId !== null) query = query.where('device_id', '=', deviceId)
      if (before !== null) query = query.where('seq', '<', before)
      const rows = await query
        .orderBy('seq', 'desc')
        .limit(limit + 1)
        .execute()
      const shown = rows.slice(0, limit)
      return {
        records: shown.map((row) => ({
          at: Number(row.at),
          by: row.key_id,
          action: row.action as AuditRecord['action'],
          deviceId: row.device_id,
          sessionId: row.session_id,
        })),
        next: rows.length > limit ? (shown.at(-1)?.seq ?? null) : null,
      }
    },
  }
}

export function auditTransaction(sql: Sql): EdgeTransaction['audit'] {
  return {
    ...auditReader(sql),
    async append({ at, by, action, deviceId, sessionId }) {
      const row = { at: BigInt(at), key_id: by, action, device_id: deviceId, session_id: sessionId }
      await sql.db.insertInto('audit').values(row).execute()
    },
  }
}
