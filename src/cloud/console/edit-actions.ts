/** The form for the ordered actions of a line item. An action that stays keeps its use. */
import { type Html, html } from '../../html/html.ts'
import { counted } from '../../core/accounts/in-words.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import type { Action } from '../../core/rules/policy.ts'
import { replacedActionsBody } from '../../protocol/service/actions.ts'
import { replaceActions } from '../service-api/change-actions.ts'
import { requireLineItem } from '../storage/require-record.ts'
import { type Edit, EMPTY_ROWS, fieldText, formPart, numberOf, refusalOf, rowsIn } from './edit.ts'
import { type Fields, type Problem, FormRefused, Inputs } from './inputs.ts'
import { type Page, type View, ROWS_SHOWN, ofInstance, tableOf } from './page.ts'

export const ACTIONS_EDIT: Edit = {
  path: '/rules/edit',
  next: '/rules',
  concerns: 'INSTANCE',
  needsConfirmation: true,
  fieldOf: ([at, key], fields) => inputOf(actionRows(fields)[Number(at)], key),
  save: async ({ store, newId, instanceId, now }, fields) => {
    const unused = unusedRow(fields)
    if (unused !== undefined)
      throw new FormRefused([{ field: `effect.${unused}`, text: 'choose an effect, or empty the row' }])
    const rows = actionRows(fields)
    const unplaced = rows.find((row) => !Number.isFinite(positionOf(fields, row)))
    if (unplaced !== undefined) throw new FormRefused([{ field: `position.${unplaced}`, text: 'must be a number' }])
    const parsed = replacedActionsBody.safeParse(rows.map((row) => actionOf(fields, row)))
    if (!parsed.success) throw refusalOf(parsed.error)
    await replaceActions({ store, newId }, { instanceId, lineItemId: fields['lineItem'] ?? '' }, parsed.data, now)
  },
  refused: async (view, fields, problems) =>
    ofInstance(view, 'The actions were not saved', async ({ id }) => actionsForm(view, id, fields, problems)),
}

/** Each row lists the conditions to choose from. */
const CONDITIONS_SHOWN_MAX = 200

export function editActionsPage(view: View): Promise<Page> {
  const { reader, query } = view
  const { lineItem = '' } = query
  return ofInstance(view, `Actions of ${lineItem}`, async ({ id }) => {
    await requireLineItem(reader, id, lineItem)
    const actions = await reader.actions.of(id, lineItem)
    if (actions.length <= ROWS_SHOWN) return actionsForm(view, id, fieldsOf(lineItem, actions), [])
    return tooLarge(`This line item has ${actions.length} actions, and the form takes up to ${ROWS_SHOWN}.`)
  })
}

function tooLarge(problem: string): Html {
  return html`<p class="problem">${problem} Change the actions with <code>tallygate rules</code>.</p>`
}

function fieldsOf(lineItem: string, actions: readonly Action[]): Fields {
  const rows = [...actions, ...Array.from({ length: EMPTY_ROWS }, () => undefined)].map((action, row) => ({
    [`id.${row}`]: action?.id ?? '',
    [`position.${row}`]: String(row + 1),
    [`name.${row}`]: action?.name ?? '',
    [`condition.${row}`]: action?.conditionId ?? '',
    [`effect.${row}`]: action?.effect ?? '',
    [`allocation.${row}`]: action === undefined || action.allocation === null ? '' : formatMicro(action.allocation),
  }))
  return Object.assign({ lineItem }, ...rows) as Fields
}

/** In the order in which they decide. Rows without an effect are removed, or were not used. */
function actionRows(fields: Fields): readonly number[] {
  return rowsIn(fields, 'effect', ROWS_SHOWN)
    .filter((row) => fieldText(fields, `effect.${row}`) !== undefined)
    .sort((one, other) => positionOf(fields, one) - positionOf(fields, other))
}

function positionOf(fields: Fields, row: number): number {
  return numberOf(fields, `position.${row}`) ?? Number.NaN
}

/** As in the body of the service's operation. */
function actionOf(fields: Fields, row: number): Readonly<Record<string, unknown>> {
  return {
    id: fieldText(fields, `id.${row}`),
    name: fieldText(fields, `name.${row}`),
    conditionId: fieldText(fields, `condition.${row}`),
    action: fieldText(fields, `effect.${row}`),
    allocation: numberOf(fields, `allocation.${row}`),
  }
}

const INPUTS = new Map<PropertyKey | undefined, string>([
  ['name', 'name'],
  ['conditionId', 'condition'],
  ['action', 'effect'],
  ['allocation', 'allocation'],
])

function inputOf(row: number | undefined, key: PropertyKey | undefined): string | undefined {
  const name = INPUTS.get(key)
  return row === undefined || name === undefined ? undefined : `${name}.${row}`
}

/** A new action without an effect would be left out, and requests would be allowed that it denies. */
function unusedRow(fields: Fields): number | undefined {
  const filled = ['name', 'condition', 'allocation']
  return rowsIn(fields, 'effect', ROWS_SHOWN).find((row) => {
    const isNew = ['id', 'effect'].every((name) => fieldText(fields, `${name}.${row}`) === undefined)
    return isNew && filled.some((name) => fieldText(fields, `${name}.${row}`) !== undefined)
  })
}

async function actionsForm(
  view: View,
  instanceId: string,
  fields: Fields,
  problems: readonly Problem[],
): Promise<Html> {
  const { conditions: stored } = view.reader
  const { count } = await stored.size(instanceId)
  if (count > CONDITIONS_SHOWN_MAX) {
    return tooLarge(
      `This instance has ${counted(count, 'condition', 'conditions')}, and the form takes up to ${CONDITIONS_SHOWN_MAX}.`,
    )
  }
  const conditions = await stored.list(instanceId)
  const inputs = new Inputs(fields, problems)
  const rows = rowsIn(fields, 'effect', ROWS_SHOWN).map((row, at) => {
    const cell = (name: string, label: string) =>
      ({ name: `${name}.${row}`, label: `${label} of action ${at + 1}`, isCell: true }) as const
    const isNew = inputs.value(`id.${row}`) === ''
    return [
      html`${inputs.hidden(`id.${row}`)}${inputs.input(cell('position', 'Position'), POSITION)}`,
      inputs.input(cell('name', 'Name'), TEXT),
      inputs.select(cell('condition', 'Condition'), [
        ['', 'if no other action decides'],
        ...conditions.map(({ id, name }) => [id, name ?? id] as const),
      ]),
      inputs.select(cell('effect', 'Effect'), [
        ['ALLOW', 'allow'],
        ['DENY', 'deny'],
        ['', isNew ? 'not used' : 'remove'],
      ]),
      inputs.input(cell('allocation', 'Allocation'), AMOUNT),
    ]
  })
  const columns = ['Position', 'Name', 'Condition', 'Effect', 'Allocation, tokens'] as const
  const content = html`${inputs.hidden('lineItem')}
    <div class="rows">${tableOf('Actions', columns, rows)}</div>`
  const note = 'The first action whose condition is met decides. A removed action loses its use.'
  return formPart(view, ACTIONS_EDIT, { title: 'In the order in which they decide', inputs, content, note })
}

const TEXT = html`size="12"`
const POSITION = html`type="number" min="1" step="1" size="3" required`
const AMOUNT = html`type="number" min="0" step="0.000001" size="10"`
