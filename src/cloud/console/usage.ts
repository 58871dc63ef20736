import { counted, roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { CodedError } from '../../protocol/errors.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import type { NewestStep, NewestUsage, NumberedUsage, UsageRecord } from '../storage/records.ts'
import { deviceIdOf, deviceNames, shortDeviceLink } from './device-names.ts'
import { Inputs } from './inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  exactTimeOf,
  hrefOf,
  instanceField,
  numeric,
  olderLink,
  refusedForm,
  tableOf,
  typed,
} from './page.ts'
import { isRefusal, statusInWords } from './recent-usage.ts'

/** A report of a device comes whole, so there can be more. */
const RECORDS_MAX = 500

const RANGE_RECORDS_MAX = 5_000

const OUTCOMES = { granted: 'granted', refused: 'refused', other: 'refunds and others' } as const
type Outcome = keyof typeof OUTCOMES

const BUCKETS = { hour: 3_600_000, day: 86_400_000 } as const
type Bucket = keyof typeof BUCKETS

const BUCKETS_SHOWN = 200

/** Of usage times, POSIX ms: from inclusive, to exclusive. Null: unbounded. */
export interface ConsoleRange {
  readonly from: number | null
  readonly to: number | null
}

export function rangeOf({ from = '', to = '' }: View['query']): ConsoleRange {
  const range = { from: instantOf('From', from), to: instantOf('To', to) }
  if (range.from !== null && range.to !== null && range.from >= range.to) {
    throw new CodedError('BAD_REQUEST', 'To must be later than From.')
  }
  return range
}

/** Of an input of the type datetime-local, in UTC. */
function instantOf(field: string, text: string): number | null {
  if (text === '') return null
  const at = Date.parse(`${text}Z`)
  if (at >= 0 && at <= INSTANT_MAX) return at
  throw new CodedError('BAD_REQUEST', `${field} must be a time such as 2026-05-01T08:00.`)
}

export function usageOfPage({ query, instance }: Pick<View, 'query' | 'instance'>): NewestUsage {
  const { upTo = '' } = query
  const range = rangeOf(query)
  return {
    ...range,
    instanceId: instance?.id ?? null,
    upTo: /^\d{1,18}$/.test(upTo) ? BigInt(upTo) : null,
    limit: isBounded(range) ? RANGE_RECORDS_MAX : RECORDS_MAX,
  }
}

function isBounded({ from, to }: ConsoleRange): boolean {
  return from !== null || to !== null
}

/** @param newest records of {@link usageOfPage} */
export async function usagePage(view: View, { records: looked, rest }: NewestStep): Promise<Page> {
  const { query, now } = view
  const { outcome = '', from = '', to = '' } = query
  const [item, requester, device] = [typed(view, 'item'), typed(view, 'requester'), typed(view, 'device')]
  const isRange = isBounded(rangeOf(query))
  const deviceId = await deviceIdOf(view, device)
  const fits = ({ record }: NumberedUsage): boolean =>
    (outcome === '' || outcomeOf(record) === outcome) &&
    (item === '' || record.item.trim() === item) &&
    (requester === '' || record.requesterValue.trim() === requester) &&
    (deviceId === undefined || (record.source.kind === 'device' && record.source.deviceId === deviceId))
  const fitting = looked.filter(fits)
  const shown = fitting.slice(0, ROWS_SHOWN)
  const sources = shown.map(({ record: { source } }) => (source.kind === 'device' ? source.deviceId : null))
  const names = await deviceNames(view, sources)
  const last = fitting.length > ROWS_SHOWN ? shown.at(-1) : undefined
  const older = last === undefined ? (rest?.upTo ?? null) : last.position - 1n
  const by = bucketOf(query)
  const filter = { outcome, item, requester, device, from, to, by: isRange ? by : '' }
  const on = older === null ? null : hrefOf(view, '/usage', { ...filter, upTo: String(older) })
  const total = fitting.reduce((sum, { record }) => sum + record.tokens, 0n)
  const refusals = fitting.filter(({ record }) => isRefusal(record.status)).length
  const reach = rest?.writtenBy ?? looked.at(-1)?.record.writeTime ?? now
  const written = `written in the last ${roughly(now - reach)}`
  const whose = isRange
    ? `${looked.length} records of this time${rest === null ? '' : `, ${written},`}`
    : `${looked.length} records ${written}`
  return {
    title: 'Usage',
    content: html`${section('filter', 'Filter', filterForm(view))}
    ${isRange ? section('buckets', `By ${by}, UTC`, bucketsPart(fitting, by)) : ''}
    ${section(
      'records',
      'Records',
      html`<p>
          ${fitting.length} of ${whose} fit: ${tokensInWords(total)} tokens,
          ${counted(refusals, 'refusal', 'refusals')}.
          <a href="${hrefOf(view, '/usage.csv', { from, to })}" download
            >Export all records${isRange ? ' of this time' : ''} as CSV</a
          >
        </p>
        ${tableOf(
          'Usage records',
          COLUMNS,
          shown.map(({ record }) => rowOf(view, record, names)),
        )}
        ${olderLink(on)}`,
    )}`,
  }
}

