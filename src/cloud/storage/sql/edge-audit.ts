/** Append-only. */
import type { AuditRecord } from '../device-records.ts'
import type { Sql } from './sql.ts'
import type { Row } from './tables.ts'

export function auditReader({ db }: Sql) {
  return {
    /**
     * Newest first. @param deviceId null: all devices
     * @param before the previous response's `next`
     */
    async list(
      deviceId: string | null,
      before: bigint | null,
      limit: number,
    ): Promise<{ readonly records: readonly AuditRecord[]; readonly next: bigint | null }> {
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
          ...lineItemOf(row),
          detail: row.detail,
        })),
        next: rows.length > limit ? (shown.at(-1)?.seq ?? null) : null,
      }
    },
  }
}

export function auditTransaction(sql: Sql) {
  return {
    ...auditReader(sql),
    async append(record: Omit<AuditRecord, 'detail'> & { readonly detail?: string }): Promise<void> {
      const { at, by, action, deviceId, sessionId, lineItem, detail } = record
      await sql.db
        .insertInto('audit')
        .values({
          ...{ at: BigInt(at), key_id: by, action, device_id: deviceId, session_id: sessionId },
          instance_id: lineItem?.instanceId ?? null,
          line_item_id: lineItem?.lineItemId ?? null,
          tokens: lineItem?.tokens ?? null,
          detail: detail ?? null,
        })
        .execute()
    },
  }
}

function lineItemOf({ instance_id, line_item_id, tokens }: Row<'audit'>): Pick<AuditRecord, 'lineItem'> {
  if (instance_id === null || line_item_id === null || tokens === null) return {}
  return { lineItem: { instanceId: instance_id, lineItemId: line_item_id, tokens } }
}
