/** Rows of the cloud's own usage records. */
import { decimal, formatDecimal } from '../../../core/pricing/amount.ts'
import type { UsageOperation, UsageRecord, UsageSource } from '../records.ts'
import type { Row } from './tables.ts'

/** With the columns of {@link rowOf} in their sequence. */
export const SAMPLE: UsageRecord = {
  correlationId: '',
  usageTime: 0,
  writeTime: 0,
  requesterType: '',
  requesterValue: '',
  accountId: '',
  instanceId: '',
  activationId: null,
  quantity: null,
  used: null,
  item: '',
  version: '',
  count: decimal(0),
  operation: 'REQUEST',
  status: '',
  tokens: 0n,
  source: { kind: 'one-off' },
  metaData: null,
}

export function rowOf(record: UsageRecord): Omit<Row<'usage'>, 'seq'> {
  const { source } = record
  return {
    correlation_id: record.correlationId,
    usage_time: BigInt(record.usageTime),
    write_time: BigInt(record.writeTime),
    requester_type: record.requesterType,
    requester_value: record.requesterValue,
    account_id: record.accountId,
    instance_id: record.instanceId,
    activation_id: record.activationId,
    quantity: record.quantity,
    used: record.used,
    item: record.item,
    version: record.version,
    count: formatDecimal(record.count),
    rate: record.rate === undefined ? null : formatDecimal(record.rate),
    operation: record.operation,
    status: record.status,
    tokens: record.tokens,
    source: source.kind,
    session_id: source.kind === 'one-off' ? null : (source.sessionId ?? null),
    device_id: source.kind === 'device' ? source.deviceId : null,
    epoch: source.kind === 'device' ? BigInt(source.epoch) : null,
    entry: source.kind === 'device' ? BigInt(source.entry) : null,
    meta_data: record.metaData,
  }
}

export function recordOf(row: Row<'usage'>): UsageRecord {
  return {
    correlationId: row.correlation_id,
    usageTime: Number(row.usage_time),
    writeTime: Number(row.write_time),
    requesterType: row.requester_type,
    requesterValue: row.requester_value,
    accountId: row.account_id,
    instanceId: row.instance_id,
    activationId: row.activation_id,
    quantity: row.quantity,
    used: row.used,
    item: row.item,
    version: row.version,
    count: decimal(row.count),
    ...(row.rate === null ? {} : { rate: decimal(row.rate) }),
    operation: row.operation as UsageOperation,
    status: row.status,
    tokens: row.tokens,
    source: sourceOf(row),
    metaData: row.meta_data,
  }
}

function sourceOf(row: Row<'usage'>): UsageSource {
  if (row.device_id === null) {
    return row.session_id === null ? { kind: 'one-off' } : { kind: 'session', sessionId: row.session_id }
  }
  return {
    kind: 'device',
    deviceId: row.device_id,
    epoch: Number(row.epoch),
    entry: Number(row.entry),
    ...(row.session_id === null ? {} : { sessionId: row.session_id }),
  }
}
