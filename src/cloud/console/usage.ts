import { counted, roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import { formatDecimal, formatMicro } from '../../core/pricing/amount.ts'
import { isRefusal } from '../../core/rules/refusal-reasons.ts'
import { type Html, type Piece, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { NewestStep, NewestUsage, NumberedUsage, UsageRecord, UsageSearch } from '../storage/records.ts'
import { deviceIdOf, deviceNames, shortDeviceLink } from './device-names.ts'
import { Inputs, NO_INSTANT, instantIn } from './inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  exactTimeOf,
  hrefOf,
  instanceField,
  numeric,
  olderLink,
  positionOf,
  refusedForm,
  tableOf,
  typed,
} from './page.ts'
import { itemOf, requesterOf, statusInWords } from './recent-usage.ts'

/** A row of the store comes whole, so there can be more. */
const RECORDS_MAX = 500

const RANGE_RECORDS_MAX = 5_000

const OUTCOMES = { granted: 'granted', refused: 'refused', other: 'refunds and others' } as const
type Outcome = keyof typeof OUTCOMES

interface Grouping {
  readonly name: string
  readonly of: (record: UsageRecord) => string
  /** Groups are times: newest first, others by their tokens. */
  readonly isTime?: boolean
}

const GROUPINGS = {
  hour: { name: 'Hour, UTC', of: ({ usageTime }) => `${timeText(usageTime).slice(0, 13)}:00`, isTime: true },
  day: { name: 'Day, UTC', of: ({ usageTime }) => timeText(usageTime).slice(0, 10), isTime: true },
  account: { name: 'Customer account', of: ({ accountId }) => accountId },
  'line-item': { name: 'Line item', of: ({ activationId }) => activationId ?? 'none' },
  item: { name: 'Item', of: itemOf },
  requester: { name: 'Requester', of: requesterOf },
} as const satisfies Readonly<Record<string, Grouping>>
type By = keyof typeof GROUPINGS

const GROUPS_SHOWN = 200

const SEARCHED = ['outcome', 'item', 'requester', 'device'] as const

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

function instantOf(field: string, text: string): number | null {
  if (text === '') return null
  const at = instantIn(text)
  if (at === undefined) throw new CodedError('BAD_REQUEST', `${field} ${NO_INSTANT}.`)
  return at
}

export async function usageOfPage(view: View): Promise<NewestUsage> {
  const { query, instance } = view
  const range = rangeOf(query)
  return {
    ...range,
    instanceId: instance?.id ?? null,
    upTo: positionOf(query['upTo']) ?? null,
    limit: isBounded(range) ? RANGE_RECORDS_MAX : RECORDS_MAX,
    ...(isSearch(view) ? { search: await searchOf(view) } : {}),
  }
}

function isSearch(view: View): boolean {
  return SEARCHED.some((name) => typed(view, name) !== '')
}

async function searchOf(view: View): Promise<UsageSearch> {
  const [outcome, item, requester] = [typed(view, 'outcome'), typed(view, 'item'), typed(view, 'requester')]
  const deviceId = await deviceIdOf(view, typed(view, 'device'))
  return {
    ...(deviceId === undefined ? {} : { deviceId }),
    ...(outcome === 'refused' ? { isRefused: true as const } : {}),
    fits: (record) =>
      (outcome === '' || outcomeOf(record) === outcome) &&
      (item === '' || record.item.trim() === item) &&
      (requester === '' || record.requesterValue.trim() === requester) &&
      (deviceId === undefined || (record.source.kind === 'device' && record.source.deviceId === deviceId)),
  }
}

function isBounded({ from, to }: ConsoleRange): boolean {
  return from !== null || to !== null
}

/** @param newest records of {@link usageOfPage} */
export async function usagePage(view: View, newest: NewestStep): Promise<Page> {
  const { query } = view
  const totals = isBounded(rangeOf(query)) ? totalsPart(newest.records, GROUPINGS[byOf(query)]) : null
  return {
    title: 'Usage',
    content: html`${section('filter', 'Filter', filterForm(view))}
    ${totals === null ? '' : section('totals', 'Totals', totals)}
    ${section('records', 'Records', await recordsPart(view, newest))}`,
  }
}

async function recordsPart(view: View, newest: NewestStep): Promise<Html> {
  const { records } = newest
  const { from = '', to = '' } = view.query
  const isRange = isBounded(rangeOf(view.query))
  const shown = records.slice(0, ROWS_SHOWN).map(({ record }) => record)
  const names = await deviceNames(
    view,
    shown.map(({ source }) => (source.kind === 'device' ? source.deviceId : null)),
  )
  const total = records.reduce((sum, { record }) => sum + record.tokens, 0n)
  const refusals = records.filter(({ record }) => isRefusal(record.status)).length
  const isPart = isRange && (positionOf(view.query['upTo']) !== undefined || newest.rest !== null)
  const isExplained = shown.some(({ source, status }) => source.kind === 'device' && isRefusal(status))
  return html`<p>
      ${readInWords(view, newest)}: ${tokensInWords(total)} tokens, ${counted(refusals, 'refusal', 'refusals')}.
      <a href="${hrefOf(view, '/usage.csv', { from, to })}" download
        >Export all records${isRange ? ' of this time' : ''} as CSV</a
      >
    </p>
    ${isPart ? restPart(view) : ''}
    ${tableOf(
      'Usage records',
      COLUMNS,
      shown.map((record) => rowOf(view, record, names)),
    )}
    ${isExplained ? EXPLAIN : ''} ${olderLink(olderPage(view, newest))}`
}

/** Which records the page has found, and among which ones. */
function readInWords(view: View, { records, rest }: NewestStep): string {
  const { query } = view
  const isRange = isBounded(rangeOf(query))
  const older = isRange && positionOf(query['upTo']) !== undefined ? 'older ' : ''
  const found = `${records.length} ${older}${records.length === 1 ? 'record' : 'records'}${isRange ? ' of this time' : ''}`
  const reach = rest?.writtenBy ?? (isRange || isSearch(view) ? null : records.at(-1)?.record.writeTime) ?? null
  const written = reach === null ? '' : ` written in the last ${roughly(view.now - reach)}`
  return isSearch(view) ? `${found} found${written === '' ? '' : ` among those${written}`}` : `${found}${written}`
}

/** Null: there are no older records. */
function olderPage(view: View, { records, rest }: NewestStep): string | null {
  const { query } = view
  const last = records.length > ROWS_SHOWN ? records[ROWS_SHOWN - 1] : undefined
  const upTo = last === undefined ? rest?.upTo : last.position - 1n
  if (upTo === undefined) return null
  const { outcome = '', from = '', to = '' } = query
  const [item, requester, device] = [typed(view, 'item'), typed(view, 'requester'), typed(view, 'device')]
  const by = isBounded(rangeOf(query)) ? byOf(query) : ''
  return hrefOf(view, '/usage', { outcome, item, requester, device, from, to, by, upTo: String(upTo) })
}

export function refusedUsagePage(view: View, error: unknown): Page {
  return refusedForm(error, 'Usage', filterForm(view))
}

function byOf({ by = '' }: View['query']): By {
  return Object.hasOwn(GROUPINGS, by) ? (by as By) : 'hour'
}

/** The totals of the page are those of the records that it has read. */
function restPart(view: View): Html {
  const { query, instance } = view
  const { from, to } = rangeOf(query)
  const option = (name: string, value: string): string => ` --${name} ${value}`
  const options = [
    instance === null ? '' : option('instance', instance.id),
    from === null ? '' : option('since', new Date(from).toISOString()),
    to === null ? '' : option('until', new Date(to).toISOString()),
  ]
  return html`<p class="problem">
    This time has more records. Totals of all${isSearch(view) ? ' records, without the search' : ''}:
    <code>tallygate usage totals${options.join('')}</code>
  </p>`
}

function filterForm(view: View): Html {
  const inputs = new Inputs(view.query)
  const field = (name: string, label: string, type?: Html): Html => inputs.input({ name, label }, type)
  return html`<form method="get" action="${view.root}/usage">
      ${instanceField(view)} ${field('from', 'From, UTC', TIME)} ${field('to', 'To, UTC', TIME)}
      ${inputs.select(
        { name: 'by', label: 'Totals by' },
        Object.entries(GROUPINGS).map(([by, { name }]) => [by, name] as const),
      )}
      ${inputs.select({ name: 'outcome', label: 'Outcome' }, [['', 'all'], ...Object.entries(OUTCOMES)])}
      ${field('item', 'Item')} ${field('requester', 'Requester')} ${field('device', 'Device, by name or id')}
      <button>Filter</button>
    </form>
    <p>Whole months, UTC: ${monthLink(view, 0)} ${monthLink(view, 1)}</p>`
}

/** @param ago how many months before the present one */
function monthLink(view: View, ago: number): Html {
  const now = new Date(view.now)
  const beginning = (month: number): string =>
    new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + month)).toISOString().slice(0, 16)
  const from = beginning(-ago)
  return html`<a href="${hrefOf(view, '/usage', { from, to: beginning(1 - ago), by: 'line-item' })}"
    >${from.slice(0, 7)}</a
  > `
}

