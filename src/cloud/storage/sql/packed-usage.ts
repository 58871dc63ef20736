/**
 * Rows of the usage. The body of a row has the cloud's own records of one transaction for one instance, as JSON, or the ledger
 * entries of a segment of a device; all but short ones are compressed.
 */
import { decimal, formatDecimal } from '../../../core/pricing/amount.ts'
import { SEGMENT_ENTRIES_MAX } from '../../../protocol/edge/sync.ts'
import { isRefusal } from '../../../core/rules/refusal-reasons.ts'
import { compress, decompress } from '../../../protocol/zstd.ts'
import type { Delivery } from '../device-records.ts'
import { USAGE_ROW_POSITIONS, type UsageOperation, type UsageRecord, type UsageSource } from '../records.ts'
import { type DeliveryRow, packDelivery, usageOfDelivery } from './packed-delivery.ts'
import { unlessDamaged } from './unless-damaged.ts'
import { requireStorable, toFlag } from './sql.ts'
import type { Row } from './tables.ts'

export type UsageRow = Row<'usage'>

/** Most records of a row of the cloud, and characters of their metadata, unless one has more: so much is unpacked at once. */
const ROW_RECORDS_MAX = 500
const ROW_CHARACTERS_MAX = 256 * 1024

/** Of a record. The row has its instance. Exact numbers are texts. */
type Values = readonly [
  correlationId: string,
  usageTime: number,
  writeTime: number,
  requesterType: string,
  requesterValue: string,
  accountId: string,
  activationId: string | null,
  quantity: string | null,
  used: string | null,
  item: string,
  version: string,
  count: string,
  rate: string | null,
  operation: UsageOperation,
  status: string,
  tokens: string,
  /** Null: one-off. */
  source: UsageSource | null,
  metaData: string | null,
]

/** Rows for each instance and device, in the sequence of their first records. */
export function rowsOfRecords(records: readonly UsageRecord[]): readonly Omit<UsageRow, 'seq'>[] {
  const alike = Map.groupBy(records, ({ instanceId, source }) => `${instanceId} ${deviceOf(source)}`)
  return [...alike.values()].flatMap((own) => [...partsOf(own)].map(rowOfRecords))
}

/** What fits into a row each. */
function* partsOf(records: readonly UsageRecord[]): Generator<readonly UsageRecord[]> {
  let [begin, characters] = [0, 0]
  for (const [at, { metaData }] of records.entries()) {
    const more = metaData?.length ?? 0
    const isFull = at - begin === ROW_RECORDS_MAX || characters + more > ROW_CHARACTERS_MAX
    if (isFull && at > begin) {
      yield records.slice(begin, at)
      ;[begin, characters] = [at, 0]
    }
    characters += more
  }
  yield records.slice(begin)
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
    body: bodyOf(JSON.stringify(differences(records.map(valuesOf)))),
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

function valuesOf(record: UsageRecord): Values {
  const { quantity, used, tokens, rate, source } = record
  requireStorable([quantity, used, tokens])
  return [
    record.correlationId,
    record.usageTime,
    record.writeTime,
    record.requesterType,
    record.requesterValue,
    record.accountId,
    record.activationId,
    quantity === null ? null : String(quantity),
    used === null ? null : String(used),
    record.item,
    record.version,
    formatDecimal(record.count),
    rate === undefined ? null : formatDecimal(rate),
    record.operation,
    record.status,
    String(tokens),
    source.kind === 'one-off' ? null : source,
    record.metaData,
  ]
}

function recordFrom(instanceId: string, values: Values): UsageRecord {
  const [
    correlationId,
    usageTime,
    writeTime,
    requesterType,
    requesterValue,
    accountId,
    activationId,
    quantity,
    used,
    item,
    version,
    count,
    rate,
    operation,
    status,
    tokens,
    source,
    metaData,
  ] = values
  return {
    correlationId,
    usageTime,
    writeTime,
    requesterType,
    requesterValue,
    accountId,
    instanceId,
    activationId,
    quantity: quantity === null ? null : BigInt(quantity),
    used: used === null ? null : BigInt(used),
    item,
    version,
    count: decimal(count),
    ...(rate === null ? {} : { rate: decimal(rate) }),
    operation,
    status,
    tokens: BigInt(tokens),
    source: source ?? { kind: 'one-off' },
    metaData,
  }
}

/** By index, what differs from the first. */
type Difference = Readonly<Record<number, Values[number]>>

/** The first whole, and the differences of each other: they are mostly alike. */
function differences([first, ...others]: readonly Values[]): readonly (Values | Difference | undefined)[] {
  const differing = (values: Values): Difference => {
    const own: Record<number, Values[number]> = {}
    for (const [index, value] of values.entries()) if (value !== first?.[index]) own[index] = value
    return own
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

/** In the order of their positions. @throws CodedError DATABASE_CORRUPT */
export function recordsOf(row: UsageRow): readonly UsageRecord[] {
  return isDelivery(row) ? usageOfDelivery(row) : unlessDamaged('usage', () => ownRecordsOf(row))
}

function ownRecordsOf(row: UsageRow): readonly UsageRecord[] {
  const [first, ...others] = JSON.parse(textOf(row.body)) as readonly [Values, ...Difference[]]
  const all = [first, ...others.map((own) => Object.assign([...first], own) as unknown as Values)]
  return all.map((values) => recordFrom(row.instance_id ?? '', values))
}

export function isDelivery(row: Pick<UsageRow, 'epoch'>): row is DeliveryRow {
  return row.epoch !== null
}
