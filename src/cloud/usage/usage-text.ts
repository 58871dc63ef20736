/** With exact numbers. In CSV, possible formulas and texts with a leading apostrophe get an apostrophe in front. */
import { type Micro, decimal, formatDecimal, formatMicro, toMicro } from '../../core/pricing/amount.ts'
import { csvField } from '../../protocol/csv.ts'
import { ITEM_STATUS, type ItemStatus } from '../../protocol/service/status.ts'
import { USAGE_COLUMNS, type UsageColumn, type UsageFormat } from '../../protocol/service/usage-export.ts'
import type { NumberedUsage, UsageRecord } from '../storage/records.ts'

/** User text, our number or word, a JSON document, or empty. */
type Cell = { readonly text: string } | { readonly number: string } | { readonly json: string } | null

export function usageHead(format: UsageFormat): string {
  return format === 'csv' ? `${USAGE_COLUMNS.map(([name]) => name).join(',')}\r\n` : ''
}

export function usageLine(format: UsageFormat, tenantId: string, numbered: NumberedUsage): string {
  const cells = cellsOf(tenantId, numbered)
  if (format === 'csv') return `${USAGE_COLUMNS.map(([, key]) => csvCell(cells[key])).join(',')}\r\n`
  return `{${USAGE_COLUMNS.map(([, key]) => `${JSON.stringify(key)}:${jsonCell(cells[key])}`).join(',')}}\n`
}

/** The line of the NDJSON export, with the rate, which an export does not contain. */
export function archiveLine(tenantId: string, numbered: NumberedUsage): string {
  const { rate } = numbered.record
  const line = usageLine('ndjson', tenantId, numbered)
  return `${line.slice(0, -'}\n'.length)},"rate":${rate === undefined ? 'null' : formatDecimal(rate)}}\n`
}

export interface ArchivedUsage {
  readonly position: bigint
  readonly instanceId: string
  readonly activationId: string | null
  readonly usageTime: number
  readonly writeTime: number
  readonly tokens: Micro
  text(format: UsageFormat): string
}

const JSON_TEXT = String.raw`"(?:[^"\\]|\\.)*"`
const JSON_SCALAR = String.raw`(${JSON_TEXT}|-?[\d.]+|null)`
const ARCHIVE_LINE = new RegExp(
  String.raw`^\{${USAGE_COLUMNS.map(([, key]) => `"${key}":${key === 'metaData' ? String.raw`(\{.*\}|null)` : JSON_SCALAR}`).join(',')},"rate":(?:[\d.]+|null)\}$`,
  // The line separators of Unicode are text.
  's',
)

/** Undefined: not a line of an archive. @param line without its end */
export function readArchiveLine(line: string): ArchivedUsage | undefined {
  const found = ARCHIVE_LINE.exec(line)
  if (found === null) return undefined
  const raw = Object.fromEntries(USAGE_COLUMNS.map(([, key], index) => [key, found[index + 1] ?? 'null']))
  const columnText = (key: UsageColumn): string => JSON.parse(raw[key] ?? 'null') as string
  const cells = USAGE_COLUMNS.map(([, key]) => archivedCell(key, raw[key] ?? 'null'))
  return {
    position: BigInt(columnText('cursor')),
    instanceId: columnText('instanceId'),
    activationId: raw['activationId'] === 'null' ? null : columnText('activationId'),
    usageTime: Number(raw['usageTime']),
    writeTime: Number(raw['writeTime']),
    tokens: toMicro(decimal(raw['tokens'] ?? '')),
    text: (format) =>
      format === 'csv'
        ? `${cells.map((cell) => csvCell(cell)).join(',')}\r\n`
        : `${line.slice(0, line.lastIndexOf(',"rate":'))}}\n`,
  }
}

function archivedCell(key: UsageColumn, raw: string): Cell {
  if (raw === 'null') return null
  if (key === 'metaData') return { json: raw }
  return raw.startsWith('"') ? { text: JSON.parse(raw) as string } : { number: raw }
}

export function reportRow(tenantId: string, numbered: NumberedUsage, states: ReadonlyMap<string, string>): string {
  const cells = { ...cellsOf(tenantId, numbered), ...reportCells(numbered.record, states) }
  return `{${Object.entries(cells)
    .map(([key, cell]) => `${JSON.stringify(key)}:${jsonCell(cell)}`)
    .join(',')}}`
}

function reportCells(record: UsageRecord, states: ReadonlyMap<string, string>): Readonly<Record<string, Cell>> {
  const { count, rate, tokens, quantity, used, source } = record
  const sessionId = source.kind === 'one-off' ? undefined : source.sessionId
  const state = sessionId === undefined ? undefined : states.get(sessionId)
  const beyond = quantity === null || used === null ? null : used > quantity ? used - quantity : 0n
  return {
    itemQuantity: { number: formatDecimal(count) },
    meterQuantity: { number: formatMicro(tokens) },
    meterCost: rate === undefined ? null : { number: formatDecimal(rate) },
    overdraftCount: beyond === null ? null : { number: formatMicro(beyond) },
    requestResponse: responseOf(record),
    sessionState: state === undefined ? null : { text: state },
  }
}

/** The item's status code of API v1.1; null for tokens without a request. */
function responseOf({ operation, status }: UsageRecord): Cell {
  if (operation === 'BURN' || operation === 'SETTLEMENT') return null
  const known = status === 'REFUNDED' ? 'GRANTED' : status
  return Object.hasOwn(ITEM_STATUS, known) ? { text: ITEM_STATUS[known as ItemStatus]['v1.1'] } : null
}

function cellsOf(tenantId: string, { position, record }: NumberedUsage): Readonly<Record<UsageColumn, Cell>> {
  const { quantity, used, metaData } = record
  return {
    correlationId: { text: record.correlationId },
    tenantId: { text: tenantId },
    usageTime: { number: String(record.usageTime) },
    writeTime: { number: String(record.writeTime) },
    consumerId: { text: record.requesterValue },
    consumerType: { text: record.requesterType },
    accountId: { text: record.accountId },
    instanceId: { text: record.instanceId },
    activationId: record.activationId === null ? null : { text: record.activationId },
    mappedEntitledCount: quantity === null ? null : { number: formatMicro(quantity) },
    used: used === null ? null : { number: formatMicro(used) },
    item: { text: record.item },
    itemVersion: record.version === '' ? null : { text: record.version },
    count: { number: formatDecimal(record.count) },
    operation: { text: record.operation },
    status: { text: record.status },
    tokens: { number: formatMicro(record.tokens) },
    ...sourceCells(record),
    metaData: metaData === null ? null : { json: metaData },
    cursor: { text: String(position) },
  }
}

function sourceCells({ source }: UsageRecord) {
  const kind = { text: source.kind }
  const none = { source: kind, sessionId: null, deviceId: null, epoch: null, entry: null }
  switch (source.kind) {
    case 'one-off':
      return none
    case 'session':
      return { ...none, sessionId: { text: source.sessionId } }
    case 'device':
      return {
        ...none,
        sessionId: source.sessionId === undefined ? null : { text: source.sessionId },
        deviceId: { text: source.deviceId },
        epoch: { number: String(source.epoch) },
        entry: { number: String(source.entry) },
      }
  }
}

function csvCell(cell: Cell): string {
  if (cell === null) return ''
  if ('number' in cell) return cell.number
  return csvField('json' in cell ? cell.json : cell.text)
}

function jsonCell(cell: Cell): string {
  if (cell === null) return 'null'
  if ('number' in cell) return cell.number
  return 'json' in cell ? cell.json : JSON.stringify(cell.text)
}