const TIME = html`type="datetime-local"`

function totalsPart(fitting: readonly NumberedUsage[], { name, of, isTime = false }: Grouping): Html {
  const groups = Map.groupBy(fitting, ({ record }) => of(record))
  const totals = [...groups].map(([group, records]) => ({
    group,
    records: records.length,
    refusals: records.filter(({ record }) => isRefusal(record.status)).length,
    tokens: records.reduce((sum, { record }) => sum + record.tokens, 0n),
  }))
  totals.sort((one, other) => (isTime ? other.group.localeCompare(one.group) : Number(other.tokens - one.tokens)))
  const rows = totals
    .slice(0, GROUPS_SHOWN)
    .map(({ group, records, refusals, tokens }) => [group, String(records), String(refusals), formatMicro(tokens)])
  const hidden = totals.length - rows.length
  const columns = [name, numeric('Records'), numeric('Refusals'), numeric('Tokens')]
  return html`${tableOf('Totals', columns, rows)}
  ${hidden > 0 ? html`<p class="soft">And ${hidden} more. Choose other totals or a shorter time.</p>` : ''}`
}

const EXPLAIN = html`<p class="soft">
  On the device, <code>tallygate explain</code> with the id of a refused request shows each check.
</p>`

const COLUMNS = ['When, UTC', 'Requester', 'Item', numeric('Count'), 'Result', 'Line item', numeric('Tokens'), 'Source']