export function refusedUsagePage(view: View, error: unknown): Page {
  return refusedForm(error, 'Usage', filterForm(view))
}

function bucketOf({ by }: View['query']): Bucket {
  return by === 'day' ? 'day' : 'hour'
}

function filterForm(view: View): Html {
  const inputs = new Inputs(view.query)
  const field = (name: string, label: string, type?: Html): Html => inputs.input({ name, label }, type)
  return html`<form method="get" action="${view.root}/usage">
    ${instanceField(view)} ${field('from', 'From, UTC', TIME)} ${field('to', 'To, UTC', TIME)}
    ${inputs.select({ name: 'by', label: 'Totals by' }, [
      ['hour', 'hour'],
      ['day', 'day'],
    ])}
    ${inputs.select({ name: 'outcome', label: 'Outcome' }, [['', 'all'], ...Object.entries(OUTCOMES)])}
    ${field('item', 'Item')} ${field('requester', 'Requester')} ${field('device', 'Device, by name or id')}
    <button>Filter</button>
  </form>`
}

const TIME = html`type="datetime-local"`

function bucketsPart(fitting: readonly NumberedUsage[], by: Bucket): Html {
  const size = BUCKETS[by]
  const groups = Map.groupBy(fitting, ({ record }) => Math.floor(record.usageTime / size))
  const rows = [...groups]
    .sort(([one], [other]) => other - one)
    .map(([bucket, records]) => [
      new Date(bucket * size)
        .toISOString()
        .slice(0, by === 'day' ? 10 : 16)
        .replace('T', ' '),
      String(records.length),
      String(records.filter(({ record }) => isRefusal(record.status)).length),
      tokensInWords(records.reduce((sum, { record }) => sum + record.tokens, 0n)),
    ])
  const columns = ['Beginning', numeric('Records'), numeric('Refusals'), numeric('Tokens')]
  const rest = rows.length - BUCKETS_SHOWN
  return html`${tableOf(`Usage by ${by}`, columns, rows.slice(0, BUCKETS_SHOWN))}
  ${rest > 0 ? html`<p class="soft">And ${rest} more. Choose totals by day, or a shorter time.</p>` : ''}`
}

const COLUMNS = ['When, UTC', 'Requester', 'Item', numeric('Count'), 'Result', 'Line item', numeric('Tokens'), 'Source']

function rowOf(view: View, record: UsageRecord, names: ReadonlyMap<string, string>) {
  const { source, item, version } = record
  return [
    exactTimeOf(record.usageTime),
    `${record.requesterType} ${record.requesterValue}`,
    version === '' ? item : `${item} ${version}`,
    formatDecimal(record.count),
    statusInWords(record.status),
    record.activationId ?? 'none',
    tokensInWords(record.tokens),
    source.kind === 'device'
      ? shortDeviceLink(view, source.deviceId, names)
      : source.kind === 'session'
        ? `session ${source.sessionId.slice(0, 8)}`
        : 'request to the cloud',
  ]
}

function outcomeOf({ status }: UsageRecord): Outcome {
  if (isRefusal(status)) return 'refused'
  return status === 'GRANTED' ? 'granted' : 'other'
}
