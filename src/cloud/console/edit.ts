/** Forms that change rules. Each checks and saves like the operation of the service. */
import type { z } from 'zod'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { CodedError, bodyError, firstIssue } from '../../protocol/errors.ts'
import { tokenDigitsProblem, typedNumber } from '../../protocol/typed-number.ts'
import { type RuleDeps, ofRevision } from '../policy/bump-policy-revision.ts'
import { claimOf } from '../service-api/idempotency-key.ts'
import { type Administrator, scopeWith } from '../service-api/principal.ts'
import { withTransactions } from '../storage/with-transactions.ts'
import { type Fields, FormRefused, type Inputs, NO_INSTANT, NO_NUMBER, type Problem, instantIn } from './inputs.ts'
import { type Page, type View, confirmation, formTokenField, hrefOf } from './page.ts'

export interface EditDeps extends RuleDeps {
  /** Empty for an edit that is not of an instance. */
  readonly instanceId: string
  readonly editor: Administrator
  /** Name of the cell that an account belongs to; null: this one. */
  readonly otherCellOf: (accountId: string) => Promise<string | null>
  readonly now: number
  /** {@link Moment.present} */
  readonly present: number
}

export interface Edit {
  readonly path: string
  readonly next: string
  /** What it changes: the chosen instance, what all cells share, or a customer account. */
  readonly concerns: 'INSTANCE' | 'ALL_CELLS' | 'ACCOUNT'
  readonly needsConfirmation: boolean
  /** Name of the input, by the path in the body that the form makes. Absent: inputs have the names of the body's fields. */
  readonly fieldOf?: (path: readonly PropertyKey[], fields: Fields) => string | undefined
  /** In one transaction of the store. @throws FormRefused, CodedError */
  readonly save: (deps: EditDeps, fields: Fields) => Promise<void>
  readonly refused: (view: View, fields: Fields, problems: readonly Problem[]) => Promise<Page>
}

/** With the role rules in the chosen instance, or in all instances for an edit that is not of an instance. */
export function mayEdit(
  { administrator, instance }: Pick<View, 'administrator' | 'instance'>,
  { concerns }: Pick<Edit, 'concerns'>,
): boolean {
  const scope = scopeWith(administrator.rights, 'rules')
  return scope === null || (concerns === 'INSTANCE' && instance !== null && scope.has(instance.id.toLowerCase()))
}

export interface Form {
  readonly title: string
  readonly inputs: Inputs
  readonly content: Html
  readonly note: string
  /** Default: save. */
  readonly verb?: 'save' | 'remove'
}

export function formPart(
  view: View,
  { path, next, concerns, needsConfirmation }: Edit,
  { title, inputs, content, note, verb = 'save' }: Form,
): Html {
  return section(
    'edit',
    title,
    html`${inputs.problems()}
      <form method="post" action="${hrefOf(view, path, { key: inputs.value('key') })}">
        ${formTokenField(view)} ${inputs.value('key') === '' ? '' : inputs.hidden('key')}
        ${concerns === 'INSTANCE' ? html`<input type="hidden" name="revision" value="${String(view.revision)}" />` : ''}
        ${content}
        ${needsConfirmation ? confirmation(`Yes, ${verb} it. Devices get the change with their next sync`) : ''}
        ${verb === 'save' ? html`<button>Save</button>` : html`<button class="danger">Remove</button>`}
        <a href="${hrefOf(view, next)}">Cancel</a>
      </form>
      <p class="soft">${note}</p>`,
  )
}

/**
 * Address of the form for something new whose id the cloud chooses. It has a key: a browser that goes back to the form, or
 * loads it again, sends the same key, and {@link saveForm} creates one thing.
 */
export function newFormHref(view: View, { path }: Pick<Edit, 'path'>): string {
  return hrefOf(view, path, { key: view.newId() })
}

/** Of the form. An address without a key, such as a typed one, gets a new key. */
export function keyOf({ query: { key = '' }, newId }: Pick<View, 'query' | 'newId'>): string {
  return key === '' ? newId() : key
}

/** Of the body that a form makes. */
export function refusalOf(error: z.ZodError): CodedError {
  const { path, message } = firstIssue(error)
  return bodyError(message, path)
}

export function fieldOfBody([field]: readonly PropertyKey[]): string | undefined {
  return field === undefined ? undefined : String(field)
}

const RULES_CHANGED =
  'The rules of this instance have changed since this form was opened. Check it, then send it again.'

