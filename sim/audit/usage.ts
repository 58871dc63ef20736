/** The usage records of the cloud's database, as it exports them: also those that it makes of delivered entries. */
import type Sqlite from 'better-sqlite3'
import { usageOf } from '../../src/cloud/storage/sql/packed-delivery.ts'
import type { Row } from '../../src/cloud/storage/sql/tables.ts'
import { query } from './query.ts'
import type { UsageRow } from './records.ts'

/** @param seq of the last row read */
export function usageAfter(database: Sqlite.Database, seq: bigint): readonly UsageRow[] {
  const rows = query(database, 'SELECT * FROM usage WHERE seq > ? ORDER BY seq').all(seq) as UsageRow[]
  const deliveries = query(database, 'SELECT * FROM deliveries WHERE seq > ? ORDER BY seq').all(seq)
  return [...rows, ...(deliveries as Row<'deliveries'>[]).flatMap(recordsOf)]
}

function recordsOf(delivery: Row<'deliveries'>): readonly UsageRow[] {
  return usageOf(delivery).map(({ correlationId, activationId, tokens, source, operation, status }): UsageRow => ({
    seq: delivery.seq,
    correlation_id: correlationId,
    activation_id: activationId,
    tokens,
    source: source.kind,
    operation,
    status,
    device_id: delivery.device_id,
    epoch: delivery.epoch,
  }))
}
