/**
 * Rows of the usage. The body of a row has the cloud's own records of one transaction for one instance, as JSON, or the ledger
 * entries of a segment of a device; all but short ones are compressed.
 */
import { decimal, formatDecimal } from '../../../core/pricing/amount.ts'
import { SEGMENT_ENTRIES_MAX } from '../../../protocol/edge/sync.ts'
import { isRefusal } from '../../../core/rules/refusal-reasons.ts'
import { compress, decompress } from '../../../protocol/zstd.ts'
import type { Delivery } from '../device-records.ts'
import { USAGE_ROW_POSITIONS, type UsageRecord } from '../records.ts'
import { type DeliveryRow, packDelivery, usageOfDelivery } from './packed-delivery.ts'
import { requireStorable, toFlag } from './sql.ts'
import type { Row } from './tables.ts'

export type UsageRow = Row<'usage'>

/** Most records of a row of the cloud: so many are unpacked at once. */
const ROW_RECORDS_MAX = 500

/** Exact numbers are texts. */
interface Packed extends Omit<UsageRecord, 'quantity' | 'used' | 'tokens' | 'count' | 'rate' | 'source'> {
  readonly quantity: string | null
  readonly used: string | null
  readonly tokens: string
  readonly count: string
  readonly rate: string | null
  /** Null: one-off. */
  readonly source: UsageRecord['source'] | null
}

/** A row for each instance and device, in the sequence of their first records. */
export function rowsOfRecords(records: readonly UsageRecord[]): readonly Omit<UsageRow, 'seq'>[] {
  const rows: Omit<UsageRow, 'seq'>[] = []
  for (const own of Map.groupBy(records, ({ instanceId, source }) => `${instanceId} ${deviceOf(source)}`).values()) {
    for (let at = 0; at < own.length; at += ROW_RECORDS_MAX)
      rows.push(rowOfRecords(own.slice(at, at + ROW_RECORDS_MAX)))
  }
  return rows
}

function deviceOf(source: UsageRecord['source']): string | null {
  return source.kind === 'device' ? source.deviceId : null
}

function rowOfRecords(records: readonly UsageRecord[]): Omit<UsageRow, 'seq'> {
  const [first] = records
  if (first === undefined) throw new Error('invariant: a row has a record')
  let [from, to, writeTime] = [first.usageTime, first.usageTime, first.writeTime]
  for (const each of records) {
    from = Math.min(from, each.usageTime)
    to = Math.max(to, each.usageTime)
    writeTime = Math.max(writeTime, each.writeTime)
  }
  return {
    instance_id: first.instanceId,
    records: BigInt(records.length),
    refused: BigInt(records.filter(({ status }) => isRefusal(status)).length),
    from_time: BigInt(from),
    to_time: BigInt(to),
    write_time: BigInt(writeTime),
    device_id: deviceOf(first.source),
    ...NO_SEGMENT,
    body: bodyOf(JSON.stringify(differences(records.map(packed)))),
  }
}

/** To compress a shorter text takes longer than to write it. */
const COMPRESSED_FROM = 2_048

function bodyOf(text: string): Buffer {
  return text.length < COMPRESSED_FROM ? Buffer.from(text) : compress(text)
}

function textOf(body: Buffer): string {
  const isText = body[0] === '['.charCodeAt(0)
  return (isText ? body : decompress(body)).toString('utf8')
}

const NO_SEGMENT = { epoch: null, segment: null, branch: null, first_entry: null, last_entry: null }

function packed(record: UsageRecord): Packed {
  const { quantity, used, tokens, count, rate, source } = record
  requireStorable([quantity, used, tokens])
  return {
    correlationId: record.correlationId,
    usageTime: record.usageTime,
    writeTime: record.writeTime,
    requesterType: record.requesterType,
    requesterValue: record.requesterValue,
    accountId: record.accountId,
    instanceId: record.instanceId,
    activationId: record.activationId,
    quantity: quantity === null ? null : String(quantity),
    used: used === null ? null : String(used),
    item: record.item,
    version: record.version,
    count: formatDecimal(count),
    rate: rate === undefined ? null : formatDecimal(rate),
    operation: record.operation,
    status: record.status,
    tokens: String(tokens),
    source: source.kind === 'one-off' ? null : source,
    metaData: record.metaData,
  }
}

function unpacked({ quantity, used, tokens, count, rate, source, ...same }: Packed): UsageRecord {
  return {
    ...same,
    quantity: quantity === null ? null : BigInt(quantity),
    used: used === null ? null : BigInt(used),
    tokens: BigInt(tokens),
    count: decimal(count),
    ...(rate === null ? {} : { rate: decimal(rate) }),
    source: source ?? { kind: 'one-off' },
  }
}

/** The first whole, of each other what differs from it: they are mostly alike. */
function differences([first, ...others]: readonly Packed[]): readonly Partial<Packed>[] {
  if (first === undefined) return []
  const differing = (one: Packed): Partial<Packed> => {
    const own: Partial<Record<keyof Packed, unknown>> = {}
    for (const key in one) {
      const name = key as keyof Packed
      if (one[name] !== first[name]) own[name] = one[name]
    }
    return own as Partial<Packed>
  }
  return [first, ...others.map(differing)]
}

export function rowOfDelivery(delivery: Delivery): Omit<UsageRow, 'seq'> {
  const { sums, entries } = delivery
  const [first, last] = [entries[0]?.n ?? 0, entries.at(-1)?.n ?? 0]
  const isBounded = BigInt(sums.records) <= USAGE_ROW_POSITIONS && last - first < SEGMENT_ENTRIES_MAX
  if (!isBounded) throw new Error('invariant: a segment is bounded')
  return {
    instance_id: sums.instanceId,
    records: BigInt(sums.records),
    refused: BigInt(sums.lines.reduce((sum, each) => (isRefusal(each.status) ? sum + each.records : sum), 0)),
    from_time: BigInt(sums.from),
    to_time: BigInt(sums.to),
    write_time: BigInt(delivery.inputs.writeTime),
    device_id: delivery.deviceId,
    epoch: BigInt(delivery.epoch),
    segment: BigInt(delivery.segment),
    branch: toFlag(delivery.branch),
    first_entry: BigInt(first),
    last_entry: BigInt(last),
    body: packDelivery(delivery),
  }
}

/** In the order of their positions. */
export function recordsOf(row: UsageRow): readonly UsageRecord[] {
  if (isDelivery(row)) return usageOfDelivery(row)
  const [first, ...others] = JSON.parse(textOf(row.body)) as readonly [Packed, ...Partial<Packed>[]]
  return [first, ...others.map((own) => ({ ...first, ...own }))].map(unpacked)
}

export function isDelivery(row: Pick<UsageRow, 'epoch'>): row is DeliveryRow {
  return row.epoch !== null
}
