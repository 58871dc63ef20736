/** Usage records and other changes as CloudEvents 1.0 in JSON. docs/explanation/events.md describes ids and order. */
import type { EventGroup, EventType } from '../../protocol/edge/events.ts'
import type { NumberedEvent, NumberedUsage, UsageRecord } from '../storage/records.ts'
import { usageLine } from '../usage/usage-text.ts'

export interface OutgoingEvent {
  readonly position: bigint
  /** The same for every attempt, and after a restore. With the source, it identifies the event forever. */
  readonly id: string
  readonly type: 'usage' | EventType
  /** Id of a device, or of an instance: events with the same key are sent in order. */
  readonly key: string
  readonly json: string
}

/** Digits of a position, so that the texts sort like the numbers. */
const SEQUENCE_DIGITS = 19

/** Characters of the hash of an entry: copies of a device may number different entries alike. */
const HASH_SHOWN = 16

export function groupOf(type: string): EventGroup {
  if (type === 'usage') return 'usage'
  return type.startsWith('device.') ? 'device' : 'line-item'
}

export function usageEvent(tenantId: string, numbered: NumberedUsage): OutgoingEvent {
  const { position, record } = numbered
  const { source, instanceId, usageTime } = record
  return outgoing(tenantId, {
    position,
    id: usageId(numbered, record),
    type: 'usage',
    at: usageTime,
    subject: instanceId,
    key: source.kind === 'device' ? source.deviceId : instanceId,
    data: usageLine('ndjson', tenantId, numbered).trimEnd(),
  })
}

export function changeEvent(tenantId: string, { position, event }: NumberedEvent): OutgoingEvent {
  const { id, type, at, deviceId, instanceId, data } = event
  const subject = deviceId ?? instanceId ?? id
  return outgoing(tenantId, { position, id, type, at, subject, key: subject, data: JSON.stringify(data) })
}

function usageId({ position, entry }: NumberedUsage, { source, correlationId }: UsageRecord): string {
  if (source.kind !== 'device' || entry === undefined) return `usage/${correlationId}/${position}`
  return `${source.deviceId}/${source.epoch}/${source.entry}/${entry.hash.slice(0, HASH_SHOWN)}/${entry.part}`
}

interface Content extends Omit<OutgoingEvent, 'json'> {
  readonly at: number
  readonly subject: string
  /** JSON text with exact numbers. */
  readonly data: string
}

function outgoing(tenantId: string, { position, id, type, at, subject, key, data }: Content): OutgoingEvent {
  const attributes = JSON.stringify({
    specversion: '1.0',
    id,
    source: `urn:tallygate:${encodeURIComponent(tenantId)}`,
    type: `tallygate.${type}`,
    subject,
    time: new Date(at).toISOString(),
    datacontenttype: 'application/json',
    partitionkey: key,
    sequence: String(position).padStart(SEQUENCE_DIGITS, '0'),
  })
  return { position, id, type, key, json: `${attributes.slice(0, -1)},"data":${data}}` }
}
