/**
 * Compares an instance of another service with what this service has, and plans the writes that make them equal.
 *
 * Rules and terms follow the source. Use does not: an account counts the use of this service and, beside it, the use
 * that was imported. A new import changes only the second, by its difference from the last one, so that it can be
 * repeated while both services are in use. What would lose or double use is a conflict unless it is permitted.
 */
import type { AccountId } from '../../core/accounts/account.ts'
import { actionAccount } from '../../core/accounts/account.ts'
import { type Micro, MICRO_MAX, formatMicro } from '../../core/pricing/amount.ts'
import type { Action } from '../../core/rules/policy.ts'
import type { ImportBody, ImportChange, ImportedAction } from '../../protocol/edge/import.ts'
import { actionsProblem, actionsProblemText } from '../../protocol/service/actions.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import { currentAccount } from '../accounts/calendar.ts'
import { used } from '../accounts/pool.ts'
import { storedAction } from './change-actions.ts'
import type { ConditionNode, Instance, LineItemRecord, Pool } from '../storage/records.ts'

/** A line item of the source, in this service's terms. */
export interface ImportedLineItem {
  /** As it will be stored. */
  readonly record: LineItemRecord
  /** Null: not mapped here. */
  readonly stored: LineItemRecord | null
  /** There is a row of it, which may be one of a deleted line item. */
  readonly isKnown: boolean
  readonly storedActions: readonly Action[]
  readonly actions: readonly ImportedAction[]
  /** Null: the source does not say. */
  readonly used: Micro | null
}

export interface ImportInputs {
  readonly instanceId: string
  readonly wanted: Pick<ImportBody, 'instance' | 'addUsed' | 'lowerUsed'>
  /** Null: does not exist here. */
  readonly instance: Instance | null
  readonly defaultOfAccount: Instance | null
  readonly conditions: readonly ConditionNode[]
  readonly storedConditions: readonly ConditionNode[]
  readonly lineItems: readonly ImportedLineItem[]
  /** Line items that only this service has. */
  readonly others: readonly string[]
  readonly pools: ReadonlyMap<AccountId, Pool>
  readonly imported: ReadonlyMap<AccountId, Micro>
  /** POSIX ms. */
  readonly now: number
}

/** Use that an account takes over from the source. */
export interface PlannedUse {
  readonly account: AccountId
  readonly lineItem: ImportedLineItem
  /** Null: the use of the line item itself. */
  readonly actionId: string | null
  readonly before: Micro
  readonly after: Micro
}

export interface ImportPlan {
  readonly changes: ImportChange[]
  readonly notes: string[]
  readonly conflicts: string[]
  readonly createsDefault: boolean
  readonly conditions: ConditionNode[]
  readonly lineItems: ImportedLineItem[]
  readonly uses: PlannedUse[]
}

export function planImport(inputs: ImportInputs): ImportPlan {
  const plan: ImportPlan = {
    changes: [],
    notes: [],
    conflicts: [],
    createsDefault: inputs.wanted.instance.defaultInstance && inputs.defaultOfAccount === null,
    conditions: [],
    lineItems: [],
    uses: [],
  }
  planInstance(plan, inputs)
  planConditions(plan, inputs)
  const conditions = new Set([...inputs.storedConditions, ...inputs.conditions].map(({ id }) => id))
  for (const lineItem of inputs.lineItems) {
    planTerms(plan, lineItem)
    planActions(plan, inputs, lineItem, conditions)
    if (hasChanged(lineItem)) plan.lineItems.push(lineItem)
    planUses(plan, inputs, lineItem)
  }
  noteOthers(plan, 'line item', inputs.others)
  const imported = new Set(inputs.conditions.map(({ id }) => id))
  const kept = inputs.storedConditions.filter(({ id }) => !imported.has(id))
  noteOthers(
    plan,
    'condition',
    kept.map(({ id, name }) => name ?? id),
  )
  return plan
}

