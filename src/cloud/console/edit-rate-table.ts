/** The form for a new rate table, which begins with the rates of another one. A saved one never changes. */
import { type Html, html } from '../../html/html.ts'
import { counted } from '../../core/accounts/in-words.ts'
import { formatDecimal } from '../../core/pricing/amount.ts'
import type { RatedItem } from '../../core/rules/policy.ts'
import { CodedError } from '../../protocol/errors.ts'
import { digitsProblem } from '../../protocol/typed-number.ts'
import { rateTableBody } from '../../protocol/service/rate-tables.ts'
import { createRateTable } from '../service-api/change-rate-tables.ts'
import {
  type Edit,
  EMPTY_ROWS,
  fieldOfBody,
  fieldText,
  formPart,
  instantOf,
  keyOf,
  numberOf,
  refusalOf,
  rowsIn,
} from './edit.ts'
import { type Fields, type Problem, Inputs, TIME } from './inputs.ts'
import { type Page, type View, tableOf } from './page.ts'

export const RATE_TABLE_EDIT: Edit = {
  path: '/rate-tables/edit',
  next: '/rate-tables',
  concerns: 'ALL_CELLS',
  needsConfirmation: true,
  fieldOf: (path, fields) => inputOf(rateRows(fields), path),
  save: async ({ store, now }, fields) => {
    const parsed = rateTableBody['v1.1'].safeParse(rateTableOf(fields, rateRows(fields)))
    if (!parsed.success) throw refusalOf(parsed.error)
    await createRateTable(store, parsed.data, now)
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
  const key = keyOf(view)
  if (version === undefined) return { title, content: rateTableForm(view, { key, ...fieldsOf(series ?? '', []) }, []) }
  const table = await view.reader.rateTables.get(series ?? '', version)
  if (table === undefined) throw new CodedError('NOT_FOUND', `There is no rate table ${version} of this series.`)
  if (table.items.length <= ITEMS_MAX) {
    return { title, content: rateTableForm(view, { key, ...fieldsOf(table.series, table.items) }, []) }
  }
  const content = html`<p class="problem">
    This rate table has ${counted(table.items.length, 'item', 'items')}, and the form takes up to ${ITEMS_MAX}. Create
    the next one with
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

/** Rows without a name, a rate and a formula are not used. */
function rateRows(fields: Fields): readonly number[] {
  return rowsIn(fields, 'item', ITEMS_MAX).filter((row) =>
    ['item', 'rate', 'formula'].some((name) => fieldText(fields, `${name}.${row}`) !== undefined),
  )
}

/** The body of the service's operation. */
function rateTableOf(fields: Fields, rows: readonly number[]): unknown {
  return {
    series: fieldText(fields, 'series'),
    version: fieldText(fields, 'version'),
    effectiveFrom: instantOf(fields, 'effectiveFrom'),
    items: rows.map((row) => ({
      name: fieldText(fields, `item.${row}`),
      version: fieldText(fields, `itemVersion.${row}`),
      rate: numberOf(fields, `rate.${row}`, digitsProblem),
      formula: fieldText(fields, `formula.${row}`),
    })),
  }
}

const CELLS = new Map<PropertyKey | undefined, string>([
  ['name', 'item'],
  ['version', 'itemVersion'],
  ['rate', 'rate'],
  ['formula', 'formula'],
])

function inputOf(rows: readonly number[], path: readonly PropertyKey[]): string | undefined {
  const [field, at, key] = path
  if (field !== 'items') return fieldOfBody(path)
  if (at === undefined) return rows.length === 0 ? 'item.0' : undefined
  // An item as a whole has neither a rate nor a formula, or both.
  const row = rows[Number(at)]
  return row === undefined ? undefined : `${CELLS.get(key) ?? 'rate'}.${row}`
}

function rateTableForm(view: View, fields: Fields, problems: readonly Problem[]): Html {
  const inputs = new Inputs(fields, problems)
  const rows = rowsIn(fields, 'item', ITEMS_MAX).map((row, at) => {
    const input = (name: string, label: string, type: Html): Html =>
      inputs.input({ name: `${name}.${row}`, label: `${label} of row ${at + 1}`, isCell: true }, type)
    return [
      input('item', 'Item', TEXT),
      input('itemVersion', 'Version', SHORT),
      input('rate', 'Tokens per unit', NUMBER),
      input('formula', 'Formula', TEXT),
    ]
  })
  const columns = ['Item', 'Version', 'Tokens per unit', 'or formula'] as const
  const content = html`${inputs.input({ name: 'series', label: 'Series, can be empty' })}
    ${inputs.input({ name: 'version', label: 'New version' }, html`required`)}
    ${inputs.input({ name: 'effectiveFrom', label: 'Effective from, UTC' }, html`${TIME} required`)}
    <div class="rows">${tableOf('Rates', columns, rows)}</div>`
  const note =
    'Empty rows are omitted. The table replaces the earlier one of its series: items that it does not rate are refused. A saved rate table never changes, and can be deleted until it takes effect.'
  return formPart(view, RATE_TABLE_EDIT, { title: 'Rates', inputs, content, note })
}

const TEXT = html`size="16"`
const SHORT = html`size="6"`
const NUMBER = html`type="number" min="0" step="any" size="10"`
