import { type Html, html } from '../../html/html.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import {
  LINE_ITEM_STATES,
  type LineItemProblem,
  OVERDRAFT_TYPES,
  RESET_FREQUENCIES,
  parseLineItem,
} from '../../protocol/service/line-items.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import { mapLineItem } from '../service-api/map-line-item.ts'
import { requireLineItem } from '../storage/require-record.ts'
import type { LineItemRecord } from '../storage/records.ts'
import { withTransactions } from '../storage/with-transactions.ts'
import { type Edit, fieldText, formPart, instantOf, instantText, numberOf } from './edit.ts'
import { type Fields, type Problem, FormRefused, Inputs, TIME } from './inputs.ts'
import { type Page, type View, ofInstance } from './page.ts'

export const LINE_ITEM_EDIT: Edit = {
  path: '/line-items/edit',
  next: '/line-items',
  concerns: 'INSTANCE',
  needsConfirmation: false,
  save: async ({ store, instanceId, now }, fields) => {
    const parsed = parseLineItem('v1.1', instanceId, lineItemOf(fields))
    if (!parsed.ok) throw refusalOf(parsed.problems)
    const { activationId: id } = parsed.body
    const replaced = id === fields['lineItem'] ? undefined : await store.read((tx) => tx.lineItems.get(instanceId, id))
    if (replaced?.deleted === null) {
      const text = `${id} exists already. To change it, follow its link in the list.`
      throw new FormRefused([{ field: 'activationId', text }])
    }
    // A refused form is rolled back: it is not saved.
    await store.transaction(async (tx) => {
      const inside = withTransactions(store, (work) => work(tx))
      const mapped = await mapLineItem(inside, instanceId, parsed.body, now)
      if (mapped.outcome === 'REFUSED') throw refusalOf(mapped.problems)
    })
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
    rateTableSeries: fieldText(fields, 'rateTableSeries'),
    overdraftType: fieldText(fields, 'overdraftType'),
    overdraftLimit: numberOf(fields, 'overdraftLimit'),
    resetFrequency: fieldText(fields, 'resetFrequency'),
  }
  return {
    activationId: fieldText(fields, 'activationId'),
    state: fieldText(fields, 'state'),
    quantity: numberOf(fields, 'quantity'),
    start: instantOf(fields, 'start') ?? 0,
    end: instantOf(fields, 'end') ?? INSTANT_MAX,
    attributes: Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined)),
  }
}

/** The first problem of each input. */
function refusalOf(problems: readonly LineItemProblem[]): FormRefused {
  const first = problems.filter(({ field }, at) => problems.findIndex((each) => each.field === field) === at)
  return new FormRefused(first.map(({ field, problem }) => ({ field, text: problem })))
}

function lineItemForm(view: View, fields: Fields, problems: readonly Problem[]): Html {
  const inputs = new Inputs(fields, problems)
  const choice = (name: string, label: string, values: readonly string[]): Html =>
    inputs.select(
      { name, label },
      values.map((each) => [each, each === '' ? 'not set' : each]),
    )
  const content = html`${inputs.hidden('lineItem')}
  ${inputs.input({ name: 'activationId', label: 'Line item' }, html`required`)}
  ${choice('state', 'State', LINE_ITEM_STATES)}
  ${inputs.input({ name: 'quantity', label: 'Quantity, tokens' }, html`${WHOLE} required`)}
  ${inputs.input({ name: 'start', label: 'Start, UTC, if any' }, TIME)}
  ${inputs.input({ name: 'end', label: 'End, UTC, if any' }, TIME)} ${choice('elastic', 'Elastic', ['yes', 'no'])}
  ${inputs.input({ name: 'rateTableSeries', label: 'Series of rate tables' })}
  ${choice('overdraftType', 'Overdraft', ['', ...OVERDRAFT_TYPES])}
  ${inputs.input({ name: 'overdraftLimit', label: 'Overdraft limit, tokens' }, WHOLE)}
  ${choice('resetFrequency', 'Resets', ['', ...RESET_FREQUENCIES])}`
  const note =
    'An elastic line item in the state DEPLOYED pays for access requests. With a reset, such as MONTHLY, the quantity starts again in each period. Overdraft is what may be charged above it. Devices get the change with their next sync. Tokens that were used stay used.'
  return formPart(view, LINE_ITEM_EDIT, { title: 'Details', inputs, content, note })
}

const WHOLE = html`type="number" min="0" step="1"`
