import { tokensInWords } from '../../core/accounts/in-words.ts'
import { html } from '../../html/html.ts'
import { mayEditRules } from './edit.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  hrefOf,
  numeric,
  offsetOf,
  ofInstance,
  pagesByOffset,
  section,
  tableOf,
  timeOf,
} from './page.ts'
import { poolsOf } from '../accounts/pools-of.ts'

export function lineItemsPage(view: View): Promise<Page> {
  const { reader, now, query } = view
  return ofInstance(view, 'Line items', async (instance, { policy }) => {
    const offset = offsetOf(query['from'])
    const canEdit = mayEditRules(view)
    const editHref = (lineItem: string): string => hrefOf(view, '/line-items/edit', { lineItem })
    const shown = policy.lineItems.slice(offset, offset + ROWS_SHOWN)
    const rows = (await poolsOf(reader, instance.id, shown, now)).map(({ lineItem, used, left, resetAt }) => [
      canEdit ? html`<a href="${editHref(lineItem.id)}">${lineItem.id}</a>` : lineItem.id,
      lineItem.elastic ? lineItem.state.toLowerCase() : `${lineItem.state.toLowerCase()}, not elastic`,
      html`${timeOf(lineItem.startsAt, now)} – ${timeOf(lineItem.endsAt, now)}`,
      lineItem.rateTableSeries === '' ? 'without series' : lineItem.rateTableSeries,
      tokensInWords(lineItem.quantity),
      tokensInWords(used),
      left === null ? 'unlimited' : tokensInWords(left),
      resetAt === null ? 'never' : timeOf(resetAt, now),
      lineItem.consumptionLimit === null ? 'none' : `${tokensInWords(lineItem.consumptionLimit.limit)} per requester`,
    ])
    const columns = [
      ...['Line item', 'State', 'Window', 'Series'],
      ...['Quantity', 'Used', 'Left'].map(numeric),
      ...['Resets', 'Consumption limit'],
    ]
    const isMore = policy.lineItems.length > offset + ROWS_SHOWN
    return section(
      'list',
      `${policy.lineItems.length} line items, at revision ${policy.revision}`,
      html`${tableOf('Line items', columns, rows)}
      ${canEdit ? html`<p><a href="${editHref('')}">New line item</a></p>` : ''}
      ${pagesByOffset(view, '/line-items', { isMore })}`,
    )
  })
}
