/**
 * Takes over an instance that another service keeps, in one transaction: its conditions, line items, actions and use.
 * Ids stay. A repeated import changes only what differs.
 */
import { idsOf, recordChange } from '../storage/audit.ts'
import { type AccountId, actionAccount } from '../../core/accounts/account.ts'
import { formatMicro } from '../../core/pricing/amount.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { ImportBody, ImportResult } from '../../protocol/edge/import.ts'
import type { ConditionInput } from '../../protocol/service/conditions.ts'
import { type LineItemBody, parseLineItem } from '../../protocol/service/line-items.ts'
import { currentAccount } from '../accounts/calendar.ts'
import { capOf, refund, takeOver } from '../accounts/pool.ts'
import { refuseTooLarge } from '../policy/refuse-too-large.ts'
import { retargetAccounts } from '../policy/retarget-accounts.ts'
import { bumpPolicyRevision, lockRules } from '../policy/bump-policy-revision.ts'
import type { ConditionNode, Pool } from '../storage/records.ts'
import type { Reader, Store, Transaction } from '../storage/store.ts'
import { nodesOf, refuseTooMuch } from './change-conditions.ts'
import { insertInstance } from './create-instance.ts'
import { lineItemOf } from '../policy/line-item-of.ts'
import { lineItemRecord } from './map-line-item.ts'
import { storedAction } from './change-actions.ts'
import { type ImportInputs, type ImportPlan, type ImportedLineItem, planImport } from './plan-import.ts'

export interface ImportDeps {
  readonly store: Store
  readonly newId: () => string
}

interface Wanted {
  readonly instanceId: string
  readonly body: ImportBody
  readonly lineItems: readonly WantedLineItem[]
  readonly newId: () => string
  /** POSIX ms. */
  readonly now: number
}

type WantedLineItem = Omit<ImportBody['lineItems'][number], 'lineItem'> & { readonly terms: LineItemBody }

/**
 * Without `apply`, and with conflicts, nothing changes.
 * @throws CodedError BAD_REQUEST
 */
export async function importInstance(
  { store, newId }: ImportDeps,
  instanceId: string,
  body: ImportBody,
  now: number,
): Promise<ImportResult> {
  const { lineItems, problems } = termsOf(instanceId, body)
  const wanted: Wanted = { instanceId, body, lineItems, newId, now }
  const planned = async (reader: Reader): Promise<ImportPlan> => {
    const plan = planImport(await inputsOf(reader, wanted))
    plan.conflicts.push(...problems)
    return plan
  }
  if (!body.apply) return resultOf(await store.read(planned), false)
  return store.transaction(async (tx) => {
    await tx.policyRevisions.lock(instanceId)
    const plan = await planned({ ...tx, accounts: { ...tx.accounts, get: (accounts) => tx.accounts.lock(accounts) } })
    if (plan.conflicts.length > 0) return resultOf(plan, false)
    await write(tx, wanted, plan)
    return resultOf(plan, true)
  })
}

function resultOf({ changes, notes, conflicts }: ImportPlan, applied: boolean): ImportResult {
  return { applied, changes, notes, conflicts }
}

/** Line items that this service can store, and the problems of the others. */
function termsOf(instanceId: string, body: ImportBody) {
  const problems: string[] = []
  const lineItems: WantedLineItem[] = []
  const seen = new Set<string>()
  for (const [index, { lineItem, used, actions }] of body.lineItems.entries()) {
    const parsed = parseLineItem('v1.1', instanceId, lineItem)
    if (!parsed.ok) {
      const { activationId = `number ${index + 1}` } = lineItem as { readonly activationId?: unknown }
      problems.push(...parsed.problems.map(({ text }) => `Line item ${String(activationId)}: ${text}.`))
    } else if (seen.has(parsed.body.activationId)) {
      problems.push(`Line item ${parsed.body.activationId} is listed twice.`)
    } else {
      seen.add(parsed.body.activationId)
      lineItems.push({ terms: parsed.body, used, actions })
    }
  }
  return { lineItems, problems }
}

async function inputsOf(reader: Reader, { instanceId, body, ...wanted }: Wanted): Promise<ImportInputs> {
  const { now } = wanted
  const instance = (await reader.instances.get(instanceId)) ?? null
  const revision = await reader.policyRevisions.get(instanceId)
  const storedConditions = await reader.conditions.list(instanceId)
  const known = new Map((await reader.lineItems.list(instanceId)).map((record) => [record.id, record]))
  const actions = new Map(
    (await reader.actions.list(instanceId, 0, known.size)).map((each) => [each.lineItemId, each.actions]),
  )
  const lineItems: ImportedLineItem[] = []
  for (const { terms, ...of } of wanted.lineItems) {
    const id = terms.activationId
    const stored = known.get(id) ?? null
    const before = stored ?? (instance === null ? undefined : await reader.lineItems.get(instanceId, id))
    const record = lineItemRecord({ instanceId, listedAt: revision?.listedAt ?? now }, terms, before, now)
    const storedActions = stored === null ? [] : (actions.get(id) ?? [])
    const isKnown = before !== undefined
    lineItems.push({ record, stored, isKnown, storedActions, actions: of.actions, used: of.used ?? null })
    known.delete(id)
  }
  const accounts = lineItems.flatMap((lineItem) => importedAccounts(lineItem, now))
  return {
    instanceId,
    now,
    instance,
    storedConditions,
    lineItems,
    wanted: body,
    defaultOfAccount: (await reader.instances.defaultOf(body.instance.accountId)) ?? null,
    conditions: nodesLike(body.conditions, storedConditions, wanted.newId),
    others: [...known.keys()],
    pools: await reader.accounts.get(accounts),
    imported: await reader.importedUse.of(accounts),
  }
}