/** Of a form that is shown again, for the rules of the view: the next save would overwrite changes since it was opened. */
export function withChange(
  problems: readonly Problem[],
  { revision: opened }: Fields,
  { revision }: Pick<View, 'revision'>,
): readonly Problem[] {
  const isNamed =
    opened === undefined || opened === String(revision) || problems.some(({ text }) => text.startsWith(RULES_CHANGED))
  return isNamed ? problems : [...problems, { field: null, text: RULES_CHANGED }]
}

/**
 * Saves a form once, although browsers repeat a request when a connection breaks, and people go back to a form: each request
 * with the same values succeeds. A form for something new is identified by its key, any other form by its values and the
 * revision of the rules that it shows. Returns the problems; none if it is saved. @throws CodedError
 */
export async function saveForm(edit: Edit, deps: EditDeps, form: Fields): Promise<readonly Problem[]> {
  const { store, instanceId, editor, present } = deps
  const { formToken: _token, confirmed: _confirmed, revision: shown, ...values } = form
  // A form that changes nothing leaves the revision to the next one.
  const key = fieldText(form, 'key') ?? (shown === undefined ? undefined : JSON.stringify([shown, values]))
  // All forms without a key would be one form.
  if (key === undefined) return [NO_KEY]
  const concerned = `console ${edit.path}${edit.concerns === 'INSTANCE' ? ` ${instanceId}` : ''}`
  const claim = claimOf(editor, { concerned, key, request: [values], created: present })
  const requireShown = (revision: number): void => {
    if (String(revision) !== shown) throw new CodedError('RULES_CHANGED', RULES_CHANGED)
  }
  const ofShown = edit.concerns === 'INSTANCE' ? ofRevision(store, instanceId, requireShown) : store
  const once = withTransactions(ofShown, (work) =>
    ofShown.transaction(async (tx) => {
      if (!(await tx.idempotency.add({ ...claim, answer: '' }))) throw new FormRefused([SAVED_OTHERWISE])
      return work(tx)
    }),
  )
  try {
    await edit.save({ ...deps, store: once }, form)
    return []
  } catch (error) {
    // The first request of this form can be the cause: its line item exists already. The error says more than that of the check.
    const saved = await store.transaction((tx) => tx.idempotency.find([claim.scope])).catch(() => undefined)
    return saved?.get(claim.scope)?.requestHash === claim.requestHash ? [] : problemsOf(error, edit, form)
  }
}

const NO_KEY = { field: null, text: 'The form has no key, so it could create two. Open a new form.' }

const SAVED_OTHERWISE = {
  field: null,
  text: 'This form has already created one, with other values. Check the list. For one more, open a new form.',
}

export function fieldText(fields: Fields, name: string): string | undefined {
  const value = fields[name]?.trim() ?? ''
  return value === '' ? undefined : value
}

/** @throws FormRefused if it is not a number, or would be rounded */
export function numberOf(fields: Fields, name: string, problemOf = tokenDigitsProblem): number | undefined {
  const text = fieldText(fields, name)
  if (text === undefined) return undefined
  const number = typedNumber(text)
  const problem = problemOf(text) ?? (Number.isNaN(number) ? NO_NUMBER : undefined)
  if (problem !== undefined) throw new FormRefused([{ field: name, text: problem }])
  return number
}

/** As {@link instantIn}. @throws FormRefused */
export function instantOf(fields: Fields, name: string): number | undefined {
  const text = fieldText(fields, name)
  if (text === undefined) return undefined
  const at = instantIn(text)
  if (at === undefined) throw new FormRefused([{ field: name, text: NO_INSTANT }])
  return at
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

const NOT_CONFIRMED =
  'The database did not confirm the change, so it may or may not be saved. Save the form again: nothing is created twice. (OUTCOME_UNKNOWN)'

/** @throws the error if it does not concern the form */
function problemsOf(error: unknown, { fieldOf = fieldOfBody }: Edit, form: Fields): readonly Problem[] {
  if (error instanceof FormRefused) return error.problems
  if (!(error instanceof CodedError)) throw error
  const { code, message, details } = error
  if (code === 'OUTCOME_UNKNOWN') return [{ field: null, text: NOT_CONFIRMED }]
  if (!['BAD_REQUEST', 'CONFLICT', 'RULES_CHANGED'].includes(code)) throw error
  const { path, problem } = details
  if (!Array.isArray(path) || typeof problem !== 'string') return [{ field: null, text: `${message} (${code})` }]
  const field = fieldOf(path as readonly PropertyKey[], form)
  return [field === undefined ? { field: null, text: `The form: ${problem}.` } : { field, text: problem }]
}
