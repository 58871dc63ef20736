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
  const archives = archivesAfter(database, seq * USAGE_ROW_POSITIONS, places)
  const archived = archives.flatMap(({ rows }) => rows).filter((row) => row.seq > seq)
  // Archived rows are deleted a little later.
  const end = (archives.at(-1)?.upTo ?? 0n) / USAGE_ROW_POSITIONS
  const after = end > seq ? end : seq
  const rows = query(database, 'SELECT * FROM usage WHERE seq > ? ORDER BY seq').all(after) as StoredRow[]
  return [...archived, ...rows.flatMap(usageOf)]
}

interface Archived {
  readonly upTo: bigint
  readonly rows: readonly UsageRow[]
}

/** Those that have later positions. */
export function archivesAfter(
  database: Sqlite.Database,
  position: bigint,
  places: ReadonlyMap<string, ArchivedFiles>,
): readonly Archived[] {
  const sql = 'SELECT * FROM usage_archives WHERE up_to > ? ORDER BY up_to'
  const archives = query(database, sql).all(position) as Row<'usage_archives'>[]
  return archives.map((archive) => ({ upTo: archive.up_to, rows: archivedRows(archive, places) }))
}

/** The position up to which all records are archived. */
export function archivedEnd(database: Sqlite.Database): bigint {
  return (query(database, 'SELECT max(up_to) FROM usage_archives').pluck().get() as bigint | null) ?? 0n
}

/** The highest position of a record. */
export function lastPosition(database: Sqlite.Database): bigint {
  const seq = query(database, 'SELECT max(seq) FROM usage').pluck().get() as bigint | null
  const [last, archived] = [(seq ?? 0n) * USAGE_ROW_POSITIONS, archivedEnd(database)]
  return last > archived ? last : archived
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
  if (readArchiveLine(line) === undefined) throw new Violation('I3', `an archive contains ${line}`)
  return rowOfLine(line)
}

interface Line {
  readonly cursor: string
  readonly usageTime: number
  readonly correlationId: string
  readonly instanceId: string
  readonly activationId: string | null
  readonly item: string
  readonly tokens: number
  readonly used: number | null
  readonly source: string
  readonly operation: string
  readonly status: string
  readonly sessionId: string | null
  readonly deviceId: string | null
  readonly epoch: number | null
}

/** Of an archive, an export or a report. */
export function rowOfLine(text: string): UsageRow {
  const line = JSON.parse(text) as Line
  const position = BigInt(line.cursor)
  return {
    seq: (position + USAGE_ROW_POSITIONS - 1n) / USAGE_ROW_POSITIONS,
    position,
    usage_time: BigInt(line.usageTime),
    correlation_id: line.correlationId,
    instance_id: line.instanceId,
    activation_id: line.activationId,
    item: line.item,
    tokens: microOf(line.tokens),
    used: line.used === null ? null : microOf(line.used),
    source: line.source,
    operation: line.operation,
    status: line.status,
    session_id: line.sessionId,
    device_id: line.deviceId,
    epoch: line.epoch === null ? null : BigInt(line.epoch),
  }
}

function usageOf(row: StoredRow): readonly CloudUsageRow[] {
  return recordsOf(row).map((record, index, { length }) => ({
    seq: row.seq,
    position: row.seq * USAGE_ROW_POSITIONS - BigInt(length - 1 - index),
    instance_id: record.instanceId,
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