function importedAccounts({ record, actions, storedActions }: ImportedLineItem, now: number): readonly AccountId[] {
  const actionIds = new Set([...actions, ...storedActions].map((action) => action.id))
  return [
    currentAccount(record, now),
    ...[...actionIds].map((actionId) => actionAccount(record.instanceId, record.id, actionId)),
  ]
}

/** Nested nodes without an id keep the id that this service gave them before. @throws CodedError BAD_REQUEST */
function nodesLike(
  inputs: readonly ConditionInput[],
  stored: readonly ConditionNode[],
  newId: () => string,
): readonly ConditionNode[] {
  const known = new Map(stored.map((node) => [node.id, node]))
  const filled = inputs.map((input, index) => {
    if (input.id === undefined) throw new CodedError('BAD_REQUEST', `body.conditions[${index}].id: is missing`)
    return withIds(input, known.get(input.id))
  })
  return nodesOf(filled, (id) => id ?? newId())
}

function withIds(input: ConditionInput, stored: ConditionNode | undefined): ConditionInput {
  const label = { id: input.id ?? stored?.id }
  switch (input.operator) {
    case 'AND':
    case 'OR': {
      const inner = stored !== undefined && 'conditions' in stored ? stored.conditions : []
      return { ...input, ...label, conditions: input.conditions.map((each, index) => withIds(each, inner[index])) }
    }
    case 'NOT': {
      const inner = stored !== undefined && 'condition' in stored ? stored.condition : undefined
      return { ...input, ...label, condition: withIds(input.condition, inner) }
    }
    case 'IN':
      return { ...input, ...label }
  }
}

async function write(tx: Transaction, { instanceId, body, now }: Wanted, plan: ImportPlan): Promise<void> {
  const { shortName, accountId } = body.instance
  const before = await tx.instances.get(instanceId)
  const isRenamed = before !== undefined && before.shortName !== shortName
  if (before === undefined) {
    const instance = { id: instanceId, shortName, accountId, defaultInstance: plan.createsDefault }
    await insertInstance(tx, { ...instance, created: now, modified: now }, now)
  } else if (isRenamed) await tx.instances.rename(instanceId, shortName, now)
  const revision = await lockRules(tx, instanceId)
  await saveConditions(tx, instanceId, plan)
  for (const { record, isKnown, actions } of plan.lineItems) {
    if (isKnown) await tx.lineItems.update(record)
    else await tx.lineItems.insert(record)
    if (isKnown || actions.length > 0) {
      await tx.actions.replace(instanceId, record.id, actions.map(storedAction))
    }
    if (isKnown) await retargetAccounts(tx, record, now)
  }
  if (plan.conditions.length + plan.lineItems.length > 0) await refuseTooLarge(tx, instanceId, now)
  // A reserve for the cloud depends on the imported use.
  const changesUse = plan.uses.some(({ before, after }) => before !== after)
  const changesRules = isRenamed || plan.conditions.length > 0 || plan.lineItems.length > 0 || changesUse
  if (changesRules) await bumpPolicyRevision(tx, revision, now)
  await takeOverUse(tx, plan, body, now)
  await audit(tx, { instanceId, body, now }, plan)
}

async function saveConditions(tx: Transaction, instanceId: string, { conditions }: ImportPlan): Promise<void> {
  if (conditions.length === 0) return
  const saved = new Set(conditions.map(({ id }) => id))
  const replaced = (await tx.conditions.list(instanceId)).filter(({ id }) => saved.has(id))
  await refuseTooMuch(tx, instanceId, conditions, replaced)
  await tx.conditions.save(instanceId, conditions)
}

async function takeOverUse(tx: Transaction, { uses }: ImportPlan, { addUsed }: ImportBody, now: number): Promise<void> {
  const pools = await tx.accounts.open(
    uses.map(({ account, lineItem: { record, actions } }) => {
      const lineItem = lineItemOf(record, { actions: actions.map(storedAction), limit: undefined }, now)
      return { account, cap: capOf(account, lineItem) }
    }),
  )
  const changed = uses.flatMap(({ account, before, after }): Pool[] => {
    const pool = pools.get(account)
    if (pool === undefined) throw new Error('invariant: the pool was opened')
    if (after === before) return []
    return [after > before ? takeOver(pool, after - before, !addUsed) : refund(pool, before - after)]
  })
  await tx.accounts.save(changed)
  await tx.importedUse.save(new Map(uses.map(({ account, after }) => [account, after])))
}

async function audit(
  tx: Transaction,
  { instanceId, body, now }: Pick<Wanted, 'instanceId' | 'body' | 'now'>,
  { changes, conditions, lineItems, uses }: ImportPlan,
): Promise<void> {
  if (changes.length === 0) return
  const { source, instance, addUsed, lowerUsed } = body
  await recordChange(tx, now, {
    action: 'IMPORT_INSTANCE',
    instanceId,
    detail: {
      source,
      shortName: instance.shortName,
      accountId: instance.accountId,
      addUsed,
      lowerUsed,
      conditions: idsOf(conditions),
      lineItems: idsOf(lineItems.map(({ record }) => record)),
    },
  })
  for (const { lineItem, actionId, before, after } of uses) {
    if (before === after) continue
    const detail = { source, actionId, before: formatMicro(before), after: formatMicro(after) }
    await recordChange(tx, now, { action: 'IMPORT_USE', instanceId, lineItemId: lineItem.record.id, detail })
  }
}