function planInstance({ changes, notes, conflicts }: ImportPlan, inputs: ImportInputs): void {
  const { instance, defaultOfAccount, instanceId } = inputs
  const { shortName, accountId, defaultInstance } = inputs.wanted.instance
  const add = (field: string, before: string | null, after: string) =>
    changes.push({ object: 'instance', field, before, after })
  if (instance === null) {
    add('new', null, `${shortName} of account ${accountId}`)
  } else {
    if (instance.accountId !== accountId) {
      conflicts.push(`The instance belongs to account ${instance.accountId} here and to ${accountId} at the source.`)
    }
    if (instance.shortName !== shortName) add('shortName', instance.shortName, shortName)
  }
  const isDefault = instance?.defaultInstance ?? (defaultInstance && defaultOfAccount === null)
  if (isDefault === defaultInstance) return
  const reason =
    defaultOfAccount === null || defaultOfAccount.id === instanceId
      ? 'an existing instance keeps what it is'
      : `that is ${defaultOfAccount.id} here`
  notes.push(
    defaultInstance
      ? `At the source this is the default instance of its account; ${reason}.`
      : `Here this is the default instance of its account, and not at the source; ${reason}.`,
  )
}

function planConditions(plan: ImportPlan, { conditions, storedConditions }: ImportInputs): void {
  const stored = new Map(storedConditions.map((node) => [node.id, node]))
  for (const id of repeated(conditions.map((node) => node.id))) plan.conflicts.push(`Condition ${id} is listed twice.`)
  for (const node of conditions) {
    const known = stored.get(node.id)
    if (known !== undefined && JSON.stringify(known) === JSON.stringify(node)) continue
    plan.conditions.push(node)
    plan.changes.push({
      object: `condition ${node.name ?? node.id}`,
      field: known === undefined ? 'new' : 'content',
      before: known === undefined ? null : short(conditionText(known)),
      after: short(conditionText(node)),
    })
  }
}

/** Without the ids: those of nested nodes can be new ones. */
function conditionText(node: ConditionNode): string {
  return JSON.stringify(node, (key, value: unknown) =>
    key === 'id' || (key === 'name' && value === null) ? undefined : value,
  )
}

function planTerms({ changes, conflicts }: ImportPlan, { record, stored }: ImportedLineItem): void {
  const object = `line item ${record.id}`
  const after = termsOf(record)
  if (stored === null) {
    const { quantity, state, start, end } = after
    changes.push({
      object,
      field: 'new',
      before: null,
      after: `${quantity} tokens, ${state}, start: ${start}, end: ${end}`,
    })
    return
  }
  if (stored.state === 'OBSOLETE' && record.state !== 'OBSOLETE') {
    conflicts.push(`Line item ${record.id} is OBSOLETE here, which is final, and ${record.state} at the source.`)
  }
  const before = termsOf(stored)
  for (const field of Object.keys(after) as (keyof typeof after)[]) {
    if (before[field] !== after[field]) {
      changes.push({ object, field, before: before[field], after: after[field] })
    }
  }
}

/** Terms in words. Two records have the same terms if all of these texts are equal. */
function termsOf(record: LineItemRecord) {
  const { given, overdraftType, overdraftLimit } = record
  const limit = given.overdraftLimit ?? (overdraftLimit === null ? '' : formatMicro(overdraftLimit))
  return {
    state: record.state,
    quantity: given.quantity ?? formatMicro(record.quantity),
    start: given.start ?? instantText(record.start, 0),
    end: given.end ?? instantText(record.end, INSTANT_MAX),
    elastic: String(record.elastic),
    rateTableSeries: record.rateTableSeries ?? '',
    overdraft: overdraftType === null ? 'none' : `${overdraftType} ${limit}`.trimEnd(),
    resetFrequency: record.resetFrequency ?? 'NONE',
  }
}

function hasChanged({ record, stored, storedActions, actions }: ImportedLineItem): boolean {
  if (stored === null || JSON.stringify(termsOf(stored)) !== JSON.stringify(termsOf(record))) return true
  return actionsText(storedActions) !== actionsText(actions.map(storedAction))
}

