import { counted, tokensInWords } from '../../core/accounts/in-words.ts'
import { type Html, type Piece, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import type { LineItem } from '../../core/rules/policy.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import { mayEdit } from './edit.ts'
import { LIMIT_EDIT } from './edit-limit.ts'
import { LINE_ITEM_EDIT } from './edit-line-item.ts'
import { type ConsumptionLimitTerms, termsOf } from '../service-api/set-consumption-limit.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  exactTimeOf,
  hrefOf,
  numeric,
  offsetOf,
  ofInstance,
  pagesByOffset,
  tableOf,
  timeOf,
} from './page.ts'
import { searchLineItems } from './search-line-items.ts'
import { poolsOf } from '../accounts/pools-of.ts'

export function lineItemsPage(view: View): Promise<Page> {
  const { reader, now, query } = view
  return ofInstance(view, 'Line items', async (instance, { policy }) => {
    const offset = offsetOf(query['from'])
    const canEdit = mayEdit(view, LINE_ITEM_EDIT)
    const editHref = (lineItem: string): string => hrefOf(view, LINE_ITEM_EDIT.path, { lineItem })
    const { search, found, form } = searchLineItems(view, '/line-items', policy.lineItems)
    const shown = found.slice(offset, offset + ROWS_SHOWN)
    const limits = await reader.consumptionLimits.of(
      instance.id,
      shown.map(({ id }) => id),
    )
    const rows = (await poolsOf(reader, instance.id, shown, now)).map(({ lineItem, used, left, resetAt }) => [
      canEdit ? html`<a href="${editHref(lineItem.id)}">${lineItem.id}</a>` : lineItem.id,
      lineItem.elastic ? lineItem.state.toLowerCase() : `${lineItem.state.toLowerCase()}, not elastic`,
      windowOf(lineItem),
      lineItem.rateTableSeries === '' ? 'without series' : lineItem.rateTableSeries,
      tokensInWords(lineItem.quantity),
      tokensInWords(used),
      left === null ? 'unlimited' : tokensInWords(left),
      resetAt === null ? 'never' : timeOf(resetAt, now),
      limitCell(view, lineItem.id, termsOf(limits.get(lineItem.id), now)),
    ])
    const columns = [
      ...['Line item', 'State', 'Window, UTC', 'Series'],
      ...['Quantity', 'Used', 'Left'].map(numeric),
      ...['Resets', 'Consumption limit'],
    ]
    const isMore = found.length > offset + ROWS_SHOWN
    return section(
      'list',
      `${counted(found.length, 'line item', 'line items')}, at revision ${policy.revision}`,
      html`${form} ${tableOf('Line items', columns, rows)}
      ${canEdit ? html`<p><a href="${editHref('')}">New line item</a></p>` : ''}
      ${pagesByOffset(view, '/line-items', { query: { search }, isMore })}`,
    )
  })
}

function limitCell(view: View, lineItem: string, terms: ConsumptionLimitTerms | undefined): Html {
  const canEdit = mayEdit(view, LIMIT_EDIT)
  const link = (text: string, label: string): Html =>
    html`<a href="${hrefOf(view, LIMIT_EDIT.path, { lineItem })}" aria-label="${label}">${text}</a>`
  if (terms === undefined) return canEdit ? link('Add a limit', `Add a limit to ${lineItem}`) : html`none`
  const text = `${tokensInWords(terms.limit)} per requester, ${terms.frequency.toLowerCase()}`
  const shown = canEdit ? link(text, `Consumption limit of ${lineItem}: ${text}`) : text
  return html`${shown}, resets ${timeOf(terms.nextReset, view.now)}`
}

function windowOf({ startsAt, endsAt }: Pick<LineItem, 'startsAt' | 'endsAt'>): Piece {
  if (startsAt === 0 && endsAt === INSTANT_MAX) return 'always'
  const from = startsAt === 0 ? '' : html`from ${exactTimeOf(startsAt, false)}`
  const to = endsAt === INSTANT_MAX ? '' : html`to ${exactTimeOf(endsAt, false)}`
  return html`${from} ${to}`
}
