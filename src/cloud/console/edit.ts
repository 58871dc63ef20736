/** Forms that change rules. Each checks and saves like the operation of the service. */
import { Html, formValue, html } from '../../html/html.ts'
import { parseDecimal } from '../../core/pricing/amount.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { RuleDeps } from '../policy/bump-policy-revision.ts'
import { ofRevision } from '../policy/of-revision.ts'
import { permits } from '../service-api/principal.ts'
import type { Store } from '../storage/store.ts'
import { type Page, type View, confirmation, formTokenField, hrefOf, section } from './page.ts'

export type Fields = Readonly<Record<string, string>>

export interface EditDeps extends RuleDeps {
  /** Empty for an edit that is not of an instance. */
  readonly instanceId: string
  readonly now: number
}

export interface Edit {
  readonly path: string
  readonly next: string
  readonly isOfInstance: boolean
  readonly needsConfirmation: boolean
  /** Returns what is wrong; nothing if it is saved. @throws CodedError */
  readonly save: (deps: EditDeps, fields: Fields) => Promise<readonly string[]>
  readonly refused: (view: View, fields: Fields, problems: readonly string[]) => Promise<Page>
}

export function mayEditRules({ administrator }: Pick<View, 'administrator'>): boolean {
  return administrator.rights.some((right) => permits(right, 'rules'))
}

export interface Form {
  readonly title: string
  readonly problems: readonly string[]
  readonly content: Html
  readonly note: string
}

export function formPart(
  view: View,
  { path, next, isOfInstance, needsConfirmation }: Edit,
  { title, problems, content: unmarked, note }: Form,
): Html {
  const { shown, content } = linked(problems, unmarked)
  return section(
    'edit',
    title,
    html`${problems.length === 0 ? '' : html`<div class="problem" role="alert">${shown}</div>`}
      <form method="post" action="${hrefOf(view, path)}">
        ${formTokenField(view)}
        ${isOfInstance ? html`<input type="hidden" name="revision" value="${String(view.revision)}" />` : ''} ${content}
        ${needsConfirmation ? confirmation('Yes, save it. Devices get the change with their next sync') : ''}
        <button>Save</button>
        <a href="${hrefOf(view, next)}">Cancel</a>
      </form>
      <p class="soft">${note}</p>`,
  )
}

/** Links problems that name a field, such as `$.quantity: ...`, to the field, and describes the field by them. */
function linked(
  problems: readonly string[],
  { text: form }: Html,
): { readonly shown: readonly Html[]; readonly content: Html } {
  const names = problems.map((problem) => /(?:\.|property ')(\w+)(?:: |' )/.exec(problem)?.[1] ?? '')
  const fields = new Set(names.filter((name) => visibleField(name).test(form)))
  const marks = [...fields].map((name) => {
    const ids = names.flatMap((each, at) => (each === name ? [`problem-${at}`] : []))
    return [name, ` id="field-${name}" aria-invalid="true" aria-describedby="${ids.join(' ')}"`] as const
  })
  return {
    shown: problems.map((problem, at) => {
      const name = names[at] ?? ''
      const text = fields.has(name) ? html`<a href="#field-${name}">${problem}</a>` : problem
      return html`<p id="problem-${at}">${text}</p>`
    }),
    content: new Html(marks.reduce((made, [name, mark]) => made.replace(visibleField(name), `${mark}$&`), form)),
  }
}

function visibleField(name: string): RegExp {
  return new RegExp(`(?<!type="hidden") name="${name}"`)
}

const RULES_CHANGED =
  'The rules of this instance have changed since this form was opened. If it was sent twice, its changes are saved. Otherwise check it, then save it again.'

/** Of a form that is shown again, for the rules of the view: the next save would overwrite changes since it was opened. */
export function withChange(
  problems: readonly string[],
  { revision: opened }: Fields,
  { revision }: Pick<View, 'revision'>,
): readonly string[] {
  const isNamed =
    opened === undefined || opened === String(revision) || problems.some((each) => each.startsWith(RULES_CHANGED))
  return isNamed ? problems : [...problems, RULES_CHANGED]
}

/** For the changes of a form that shows the rules of one revision. It could also be sent twice. */
export function ofForm(store: Store, instanceId: string, shown: string): Store {
  return ofRevision(store, instanceId, (revision) => {
    if (String(revision) !== shown) throw new CodedError('RULES_CHANGED', RULES_CHANGED)
  })
}

export function textOf(fields: Fields, name: string): string | undefined {
  const value = fields[name]?.trim() ?? ''
  return value === '' ? undefined : value
}

export function rowInput(fields: Fields, name: string, label: string, type: Html): Html {
  return html`<input ${type} name="${name}" value="${formValue(fields[name] ?? '')}" aria-label="${label}" />`
}

/** NaN if it is not a number, which the schemas refuse. */
export function numberOf(fields: Fields, name: string): number | undefined {
  const text = textOf(fields, name)
  if (text === undefined) return undefined
  return parseDecimal(text) === undefined ? Number.NaN : Number(text)
}

/** Of an input of the type datetime-local, in UTC; NaN if it is no time. */
export function instantOf(fields: Fields, name: string): number | undefined {
  const text = textOf(fields, name)
  return text === undefined ? undefined : Date.parse(`${text}Z`)
}

export function instantText(at: number): string {
  return new Date(at).toISOString().slice(0, -1)
}

export const EMPTY_ROWS = 3

/** Fields are named `field.number`. @throws CodedError CONSOLE_FORM_REFUSED for more than `max` and the empty rows */
export function rowsIn(fields: Fields, field: string, max: number): readonly number[] {
  const rows: number[] = []
  for (const name of Object.keys(fields)) {
    const [start, row = '', ...rest] = name.split('.')
    if (start === field && /^\d{1,9}$/.test(row) && rest.length === 0) rows.push(Number(row))
  }
  if (rows.length <= max + EMPTY_ROWS) return rows
  throw new CodedError('CONSOLE_FORM_REFUSED', `The form has ${rows.length} rows, and takes up to ${max + EMPTY_ROWS}.`)
}

export function problemOf(error: unknown): string {
  if (error instanceof CodedError && ['BAD_REQUEST', 'CONFLICT', 'RULES_CHANGED'].includes(error.code)) {
    return `${error.message} (${error.code})`
  }
  throw error
}
