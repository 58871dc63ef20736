/** The form for the ordered actions of a line item. An action that stays keeps its use. */
import { type Html, formValue, html } from '../../html/html.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import type { Action } from '../../core/rules/policy.ts'
import { firstProblem } from '../../protocol/errors.ts'
import { replacedActionsBody } from '../../protocol/service/actions.ts'
import { replaceActions } from '../service-api/change-actions.ts'
import { requireLineItem } from '../service-api/show-line-items.ts'
import { type Edit, type Fields, EMPTY_ROWS, formPart, numberOf, rowInput, rowsIn, textOf } from './edit.ts'
import { type Page, type View, ROWS_SHOWN, ofInstance, option, tableOf } from './page.ts'

export const ACTIONS_EDIT: Edit = {
  path: '/rules/edit',
  next: '/rules',
  isOfInstance: true,
  needsConfirmation: true,
  save: async ({ store, newId, instanceId, now }, fields) => {
    const unused = unusedRow(fields)
    if (unused !== undefined) return [`Choose an effect in row ${unused}, or empty the row.`]
    const parsed = replacedActionsBody.safeParse(actionsOf(fields))
    if (!parsed.success) return [firstProblem(parsed.error)]
    await replaceActions({ store, newId }, { instanceId, lineItemId: fields['lineItem'] ?? '' }, parsed.data, now)
    return []
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

/** The body of the service's operation. Rows without an effect are removed, or were not used. */
function actionsOf(fields: Fields): unknown {
  return rowsIn(fields, 'effect', ROWS_SHOWN)
    .filter((row) => textOf(fields, `effect.${row}`) !== undefined)
    .sort((one, other) => (numberOf(fields, `position.${one}`) ?? 0) - (numberOf(fields, `position.${other}`) ?? 0))
    .map((row) => ({
      id: textOf(fields, `id.${row}`),
      name: textOf(fields, `name.${row}`),
      conditionId: textOf(fields, `condition.${row}`),
      action: textOf(fields, `effect.${row}`),
      allocation: numberOf(fields, `allocation.${row}`),
    }))
}

/** A new action without an effect would be left out, and requests would be allowed that it denies. */
function unusedRow(fields: Fields): number | undefined {
  const filled = ['name', 'condition', 'allocation']
  const at = rowsIn(fields, 'effect', ROWS_SHOWN).findIndex((row) => {
    const isNew = ['id', 'effect'].every((name) => textOf(fields, `${name}.${row}`) === undefined)
    return isNew && filled.some((name) => textOf(fields, `${name}.${row}`) !== undefined)
  })
  return at === -1 ? undefined : at + 1
}

async function actionsForm(view: View, instanceId: string, fields: Fields, problems: readonly string[]): Promise<Html> {
  const { conditions: stored } = view.reader
  const { count } = await stored.size(instanceId)
  if (count > CONDITIONS_SHOWN_MAX) {
    return tooLarge(`This instance has ${count} conditions, and the form takes up to ${CONDITIONS_SHOWN_MAX}.`)
  }
  const conditions = await stored.list(instanceId)
  const rows = rowsIn(fields, 'effect', ROWS_SHOWN).map((row, at) => {
    const value = (name: string): string => fields[`${name}.${row}`] ?? ''
    const input = (name: string, label: string, type: Html): Html =>
      rowInput(fields, `${name}.${row}`, `${label} of action ${at + 1}`, type)
    const isNew = value('id') === ''
    return [
      html`<input type="hidden" name="id.${row}" value="${value('id')}" />${input('position', 'Position', POSITION)}`,
      input('name', 'Name', TEXT),
      html`<select name="condition.${row}" aria-label="Condition of action ${at + 1}">
        ${option('', 'if no other action decides', value('condition'))}
        ${conditions.map(({ id, name }) => option(id, name ?? id, value('condition')))}
      </select>`,
      html`<select name="effect.${row}" aria-label="Effect of action ${at + 1}">
        ${option('ALLOW', 'allow', value('effect'))} ${option('DENY', 'deny', value('effect'))}
        ${option('', isNew ? 'not used' : 'remove', value('effect'))}
      </select>`,
      input('allocation', 'Allocation', AMOUNT),
    ]
  })
  const columns = ['Position', 'Name', 'Condition', 'Effect', 'Allocation, tokens'] as const
  const content = html`<input type="hidden" name="lineItem" value="${formValue(fields['lineItem'] ?? '')}" />
    <div class="rows">${tableOf('Actions', columns, rows)}</div>`
  const note = 'The first action whose condition is met decides. A removed action loses its use.'
  return formPart(view, ACTIONS_EDIT, { title: 'In the order in which they decide', problems, content, note })
}

const TEXT = html`size="12"`
const POSITION = html`type="number" min="1" step="1" size="3"`
const AMOUNT = html`type="number" min="0" step="0.000001" size="10"`
