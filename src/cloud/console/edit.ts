/** Forms that change rules. Each checks and saves like the operation of the service. */
import type { z } from 'zod'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import { formatDecimal, parseDecimal } from '../../core/pricing/amount.ts'
import { CodedError, firstIssue } from '../../protocol/errors.ts'
import { type RuleDeps, hasBumped, ofRevision } from '../policy/bump-policy-revision.ts'
import { claimOf } from '../service-api/idempotency-key.ts'
import { type Administrator, scopeWith } from '../service-api/principal.ts'
import type { Store } from '../storage/store.ts'
import { withTransactions } from '../storage/with-transactions.ts'
import type { Fields, Inputs, Problem } from './inputs.ts'
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
  /** Returns what is wrong; nothing if it is saved. @throws CodedError */
  readonly save: (deps: EditDeps, fields: Fields) => Promise<readonly Problem[]>
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
 * loads it again, sends the same key, and {@link createOnce} creates one thing.
 */
export function newFormHref(view: View, { path }: Pick<Edit, 'path'>): string {
  return hrefOf(view, path, { key: view.newId() })
}

/** Of the form. An address without a key, such as a typed one, gets a new key. */
export function keyOf({ query: { key = '' }, newId }: Pick<View, 'query' | 'newId'>): string {
  return key === '' ? newId() : key
}

/** @param thing such as `instance` @param request its values in the form */
export async function createOnce(
  { store, editor, present }: Pick<EditDeps, 'store' | 'editor' | 'present'>,
  {
    thing,
    key = '',
    request,
  }: { readonly thing: string; readonly key: string | undefined; readonly request: readonly unknown[] },
  create: (store: Store) => Promise<unknown>,
): Promise<readonly Problem[]> {
  // All forms without a key would be one form.
  if (key === '') return [{ field: null, text: 'The form has no key, so it could create two. Open a new form.' }]
  const claim = claimOf(editor, { concerned: `console ${thing}`, key, request, created: present })
  return store.transaction(async (tx) => {
    if (await tx.idempotency.add({ ...claim, answer: '' })) {
      await create(withTransactions(store, (work) => work(tx)))
      return []
    }
    const stored = (await tx.idempotency.find([claim.scope])).get(claim.scope)
    if (stored === undefined) throw new Error('invariant: what prevents a second form can be read')
    if (stored.requestHash === claim.requestHash) return []
    const text = `This form has already created one ${thing}, with other values. Check the list. For one more, open a new form.`
    return [{ field: null, text }]
  })
}

/**
 * What is wrong with the body that a form makes.
 * @param fieldOf name of the input, by the path in the body. Absent: inputs have the names of the body's fields
 */
export function refusalOf(error: z.ZodError, fieldOf = fieldOfBody): Problem {
  const { path, message } = firstIssue(error)
  const field = fieldOf(path)
  return field === undefined ? { field: null, text: `The form ${message}.` } : { field, text: message }
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
 * Saves a form for the rules of the revision that it shows. Browsers send a form again by themselves if a connection
 * breaks: then the same form is saved once, and each request succeeds. Returns what is wrong. @throws CodedError
 */
export async function saveForm(edit: Edit, deps: EditDeps, form: Fields): Promise<readonly Problem[]> {
  const { store, instanceId, editor, present } = deps
  const { revision: shown } = form
  if (edit.concerns !== 'INSTANCE' || shown === undefined) return edit.save(deps, form)
  const key = `${instanceId} ${shown}`
  const claim = claimOf(editor, { concerned: `console ${edit.path}`, key, request: [form], created: present })
  const recording = withTransactions(store, (work) =>
    store.transaction(async (tx) => {
      const result = await work(tx)
      if (hasBumped(tx)) await tx.idempotency.add({ ...claim, answer: '' })
      return result
    }),
  )
  const ofShown = ofRevision(recording, instanceId, (revision) => {
    if (String(revision) !== shown) throw new CodedError('RULES_CHANGED', RULES_CHANGED)
  })
  const isSaved = async (): Promise<boolean> => {
    const saved = await store.transaction((tx) => tx.idempotency.find([claim.scope]))
    return saved.get(claim.scope)?.requestHash === claim.requestHash
  }
  try {
    const problems = await edit.save({ ...deps, store: ofShown }, form)
    // The first request of the form may cause the problem: its line item exists already.
    return problems.length > 0 && (await isSaved()) ? [] : problems
  } catch (error) {
    if (error instanceof CodedError && (await isSaved())) return []
    throw error
  }
}

export function fieldText(fields: Fields, name: string): string | undefined {
  const value = fields[name]?.trim() ?? ''
  return value === '' ? undefined : value
}

/** NaN if it is not a number, which the schemas refuse. @throws CodedError BAD_REQUEST if the number would be rounded */
export function numberOf(fields: Fields, name: string): number | undefined {
  const text = fieldText(fields, name)
  if (text === undefined) return undefined
  const [given, nearest] = [parseDecimal(text), parseDecimal(Number(text))]
  if (given === undefined || nearest === undefined) return Number.NaN
  // Such an integer exceeds every amount of tokens: the schemas refuse it, or reduce it to the largest amount.
  const isBeyond = given.scale === 0 && !Number.isSafeInteger(Number(text))
  if (!isBeyond && formatDecimal(given) !== formatDecimal(nearest)) {
    const problem = `has too many digits. The nearest number is ${formatDecimal(nearest)}`
    throw new CodedError('BAD_REQUEST', `body.${name}: ${problem}`)
  }
  return Number(text)
}

/** Of an input of the type datetime-local, in UTC; NaN if it is no time. */
export function instantOf(fields: Fields, name: string): number | undefined {
  const text = fieldText(fields, name)
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

const NOT_CONFIRMED =
  'The database did not confirm the change, so it may or may not be saved. Save the form again: nothing is created twice. (OUTCOME_UNKNOWN)'

export function problemOf(error: unknown): Problem {
  if (error instanceof CodedError && error.code === 'OUTCOME_UNKNOWN') return { field: null, text: NOT_CONFIRMED }
  if (error instanceof CodedError && ['BAD_REQUEST', 'CONFLICT', 'RULES_CHANGED'].includes(error.code)) {
    const [, field = null, text] = /^body\.([\w.]+): (.*)$/s.exec(error.message) ?? []
    return { field, text: text ?? `${error.message} (${error.code})` }
  }
  throw error
}