function rowOf(view: View, record: UsageRecord, names: ReadonlyMap<string, string>) {
  return [
    exactTimeOf(record.usageTime),
    requesterOf(record),
    itemOf(record),
    formatDecimal(record.count),
    resultOf(record),
    record.activationId ?? 'none',
    tokensInWords(record.tokens),
    sourceOf(view, record, names),
  ]
}

function sourceOf(view: View, { source }: UsageRecord, names: ReadonlyMap<string, string>): Piece {
  if (source.kind === 'one-off') return 'request to the cloud'
  const session = source.sessionId === undefined ? '' : `session ${source.sessionId.slice(0, 8)}`
  return source.kind === 'device' ? html`${shortDeviceLink(view, source.deviceId, names)} ${session}` : session
}

function timeText(at: number): string {
  return new Date(at).toISOString().replace('T', ' ')
}

/** A device explains its refusals by the correlation id. */
function resultOf({ status, source, correlationId }: UsageRecord): Piece {
  const result = statusInWords(status)
  return isRefusal(status) && source.kind === 'device' ? html`${result} <br /><code>${correlationId}</code>` : result
}

function outcomeOf({ status }: UsageRecord): Outcome {
  if (isRefusal(status)) return 'refused'
  return status === 'GRANTED' ? 'granted' : 'other'
}
