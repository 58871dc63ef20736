/** The form for a new rate table, which begins with the rates of another one. A saved one never changes. */
import { type Html, formValue, html } from '../../html/html.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import type { RatedItem } from '../../core/rules/policy.ts'
import { CodedError, firstProblem } from '../../protocol/errors.ts'
import { rateTableBody } from '../../protocol/service/rate-tables.ts'
import { createRateTable } from '../service-api/change-rate-tables.ts'
import { type Edit, type Fields, EMPTY_ROWS, formPart, instantOf, numberOf, rowInput, rowsIn, textOf } from './edit.ts'
import { type Page, type View, tableOf } from './page.ts'

export const RATE_TABLE_EDIT: Edit = {
  path: '/rate-tables/edit',
  next: '/rate-tables',
  isOfInstance: false,
  needsConfirmation: true,
  save: async ({ store, now }, fields) => {
    const parsed = rateTableBody['v1.1'].safeParse(rateTableOf(fields))
    if (!parsed.success) return [firstProblem(parsed.error)]
    await createRateTable(store, parsed.data, now)
    return []
  },
  refused: async (view, fields, problems) => ({
    title: 'The rate table was not saved',
    content: rateTableForm(view, fields, problems),
  }),
}

const ITEMS_MAX = 100

export async function editRateTablePage(view: View): Promise<Page> {
  const { series, version } = view.query
  const title = 'New rate table'
  if (version === undefined) return { title, content: rateTableForm(view, fieldsOf(series ?? '', []), []) }
  const table = await view.reader.rateTables.get(series ?? '', version)
  if (table === undefined) throw new CodedError('NOT_FOUND', `There is no rate table ${version} of this series.`)
  if (table.items.length <= ITEMS_MAX) {
    return { title, content: rateTableForm(view, fieldsOf(table.series, table.items), []) }
  }
  const content = html`<p class="problem">
    This rate table has ${table.items.length} items, and the form takes up to ${ITEMS_MAX}. Create the next one with
    <code>tallygate rate-tables</code>.
  </p>`
  return { title, content }
}

function fieldsOf(series: string, items: readonly RatedItem[]): Fields {
  const rows = [...items, ...Array.from({ length: EMPTY_ROWS }, () => undefined)].map((item, row) => ({
    [`item.${row}`]: item?.name ?? '',
    [`itemVersion.${row}`]: item?.version ?? '',
    [`rate.${row}`]: item?.rate === undefined ? '' : formatDecimal(item.rate),
    [`formula.${row}`]: item?.formula ?? '',
  }))
  return Object.assign({ series }, ...rows) as Fields
}

/** The body of the service's operation. Rows without a name, a rate and a formula are not used. */
function rateTableOf(fields: Fields): unknown {
  return {
    series: textOf(fields, 'series'),
    version: textOf(fields, 'version'),
    effectiveFrom: instantOf(fields, 'effectiveFrom'),
    items: rowsIn(fields, 'item', ITEMS_MAX)
      .filter((row) => ['item', 'rate', 'formula'].some((name) => textOf(fields, `${name}.${row}`) !== undefined))
      .map((row) => ({
        name: textOf(fields, `item.${row}`),
        version: textOf(fields, `itemVersion.${row}`),
        rate: numberOf(fields, `rate.${row}`),
        formula: textOf(fields, `formula.${row}`),
      })),
  }
}

function rateTableForm(view: View, fields: Fields, problems: readonly string[]): Html {
  const value = (name: string): Html => formValue(fields[name] ?? '')
  const rows = rowsIn(fields, 'item', ITEMS_MAX).map((row, at) => {
    const input = (name: string, label: string, type: Html): Html =>
      rowInput(fields, `${name}.${row}`, `${label} of row ${at + 1}`, type)
    return [
      input('item', 'Item', TEXT),
      input('itemVersion', 'Version', SHORT),
      input('rate', 'Rate', NUMBER),
      input('formula', 'Formula', TEXT),
    ]
  })
  const columns = ['Item', 'Version', 'Tokens per unit', 'or formula'] as const
  const content = html`<label>Series, can be empty <input name="series" value="${value('series')}" /></label>
    <label>New version <input name="version" value="${value('version')}" required /></label>
    <label
      >Effective from, UTC
      <input type="datetime-local" step="0.001" name="effectiveFrom" value="${value('effectiveFrom')}" required
    /></label>
    <div class="rows">${tableOf('Rates', columns, rows)}</div>`
  const note = 'Empty rows are omitted. A saved rate table never changes, and can be deleted until it takes effect.'
  return formPart(view, RATE_TABLE_EDIT, { title: 'Rates', problems, content, note })
}

const TEXT = html`size="16"`
const SHORT = html`size="6"`
const NUMBER = html`type="number" min="0" step="any" size="10"`
