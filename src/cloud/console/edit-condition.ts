/** The form for a condition: the values of one property, or the JSON of the API for anything else. */
import type { z } from 'zod'
import { type Html, html } from '../../html/html.ts'
import { CodedError, firstIssue, firstProblem } from '../../protocol/errors.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { conditionsBody } from '../../protocol/service/conditions.ts'
import { patchConditions } from '../service-api/change-conditions.ts'
import type { ConditionNode } from '../storage/records.ts'
import { type Edit, fieldOfBody, fieldText, formPart, keyOf, refusalOf } from './edit.ts'
import { type Fields, type Problem, FormRefused, Inputs } from './inputs.ts'
import { type Page, type View, hrefOf, ofInstance } from './page.ts'

export const CONDITION_EDIT: Edit = {
  path: '/rules/condition',
  next: '/rules',
  concerns: 'INSTANCE',
  needsConfirmation: true,
  fieldOf: ([at, ...path], { json }) =>
    at !== undefined && json !== undefined && path[0] !== 'name' ? 'json' : fieldOfBody(path),
  save: async ({ store, newId, instanceId, now }, fields) => {
    if (fields['json'] !== undefined && parseJson(fields['json']) === undefined)
      throw new FormRefused([{ field: 'json', text: 'is not JSON, or is nested too deeply' }])
    const parsed = conditionsBody.safeParse([conditionOf(fields)])
    if (!parsed.success) throw refusalIn(parsed.error, fields)
    await patchConditions({ store, newId }, instanceId, parsed.data, now)
  },
  refused: async (view, fields, problems) =>
    ofInstance(view, 'The condition was not saved', async () => conditionForm(view, fields, problems)),
}

export function editConditionPage(view: View): Promise<Page> {
  const { reader, query } = view
  const { condition, as } = query
  return ofInstance(view, condition === undefined ? 'New condition' : 'Condition', async ({ id }) => {
    if (condition === undefined) {
      const key = keyOf(view)
      return conditionForm(view, as === 'json' ? { key, json: EXAMPLE } : { key }, [])
    }
    const node = await reader.conditions.get(id, condition)
    if (node === undefined) throw new CodedError('NOT_FOUND', `There is no condition ${condition}.`)
    return conditionForm(view, fieldsOf(node), [])
  })
}

const EXAMPLE = JSON.stringify(
  { operator: 'NOT', condition: { operator: 'IN', property: 'department', values: ['sales'] } },
  null,
  2,
)

function fieldsOf(node: ConditionNode): Fields {
  const { id, name, ...rest } = node
  const labeled = { id, name: name ?? '' }
  if (rest.operator === 'IN' && rest.values.every((value) => value !== '' && value === value.trim() && isLine(value))) {
    return { ...labeled, property: rest.property, values: rest.values.join('\n') }
  }
  return { ...labeled, json: JSON.stringify(rest, null, 2) }
}

function isLine(value: string): boolean {
  return !/[\r\n]/.test(value)
}

function conditionOf(fields: Fields): unknown {
  const labeled = { id: fieldText(fields, 'id'), name: fieldText(fields, 'name') }
  const { json } = fields
  if (json !== undefined) {
    const given = parseJson(json)
    return typeof given === 'object' && given !== null ? { ...withoutNull(given), ...labeled } : given
  }
  const values = (fields['values'] ?? '')
    .split('\n')
    .map((value) => value.trim())
    .filter((value) => value !== '')
  return { ...labeled, operator: 'IN', property: fieldText(fields, 'property'), values }
}

/** A problem in the JSON keeps its path, which leads to the place in the text, and one of a value its line. */
function refusalIn(error: z.ZodError, { json }: Fields): Error {
  const { path, message } = firstIssue(error)
  const [, key, line] = path
  if (json !== undefined && key !== 'name')
    return new FormRefused([{ field: 'json', text: firstProblem(error, '').replace(/^\[0\](\.|: )?/, '') }])
  if (key === 'values' && typeof line === 'number')
    return new FormRefused([{ field: 'values', text: `value ${line + 1} ${message}` }])
  return refusalOf(error)
}

/** The stored form of inner conditions has a null name, where the body has none. */
function withoutNull(given: object): object {
  return JSON.parse(JSON.stringify(given), (key, value: unknown) =>
    key === 'name' && value === null ? undefined : value,
  ) as object
}

function conditionForm(view: View, fields: Fields, problems: readonly Problem[]): Html {
  const inputs = new Inputs(fields, problems)
  const isNew = inputs.value('id') === ''
  const part =
    fields['json'] === undefined
      ? html`${inputs.input({ name: 'property', label: 'Property of the requester' }, html`required`)}
        ${inputs.area({ name: 'values', label: 'Values, one on each line' }, html`required`)}`
      : inputs.area(
          { name: 'json', label: 'Condition as JSON, with the operators AND, OR, NOT and IN' },
          html`rows="14" spellcheck="false" required`,
        )
  const content = html`${inputs.hidden('id')} ${inputs.input({ name: 'name', label: 'Name' })} ${part}`
  const note = 'A condition is met if the dictionary of the requester has one of the values.'
  return html`${formPart(view, CONDITION_EDIT, { title: isNew ? 'New' : 'Change', inputs, content, note })}
  ${
    isNew && fields['json'] === undefined
      ? html`<p>
          <a href="${hrefOf(view, CONDITION_EDIT.path, { as: 'json', key: inputs.value('key') })}"
            >Combine conditions with AND, OR and NOT</a
          >
        </p>`
      : ''
  }`
}