function planActions(
  { changes, conflicts }: ImportPlan,
  inputs: ImportInputs,
  { record, storedActions, actions }: ImportedLineItem,
  conditions: ReadonlySet<string>,
): void {
  const wanted = actions.map(storedAction)
  const [before, after] = [actionsText(storedActions), actionsText(wanted)]
  for (const id of repeated(actions.map((each) => each.id))) {
    conflicts.push(`Action ${id} of line item ${record.id} is listed twice.`)
  }
  const problem = actionsProblem(actions, conditions)
  if (problem !== undefined) conflicts.push(`Actions of line item ${record.id}: ${actionsProblemText(problem)}.`)
  if (before === after) return
  changes.push({
    object: `line item ${record.id}`,
    field: 'actions',
    before: storedActions.length === 0 ? null : short(before),
    after: wanted.length === 0 ? null : short(after),
  })
  if (inputs.wanted.lowerUsed) return
  const kept = new Set(wanted.filter(({ allocation }) => allocation !== null).map(({ id }) => id))
  for (const { id } of storedActions) {
    const pool = inputs.pools.get(actionAccount(inputs.instanceId, record.id, id))
    if (kept.has(id) || pool === undefined || used(pool) === 0n) continue
    conflicts.push(
      `Action ${id} of line item ${record.id} exists only here, with ${formatMicro(used(pool))} tokens used. Permit its removal with --lower-used.`,
    )
  }
}

/** An action in one line, complete: equal texts are equal lists. */
function actionsText(actions: readonly Action[]): string {
  return actions
    .map(({ id, name, conditionId, effect, allocation }) => {
      const cap = allocation === null ? '' : ` ${formatMicro(allocation)}`
      const named = name === null ? '' : ` ${JSON.stringify(name)}`
      return `${effect}${cap}${conditionId === null ? '' : ` if ${conditionId}`}${named} (${id})`
    })
    .join('; ')
}

function planUses(plan: ImportPlan, inputs: ImportInputs, lineItem: ImportedLineItem): void {
  const { instanceId, now } = inputs
  const { record, actions, used: ofLineItem } = lineItem
  if (ofLineItem === null) plan.notes.push(`Line item ${record.id}: the source does not show its use.`)
  else {
    const account = currentAccount(record, now)
    const difference = planUse(plan, inputs, { account, lineItem, actionId: null, source: ofLineItem })
    const pool = inputs.pools.get(account)
    if (difference !== 0n && pool !== undefined) noteOutstanding(plan, record, pool, difference)
  }
  for (const { id, used: ofAction, action, allocation } of actions) {
    if (ofAction === undefined || action === 'DENY' || allocation === undefined) continue
    const account = actionAccount(instanceId, record.id, id)
    planUse(plan, inputs, { account, lineItem, actionId: id, source: ofAction })
  }
}

interface SourceUse extends Pick<PlannedUse, 'account' | 'lineItem' | 'actionId'> {
  readonly source: Micro
}

interface ComparedUse extends SourceUse {
  readonly name: string
  /** Undefined: never used here. */
  readonly pool: Pool | undefined
  /** What the pool counts as used, imported use included. */
  readonly counted: Micro
  /** Undefined: never imported. */
  readonly imported: Micro | undefined
  /** By how much the imported use changes. */
  readonly difference: Micro
}

function comparedUse({ pools, imported }: ImportInputs, of: SourceUse): ComparedUse {
  const { account, lineItem, actionId, source } = of
  const { id } = lineItem.record
  const pool = pools.get(account)
  const before = imported.get(account)
  return {
    ...of,
    name: actionId === null ? `line item ${id}` : `action ${actionId} of ${id}`,
    pool,
    counted: used(pool),
    imported: before,
    difference: source - (before ?? 0n),
  }
}

