/** The form that maps a line item, or replaces its details. */
import { type Html, html } from '../../html/html.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import { LINE_ITEM_STATES, OVERDRAFT_TYPES, RESET_FREQUENCIES } from '../../protocol/service/line-items.ts'
import { permits } from '../service-api/principal.ts'
import { requireLineItem } from '../service-api/show-line-items.ts'
import type { LineItemRecord } from '../storage/records.ts'
import { type Page, type View, formTokenField, hrefOf, ofInstance, option, section } from './page.ts'

type Fields = Readonly<Record<string, string>>

export function mayEditRules({ administrator }: Pick<View, 'administrator'>): boolean {
  return administrator.rights.some((right) => permits(right, 'rules'))
}

export function editLineItemPage(view: View): Promise<Page> {
  const { reader, query } = view
  const { lineItem } = query
  const title = lineItem === undefined ? 'New line item' : `Line item ${lineItem}`
  return ofInstance(view, title, async ({ id }) => {
    const fields = lineItem === undefined ? NEW : fieldsOf(await requireLineItem(reader, id, lineItem))
    return formPart(view, fields, [])
  })
}

/** Shows the form as it was sent. */
export function refusedLineItemPage(view: View, fields: Fields, problems: readonly string[]): Page {
  return { title: 'The line item was not saved', content: formPart(view, fields, problems) }
}

const NEW: Fields = { state: 'DEPLOYED', elastic: 'yes' }

function fieldsOf(record: LineItemRecord): Fields {
  const { overdraftLimit, given } = record
  return {
    activationId: record.id,
    state: record.state,
    quantity: given.quantity ?? formatMicro(record.quantity),
    start: new Date(record.start).toISOString().slice(0, -1),
    end: new Date(record.end).toISOString().slice(0, -1),
    elastic: record.elastic ? 'yes' : 'no',
    rateTableSeries: record.rateTableSeries ?? '',
    overdraftType: record.overdraftType ?? '',
    overdraftLimit: given.overdraftLimit ?? (overdraftLimit === null ? '' : formatMicro(overdraftLimit)),
    resetFrequency: record.resetFrequency ?? '',
  }
}

/** The body of the service's operation, with the fields as they are in the form. */
export function lineItemOf(fields: Fields): unknown {
  const text = (name: string): string | undefined => {
    const value = fields[name]?.trim() ?? ''
    return value === '' ? undefined : value
  }
  const number = (name: string): number | undefined => (text(name) === undefined ? undefined : Number(text(name)))
  const instant = (name: string): number | undefined => {
    const value = text(name)
    return value === undefined ? undefined : Date.parse(`${value}Z`)
  }
  const attributes = {
    elastic: fields['elastic'] === 'yes',
    rateTableSeries: text('rateTableSeries'),
    overdraftType: text('overdraftType'),
    overdraftLimit: number('overdraftLimit'),
    resetFrequency: text('resetFrequency'),
  }
  return {
    activationId: text('activationId'),
    state: text('state'),
    quantity: number('quantity'),
    start: instant('start'),
    end: instant('end'),
    attributes: Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined)),
  }
}

function formPart(view: View, fields: Fields, problems: readonly string[]): Html {
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
      >${label} <input type="datetime-local" step="0.001" name="${name}" value="${value(name)}" required
    /></label>`
  return section(
    'edit',
    'Details',
    html`${problems.length === 0 ? '' : html`<div class="problem" role="alert">${problems.map((each) => html`<p>${each}</p>`)}</div>`}
      <form method="post" action="${hrefOf(view, '/line-items/edit')}">
        ${formTokenField(view)}
        <label>Line item <input name="activationId" value="${value('activationId')}" required /></label>
        ${choice('state', 'State', LINE_ITEM_STATES)}
        <label
          >Quantity, tokens <input type="number" min="0" step="1" name="quantity" value="${value('quantity')}" required
        /></label>
        ${time('start', 'Start, UTC')} ${time('end', 'End, UTC')} ${choice('elastic', 'Elastic', ['yes', 'no'])}
        <label>Series of rate tables <input name="rateTableSeries" value="${value('rateTableSeries')}" /></label>
        ${choice('overdraftType', 'Overdraft', ['', ...OVERDRAFT_TYPES])}
        <label
          >Overdraft limit, tokens
          <input type="number" min="0" step="1" name="overdraftLimit" value="${value('overdraftLimit')}"
        /></label>
        ${choice('resetFrequency', 'Resets', ['', ...RESET_FREQUENCIES])}
        <button>Save</button>
        <a href="${hrefOf(view, '/line-items')}">Cancel</a>
      </form>
      <p class="soft">Devices get the change with their next sync. Tokens that were used stay used.</p>`,
  )
}
