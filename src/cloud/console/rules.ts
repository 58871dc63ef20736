import { grouped, tokensInWords } from '../../core/accounts/in-words.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import type { Condition, NamedCondition } from '../../core/rules/policy.ts'
import { mayEdit, newFormHref } from './edit.ts'
import { ACTIONS_EDIT } from './edit-actions.ts'
import { CONDITION_EDIT } from './edit-condition.ts'
import { actionUses } from '../service-api/show-line-items.ts'
import { type Page, type View, ROWS_SHOWN, hrefOf, offsetOf, ofInstance, pagesByOffset, tableOf } from './page.ts'
import { searchLineItems } from './search-line-items.ts'

export function rulesPage(view: View): Promise<Page> {
  const { reader, query } = view
  return ofInstance(view, 'Rules of access', async (instance, { policy }) => {
    const offset = offsetOf(query['from'])
    const canEdit = mayEdit(view, ACTIONS_EDIT)
    const { search, found, form } = searchLineItems(view, '/rules', policy.lineItems)
    const shown = found.slice(offset, offset + ROWS_SHOWN)
    const conditions = new Map(policy.conditions.map((condition) => [condition.id, condition]))
    const uses = await actionUses(
      reader,
      instance.id,
      shown.map(({ id, actions }) => ({ lineItemId: id, actions: actions.slice(0, ROWS_SHOWN) })),
    )
    const parts = uses.map(({ lineItemId, actions }, index): Html => {
      const rows = actions.map(({ action, used }) => [
        action.name ?? action.id,
        action.conditionId === null ? 'if no other action decides' : conditionOf(conditions.get(action.conditionId)),
        action.effect === 'ALLOW' ? 'allow' : 'deny',
        action.allocation === null
          ? 'none'
          : `${tokensInWords(used ?? 0n)} of ${tokensInWords(action.allocation)} used`,
      ])
      const columns = ['Action', 'Condition', 'Effect', 'Allocation'] as const
      const body =
        rows.length === 0
          ? html`<p class="soft">No actions: all requesters are allowed.</p>`
          : tableOf(`Actions of ${lineItemId}`, columns, rows)
      const change = html`<p>
        <a href="${hrefOf(view, ACTIONS_EDIT.path, { lineItem: lineItemId })}">Change actions</a>
      </p>`
      return section(`line-item-${index}`, lineItemId, html`${body} ${canEdit ? change : ''}`)
    })
    const isMore = found.length > offset + ROWS_SHOWN
    const none = html`<p class="soft">
      ${policy.lineItems.length === 0 ? 'The instance has no line items.' : 'No line item is found.'}
    </p>`
    return html`${form} ${parts.length === 0 ? none : parts}
    ${pagesByOffset(view, '/rules', { query: { search }, isMore })} ${conditionsPart(view, policy.conditions)}`
  })
}

function conditionsPart(view: View, conditions: readonly NamedCondition[]): Html {
  const canEdit = mayEdit(view, CONDITION_EDIT)
  const rows = conditions.slice(0, CONDITIONS_SHOWN).map((condition) => {
    const name = condition.name ?? condition.id
    const href = hrefOf(view, CONDITION_EDIT.path, { condition: condition.id })
    return [canEdit ? html`<a href="${href}">${name}</a>` : name, conditionInWords(condition)]
  })
  const rest = conditions.length - rows.length
  return section(
    'conditions',
    'Conditions',
    html`${tableOf('Conditions', ['Condition', 'Is met if'], rows)}
    ${rest > 0 ? html`<p class="soft">And ${grouped(rest)} more: <code>tallygate conditions list</code>.</p>` : ''}
    ${canEdit ? html`<p><a href="${newFormHref(view, CONDITION_EDIT)}">New condition</a></p>` : ''}`,
  )
}

const CONDITIONS_SHOWN = 200

function conditionOf(condition: NamedCondition | undefined): string {
  if (condition === undefined) return 'a missing condition: refuses'
  return `${condition.name === null ? '' : `${condition.name}: `}${conditionInWords(condition)}`
}

const VALUES_SHOWN = 10

function conditionInWords(condition: Condition): string {
  switch (condition.operator) {
    case 'NOT':
      return `not (${conditionInWords(condition.condition)})`
    case 'IN': {
      const { property, values } = condition
      const more = values.length > VALUES_SHOWN ? ` and ${grouped(values.length - VALUES_SHOWN)} more` : ''
      return `${property} is ${values.slice(0, VALUES_SHOWN).join(' or ')}${more}`
    }
    default:
      return condition.conditions
        .map((part) => (part.operator === 'IN' ? conditionInWords(part) : `(${conditionInWords(part)})`))
        .join(condition.operator === 'AND' ? ' and ' : ' or ')
  }
}
