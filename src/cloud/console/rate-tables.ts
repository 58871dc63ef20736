import { counted } from '../../core/accounts/in-words.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { RateTableRecord } from '../storage/records.ts'
import { mayEdit } from './edit.ts'
import { RATE_TABLE_EDIT } from './edit-rate-table.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  hrefOf,
  offsetOf,
  exactTimeOf,
  pagesByOffset,
  tableOf,
  timeOf,
} from './page.ts'

export async function rateTablesPage(view: View): Promise<Page> {
  const { reader, now, query } = view
  const { series, version } = query
  if (series !== undefined && version !== undefined) return ratesPage(view, series, version)
  const found = await reader.rateTables.page(offsetOf(query['from']), ROWS_SHOWN + 1, now)
  const rows = found
    .slice(0, ROWS_SHOWN)
    .map((table) => [
      html`<a href="${hrefWith(view, '/rate-tables', table)}">${nameOf(table.series)}</a>`,
      table.version,
      effectiveOf(table),
      table.effectiveFrom > now ? 'not yet in effect' : table.isReplaced ? 'replaced' : 'in effect',
      timeOf(table.created, now),
    ])
  return {
    title: 'Rate tables',
    content: section(
      'list',
      'By effective date, latest first',
      html`${tableOf('Rate tables', ['Series', 'Version', 'Effective from, UTC', 'State', 'Created'], rows)}
      ${mayEdit(view, RATE_TABLE_EDIT) ? html`<p><a href="${hrefOf(view, RATE_TABLE_EDIT.path)}">New rate table</a></p>` : ''}
      ${pagesByOffset(view, '/rate-tables', { isMore: found.length > ROWS_SHOWN })}`,
    ),
  }
}

function effectiveOf({ effectiveFrom }: { readonly effectiveFrom: number }): Html {
  return effectiveFrom === 0 ? html`always` : exactTimeOf(effectiveFrom)
}

async function ratesPage(view: View, series: string, version: string): Promise<Page> {
  const table = await view.reader.rateTables.get(series, version)
  if (table === undefined) throw new CodedError('NOT_FOUND', `There is no rate table ${version} of ${nameOf(series)}.`)
  const offset = offsetOf(view.query['from'])
  const rows = table.items
    .slice(offset, offset + ROWS_SHOWN)
    .map(({ name, version: of, rate, formula }) => [
      name,
      of === '' ? 'none' : of,
      rate === undefined ? html`<code>${formula}</code>` : formatDecimal(rate),
    ])
  const isMore = table.items.length > offset + ROWS_SHOWN
  return {
    title: `Rates of ${nameOf(series)}, version ${version}`,
    content: section(
      'rates',
      counted(table.items.length, 'item', 'items'),
      html`<p>Effective from ${effectiveOf(table)} UTC.</p>
        ${tableOf('Rates', ['Item', 'Version', 'Tokens per unit'], rows)}
        ${mayEdit(view, RATE_TABLE_EDIT) ? html`<p><a href="${hrefWith(view, RATE_TABLE_EDIT.path, table)}">New version of these rates</a></p>` : ''}
        ${pagesByOffset(view, '/rate-tables', { query: { series, version }, isMore })}`,
    ),
  }
}

/** The series may be empty. */
function hrefWith(view: View, to: string, { series, version }: Pick<RateTableRecord, 'series' | 'version'>): string {
  const at = new URLSearchParams({ series, version })
  const base = hrefOf(view, to)
  return `${base}${base.includes('?') ? '&' : '?'}${at.toString()}`
}

function nameOf(series: string): string {
  return series === '' ? 'no series' : series
}