/** Returns by how much the imported use changes. */
function planUse(plan: ImportPlan, inputs: ImportInputs, of: SourceUse): Micro {
  const use = comparedUse(inputs, of)
  const { account, lineItem, actionId, source, name, pool, counted, imported, difference } = use
  plan.conflicts.push(...useConflicts(use, inputs.wanted))
  // Without use here, zero is imported too: then later use of this service is known to be its own.
  const isFirst = imported === undefined && counted === 0n
  if (difference === 0n && !isFirst) return 0n
  if (difference > 0n && pool !== undefined && pool.withheld > 0n && !inputs.wanted.addUsed) {
    plan.notes.push(
      `${capital(name)}: the import counts as use that a restored backup has lost, for which ${formatMicro(pool.withheld)} tokens are withheld. If it is different use, add it with --add-used.`,
    )
  }
  plan.uses.push({ account, lineItem, actionId, before: imported ?? 0n, after: source })
  if (difference === 0n) return 0n
  plan.changes.push({
    object: name,
    field: 'used',
    before: pool === undefined ? null : formatMicro(counted),
    after: formatMicro(counted + difference),
  })
  return difference
}

function* useConflicts(use: ComparedUse, { addUsed, lowerUsed }: ImportInputs['wanted']): Generator<string> {
  const { lineItem, actionId, source, name, pool, counted, imported, difference } = use
  const isBack = actionId !== null && !lineItem.storedActions.some(({ id }) => id === actionId)
  if (isBack && imported !== undefined && counted > 0n && !addUsed) {
    yield `${capital(name)} was removed here with ${formatMicro(counted)} tokens of use, which count again when it is back. Permit this with --add-used.`
  }
  if (difference === 0n) return
  if (imported === undefined && counted > 0n && !addUsed) {
    yield `${capital(name)} has ${formatMicro(counted)} tokens of use here, and ${formatMicro(source)} at the source. If these are different uses, add them with --add-used.`
  }
  if (difference < 0n && !lowerUsed) {
    yield `${capital(name)}: the source shows ${formatMicro(source)} tokens used, less than the ${formatMicro(imported ?? 0n)} imported before. Permit it with --lower-used.`
  }
  const out = pool === undefined ? 0n : pool.charged + pool.grantedOut
  if (difference > MICRO_MAX - out) {
    yield `${capital(name)}: ${formatMicro(source)} tokens used are more than this service can count.`
  }
}

/** Devices can spend their grants although the source has used the tokens since. */
function noteOutstanding({ notes }: ImportPlan, record: LineItemRecord, pool: Pool, difference: Micro): void {
  const { id, quantity, overdraftType, overdraftLimit } = record
  if (pool.grantedOut === 0n || overdraftType === 'Unlimited') return
  const cap = quantity + (overdraftType === 'Number' ? (overdraftLimit ?? 0n) : 0n)
  const beyond = pool.charged + difference + pool.grantedOut - cap
  if (beyond <= 0n) return
  notes.push(
    `Line item ${id}: devices have tokens for ${formatMicro(beyond)} more than the quantity and overdraft leave. Nothing more is granted until they return them.`,
  )
}

const NAMED_MAX = 10

function noteOthers({ notes }: ImportPlan, noun: string, names: readonly string[]): void {
  if (names.length === 0) return
  const shown = names.slice(0, NAMED_MAX).join(', ')
  const more = names.length > NAMED_MAX ? `, and ${names.length - NAMED_MAX} more` : ''
  const only =
    names.length === 1 ? `A ${noun} exists only here and stays` : `${names.length} ${noun}s exist only here and stay`
  notes.push(`${only}: ${shown}${more}.`)
}

function repeated(ids: readonly string[]): readonly string[] {
  return [...new Set(ids.filter((id, index) => ids.indexOf(id) !== index))]
}

function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1)
}

/** @param unlimited the instant that sets no limit */
function instantText(instant: number, unlimited: number): string {
  return instant === unlimited ? 'none' : new Date(instant).toISOString()
}

const SHOWN_MAX = 300

function short(text: string): string {
  return text.length <= SHOWN_MAX ? text : `${text.slice(0, SHOWN_MAX)}…`
}
