/** The form for a new instance. It has a key, so that an instance is created once if the form is sent twice. */
import { type Html, html } from '../../html/html.ts'
import { instanceBody } from '../../protocol/service/instances.ts'
import { CodedError } from '../../protocol/errors.ts'
import { createInstance } from '../service-api/create-instance.ts'
import { claimOf } from '../service-api/idempotency-key.ts'
import { type Edit, formPart, refusalOf, textOf } from './edit.ts'
import { type Fields, type Problem, Inputs } from './inputs.ts'
import type { Page, View } from './page.ts'

export const INSTANCE_EDIT: Edit = {
  path: '/instances/edit',
  next: '',
  concerns: 'ACCOUNT',
  needsConfirmation: false,
  save: async ({ store, editor, otherCellOf, newId, now, present }, fields) => {
    const { key = '' } = fields
    const parsed = instanceBody.safeParse({
      shortName: textOf(fields, 'shortName'),
      accountId: textOf(fields, 'accountId'),
    })
    if (!parsed.success) return [refusalOf(parsed.error, ([field]) => String(field))]
    const { shortName, accountId } = parsed.data
    const cell = await otherCellOf(accountId)
    if (cell !== null)
      return [{ field: 'accountId', text: `belongs to the cell ${cell}. Use the console of that cell.` }]
    const request = [shortName, accountId]
    const once = claimOf(editor, { concerned: 'instances', key, request, created: present })
    try {
      await createInstance(store, { id: newId(), shortName, accountId }, now, once)
      return []
    } catch (error) {
      if (error instanceof CodedError && error.code === 'IDEMPOTENCY_CONFLICT') return [CREATED]
      throw error
    }
  },
  refused: async (view, fields, problems) => ({
    title: 'The instance was not created',
    content: instanceForm(view, fields, problems),
  }),
}

const CREATED: Problem = {
  field: null,
  text: 'This form has already created an instance with another name or account. For one more, open a new form in the overview.',
}

export async function editInstancePage(view: View): Promise<Page> {
  return { title: 'New instance', content: instanceForm(view, { key: view.newId() }, []) }
}

function instanceForm(view: View, fields: Fields, problems: readonly Problem[]): Html {
  const inputs = new Inputs(fields, problems)
  const content = html`${inputs.hidden('key')} ${inputs.input({ name: 'shortName', label: 'Name' }, html`required`)}
  ${inputs.input({ name: 'accountId', label: 'Customer account' }, html`required`)}`
  const note = 'An instance cannot be renamed or deleted. The first one of an account is its default instance.'
  return formPart(view, INSTANCE_EDIT, { title: 'Details', inputs, content, note })
}
