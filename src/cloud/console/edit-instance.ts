import { type Html, html } from '../../html/html.ts'
import { instanceBody } from '../../protocol/service/instances.ts'
import { createInstance } from '../service-api/create-instance.ts'
import { type Edit, fieldText, formPart, keyOf, refusalOf } from './edit.ts'
import { type Fields, type Problem, FormRefused, Inputs } from './inputs.ts'
import type { Page, View } from './page.ts'

export const INSTANCE_EDIT: Edit = {
  path: '/instances/edit',
  next: '',
  concerns: 'ACCOUNT',
  needsConfirmation: false,
  save: async ({ store, otherCellOf, newId, now }, fields) => {
    const parsed = instanceBody.safeParse({
      shortName: fieldText(fields, 'shortName'),
      accountId: fieldText(fields, 'accountId'),
    })
    if (!parsed.success) throw refusalOf(parsed.error)
    const { shortName, accountId } = parsed.data
    const cell = await otherCellOf(accountId)
    if (cell !== null) {
      const text = `belongs to the cell ${cell}. Use the console of that cell.`
      throw new FormRefused([{ field: 'accountId', text }])
    }
    await createInstance(store, { id: newId(), shortName, accountId }, now)
  },
  refused: async (view, fields, problems) => ({
    title: 'The instance was not created',
    content: instanceForm(view, fields, problems),
  }),
}

export async function editInstancePage(view: View): Promise<Page> {
  return { title: 'New instance', content: instanceForm(view, { key: keyOf(view) }, []) }
}

function instanceForm(view: View, fields: Fields, problems: readonly Problem[]): Html {
  const inputs = new Inputs(fields, problems)
  const content = html`${inputs.input({ name: 'shortName', label: 'Name' }, html`required`)}
  ${inputs.input({ name: 'accountId', label: 'Customer account' }, html`required`)}`
  const note = 'An instance cannot be renamed or deleted. The first one of an account is its default instance.'
  return formPart(view, INSTANCE_EDIT, { title: 'Details', inputs, content, note })
}
