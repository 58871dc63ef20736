import { type Html, formValue, html } from '../../html/html.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import {
  LINE_ITEM_STATES,
  OVERDRAFT_TYPES,
  RESET_FREQUENCIES,
  parseLineItem,
} from '../../protocol/service/line-items.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import { mapLineItem } from '../service-api/map-line-item.ts'
import { requireLineItem } from '../service-api/show-line-items.ts'
import type { LineItemRecord } from '../storage/records.ts'
import { type Edit, type Fields, formPart, instantOf, instantText, numberOf, textOf } from './edit.ts'
import { type Page, type View, ofInstance, option } from './page.ts'

export const LINE_ITEM_EDIT: Edit = {
  path: '/line-items/edit',
  next: '/line-items',
  isOfInstance: true,
  needsConfirmation: false,
  save: async ({ store, instanceId, now }, fields) => {
    const parsed = parseLineItem('v1.1', instanceId, lineItemOf(fields))
    if (!parsed.ok) return parsed.problems
    const { activationId: id } = parsed.body
    const replaced = id === fields['lineItem'] ? undefined : await store.read((tx) => tx.lineItems.get(instanceId, id))
    if (replaced?.deleted === null)
      return [`There is a line item ${id} already. To change it, follow its link in the list.`]
    const mapped = await mapLineItem(store, instanceId, parsed.body, now)
    return mapped.outcome === 'REFUSED' ? mapped.problems : []
  },
  refused: async (view, fields, problems) => ({
    title: 'The line item was not saved',
    content: lineItemForm(view, fields, problems),
  }),
}

export function editLineItemPage(view: View): Promise<Page> {
  const { reader, query } = view
  const { lineItem } = query
  const title = lineItem === undefined ? 'New line item' : `Line item ${lineItem}`
  return ofInstance(view, title, async ({ id }) => {
    const fields = lineItem === undefined ? NEW : fieldsOf(await requireLineItem(reader, id, lineItem))
    return lineItemForm(view, fields, [])
  })
}

const NEW: Fields = { state: 'DEPLOYED', elastic: 'yes' }

function fieldsOf(record: LineItemRecord): Fields {
  const { overdraftLimit, given } = record
  return {
    lineItem: record.id,
    activationId: record.id,
    state: record.state,
    quantity: given.quantity ?? formatMicro(record.quantity),
    start: record.start === 0 ? '' : instantText(record.start),
    end: record.end === INSTANT_MAX ? '' : instantText(record.end),
    elastic: record.elastic ? 'yes' : 'no',
    rateTableSeries: record.rateTableSeries ?? '',
    overdraftType: record.overdraftType ?? '',
    overdraftLimit: given.overdraftLimit ?? (overdraftLimit === null ? '' : formatMicro(overdraftLimit)),
    resetFrequency: record.resetFrequency ?? '',
  }
}

function lineItemOf(fields: Fields): unknown {
  const attributes = {
    elastic: fields['elastic'] === 'yes',
    rateTableSeries: textOf(fields, 'rateTableSeries'),
    overdraftType: textOf(fields, 'overdraftType'),
    overdraftLimit: numberOf(fields, 'overdraftLimit'),
    resetFrequency: textOf(fields, 'resetFrequency'),
  }
  return {
    activationId: textOf(fields, 'activationId'),
    state: textOf(fields, 'state'),
    quantity: numberOf(fields, 'quantity'),
    start: instantOf(fields, 'start') ?? 0,
    end: instantOf(fields, 'end') ?? INSTANT_MAX,
    attributes: Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined)),
  }
}

function lineItemForm(view: View, fields: Fields, problems: readonly string[]): Html {
  const value = (name: string): string => fields[name] ?? ''
  const choice = (name: string, label: string, values: readonly string[]): Html =>
    html`<label>
      ${label}
      <select name="${name}">
        ${values.map((each) => option(each, each === '' ? 'not set' : each, value(name)))}
      </select>
    </label>`
  const time = (name: string, label: string): Html =>
    html`<label
      >${label} <input type="datetime-local" step="0.001" name="${name}" value="${formValue(value(name))}"
    /></label>`
  const content = html`<input type="hidden" name="lineItem" value="${formValue(value('lineItem'))}" />
    <label>Line item <input name="activationId" value="${formValue(value('activationId'))}" required /></label>
    ${choice('state', 'State', LINE_ITEM_STATES)}
    <label
      >Quantity, tokens
      <input type="number" min="0" step="1" name="quantity" value="${formValue(value('quantity'))}" required
    /></label>
    ${time('start', 'Start, UTC, if any')} ${time('end', 'End, UTC, if any')}
    ${choice('elastic', 'Elastic', ['yes', 'no'])}
    <label>Series of rate tables <input name="rateTableSeries" value="${formValue(value('rateTableSeries'))}" /></label>
    ${choice('overdraftType', 'Overdraft', ['', ...OVERDRAFT_TYPES])}
    <label
      >Overdraft limit, tokens
      <input type="number" min="0" step="1" name="overdraftLimit" value="${formValue(value('overdraftLimit'))}"
    /></label>
    ${choice('resetFrequency', 'Resets', ['', ...RESET_FREQUENCIES])}`
  const note = 'Devices get the change with their next sync. Tokens that were used stay used.'
  return formPart(view, LINE_ITEM_EDIT, { title: 'Details', problems, content, note })
}
