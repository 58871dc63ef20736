/** Usage records, newest first, with filter and totals. Each page looks at a limited number of records. */
import { roughly } from '../../core/accounts/in-words.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import { html } from '../../html/html.ts'
import type { NumberedUsage, UsageRecord } from '../storage/records.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  hrefOf,
  olderLink,
  option,
  section,
  tableOf,
  timeOf,
  tokens,
} from './page.ts'
import { isRefusal, statusInWords } from './recent-usage.ts'

/** A report of a device comes whole, so there can be more. */
const RECORDS_MAX = 500

const OUTCOMES = { granted: 'granted', refused: 'refused', other: 'refunds and others' } as const
type Outcome = keyof typeof OUTCOMES

export async function usagePage(view: View): Promise<Page> {
  const { reader, query, now, instance, root } = view
  const { upTo = '', outcome = '', item = '', requester = '', device = '' } = query
  const position = /^\d{1,18}$/.test(upTo) ? BigInt(upTo) : null
  const looked = await reader.usage.newest(instance?.id ?? null, position, RECORDS_MAX)
  const fits = ({ record }: NumberedUsage): boolean =>
    (outcome === '' || outcomeOf(record) === outcome) &&
    (item === '' || record.item === item) &&
    (requester === '' || record.requesterValue === requester) &&
    (device === '' || (record.source.kind === 'device' && record.source.deviceId === device))
  const fitting = looked.filter(fits)
  const shown = fitting.slice(0, ROWS_SHOWN)
  const last = fitting.length > ROWS_SHOWN ? shown.at(-1) : looked.length < RECORDS_MAX ? undefined : looked.at(-1)
  const filter = { outcome, item, requester, device }
  const on = last === undefined ? null : hrefOf(view, '/usage', { ...filter, upTo: String(last.position - 1n) })
  const total = fitting.reduce((sum, { record }) => sum + record.tokens, 0n)
  const refusals = fitting.filter(({ record }) => isRefusal(record.status)).length
  const reach = looked.at(-1)?.record.writeTime ?? now
  return {
    title: 'Usage',
    content: html`${section(
      'filter',
      'Filter',
      html`<form method="get" action="${root}/usage">
        ${instance === null ? '' : html`<input type="hidden" name="instance" value="${instance.id}" />`}
        <label>
          Outcome
          <select name="outcome">
            ${option('', 'all', outcome)}
            ${Object.entries(OUTCOMES).map(([value, text]) => option(value, text, outcome))}
          </select>
        </label>
        <label>Item <input name="item" value="${item}" /></label>
        <label>Requester <input name="requester" value="${requester}" /></label>
        <label>Id of a device <input name="device" value="${device}" /></label>
        <button>Filter</button>
      </form>`,
    )}
    ${section(
      'records',
      'Records',
      html`<p>
          ${fitting.length} of ${looked.length} records of the last ${roughly(now - reach)} fit: ${tokens(total)}
          tokens, ${refusals} refusals.
          <a href="${hrefOf(view, '/usage.csv')}" download>Export all records as CSV</a>
        </p>
        ${tableOf(
          'Usage records',
          COLUMNS,
          shown.map(({ record }) => rowOf(view, record)),
        )}
        ${olderLink(on)}`,
    )}`,
  }
}

const numeric = (title: string) => ({ title, numeric: true }) as const
const COLUMNS = ['When', 'Requester', 'Item', numeric('Count'), 'Result', 'Line item', numeric('Tokens'), 'Source']

function rowOf(view: View, record: UsageRecord) {
  const { source, item, version } = record
  return [
    timeOf(record.usageTime, view.now),
    `${record.requesterType} ${record.requesterValue}`,
    version === '' ? item : `${item} ${version}`,
    formatDecimal(record.count),
    statusInWords(record.status),
    record.activationId ?? 'none',
    tokens(record.tokens),
    source.kind === 'device'
      ? html`<a href="${hrefOf(view, `/devices/${source.deviceId}`)}">device ${source.deviceId.slice(0, 8)}</a>`
      : source.kind === 'session'
        ? `session ${source.sessionId.slice(0, 8)}`
        : 'request to the cloud',
  ]
}

function outcomeOf({ status }: UsageRecord): Outcome {
  if (isRefusal(status)) return 'refused'
  return status === 'GRANTED' ? 'granted' : 'other'
}
