/**
 * The usage records of the cloud as it exports them: those that it makes of delivered entries, and those that only its
 * archives still contain.
 */
import { zstdDecompressSync } from 'node:zlib'
import type Sqlite from 'better-sqlite3'
import { formatDecimal } from '../../src/core/pricing/amount.ts'
import { USAGE_ROW_POSITIONS } from '../../src/cloud/storage/records.ts'
import { type UsageRow as StoredRow, recordsOf } from '../../src/cloud/storage/sql/packed-usage.ts'
import type { Row } from '../../src/cloud/storage/sql/tables.ts'
import { readArchiveLine } from '../../src/cloud/usage/usage-text.ts'
import { query } from './query.ts'
import { type CloudUsageRow, type UsageRow, microOf } from './records.ts'
import type { ArchivedFiles } from './shared-state.ts'
import { Violation } from './violation.ts'

/** Of the cloud itself. @param seq of the last row read */
export function cloudUsageAfter(database: Sqlite.Database, seq: bigint): readonly CloudUsageRow[] {
  const rows = query(database, 'SELECT * FROM usage WHERE seq > ? AND device_id IS NULL ORDER BY seq').all(seq)
  return (rows as StoredRow[]).flatMap(usageOf)
}

/** @param seq of the last row read */
export function usageAfter(
  database: Sqlite.Database,
  seq: bigint,
  places: ReadonlyMap<string, ArchivedFiles>,
): readonly UsageRow[] {
  const archives = query(database, 'SELECT * FROM usage_archives WHERE up_to > ? ORDER BY up_to').all(
    seq * USAGE_ROW_POSITIONS,
  ) as Row<'usage_archives'>[]
  const archived = archives.flatMap((archive) => archivedRows(archive, places)).filter((row) => row.seq > seq)
  // Archived rows are deleted a little later.
  const end = (archives.at(-1)?.up_to ?? 0n) / USAGE_ROW_POSITIONS
  const after = end > seq ? end : seq
  const rows = query(database, 'SELECT * FROM usage WHERE seq > ? ORDER BY seq').all(after) as StoredRow[]
  return [...archived, ...rows.flatMap(usageOf)]
}

function archivedRows(
  { place, manifest, records }: Row<'usage_archives'>,
  places: ReadonlyMap<string, ArchivedFiles>,
): readonly UsageRow[] {
  const files = places.get(place)
  const { files: listed } = JSON.parse(files?.get(manifest)?.toString() ?? '{"files":[]}') as {
    files: { name: string }[]
  }
  const lines = listed.flatMap(({ name }) =>
    zstdDecompressSync(files?.get(name) ?? Buffer.alloc(0))
      .toString()
      .split('\n')
      .slice(0, -1),
  )
  if (BigInt(lines.length) !== records) {
    throw new Violation('I3', `${manifest} has ${lines.length} records of ${records} that were archived`)
  }
  return lines.map(archivedRow)
}

function archivedRow(line: string): UsageRow {
  const record = readArchiveLine(line)
  if (record === undefined) throw new Violation('I3', `an archive contains ${line}`)
  const { correlationId, item, source, operation, status, deviceId, epoch, used } = JSON.parse(line) as Record<
    string,
    string
  > & {
    readonly deviceId: string | null
    readonly epoch: number | null
    readonly used: number | null
  }
  return {
    seq: (record.position + USAGE_ROW_POSITIONS - 1n) / USAGE_ROW_POSITIONS,
    correlation_id: correlationId ?? '',
    activation_id: record.activationId,
    item: item ?? '',
    tokens: record.tokens,
    used: used === null ? null : microOf(used),
    source: source ?? '',
    operation: operation ?? '',
    status: status ?? '',
    device_id: deviceId,
    epoch: epoch === null ? null : BigInt(epoch),
  }
}

function usageOf(row: StoredRow): readonly CloudUsageRow[] {
  return recordsOf(row).map((record) => ({
    seq: row.seq,
    correlation_id: record.correlationId,
    activation_id: record.activationId,
    item: record.item,
    tokens: record.tokens,
    used: record.used,
    source: record.source.kind,
    operation: record.operation,
    status: record.status,
    device_id: record.source.kind === 'device' ? record.source.deviceId : null,
    epoch: record.source.kind === 'device' ? BigInt(record.source.epoch) : null,
    usage_time: BigInt(record.usageTime),
    requester_type: record.requesterType,
    requester_value: record.requesterValue,
    version: record.version,
    count: formatDecimal(record.count),
    rate: record.rate === undefined ? null : formatDecimal(record.rate),
    session_id: record.source.kind === 'one-off' ? null : (record.source.sessionId ?? null),
    meta_data: record.metaData,
  }))
}
