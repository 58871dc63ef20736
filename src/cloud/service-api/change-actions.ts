/**
 * Actions of a line item. An action that keeps its id keeps its counts; a removed one loses them. Source: interface,
 * Rules of access.
 */
import { idsOf, recordChange } from '../storage/audit.ts'
import type { Action } from '../../core/rules/policy.ts'
import type { AuditedAction } from '../../protocol/edge/administration.ts'
import { CodedError, bodyError } from '../../protocol/errors.ts'
import { type ActionInput, type NewAction, actionsProblem, actionsProblemText } from '../../protocol/service/actions.ts'
import { type RuleDeps, changeRules } from '../policy/bump-policy-revision.ts'
import { refuseTooLarge } from '../policy/refuse-too-large.ts'
import { retargetAccounts } from '../policy/retarget-accounts.ts'
import { requireLineItem } from '../storage/require-record.ts'
import { type ActionUse, type LineItemPlace, actionUses } from './show-line-items.ts'
import type { Store, Transaction } from '../storage/store.ts'

/** Appends to the list. Returns the new actions. @throws CodedError NOT_FOUND, BAD_REQUEST */
export async function appendActions(
  { store, newId }: RuleDeps,
  place: LineItemPlace,
  inputs: readonly NewAction[],
  now: number,
): Promise<readonly ActionUse[]> {
  const added = inputs.map((input) => storedAction({ ...input, id: newId() }))
  const all = await change({ store, action: 'ADD_ACTIONS' }, place, now, (stored) => [...stored, ...added])
  return all.slice(-added.length)
}

/** @throws CodedError NOT_FOUND, BAD_REQUEST */
export async function replaceActions(
  { store, newId }: RuleDeps,
  place: LineItemPlace,
  inputs: readonly ActionInput[],
  now: number,
): Promise<readonly ActionUse[]> {
  const given = inputs.flatMap(({ id }) => (id === undefined ? [] : [id]))
  if (new Set(given).size < given.length) throw bodyError('two actions have the same id')
  const wanted = inputs.map((input) => storedAction({ ...input, id: input.id ?? newId() }))
  return change({ store, action: 'REPLACE_ACTIONS' }, place, now, (stored) => {
    const known = new Set(stored.map(({ id }) => id))
    const unknown = given.find((id) => !known.has(id))
    if (unknown !== undefined) {
      throw bodyError(`the line item has no action ${unknown}; ids are made by the service`)
    }
    return wanted
  })
}

/** @throws CodedError NOT_FOUND */
export async function removeActions(store: Store, place: LineItemPlace, now: number): Promise<void> {
  await change({ store, action: 'DELETE_ACTIONS' }, place, now, () => [])
}

async function change(
  { store, action }: { readonly store: Store; readonly action: `${string}_ACTIONS` & AuditedAction },
  { instanceId, lineItemId }: LineItemPlace,
  now: number,
  next: (stored: readonly Action[]) => readonly Action[],
): Promise<readonly ActionUse[]> {
  return changeRules(store, instanceId, now, async (tx) => {
    const record = await requireLineItem(tx, instanceId, lineItemId)
    const actions = next(await tx.actions.of(instanceId, lineItemId))
    await refuseInconsistent(tx, instanceId, actions)
    await tx.actions.replace(instanceId, lineItemId, actions)
    if (action !== 'DELETE_ACTIONS') await refuseTooLarge(tx, instanceId, now)
    await retargetAccounts(tx, record, now)
    await recordChange(tx, now, { action, instanceId, lineItemId, detail: { actions: idsOf(actions) } })
    const [shown] = await actionUses(tx, instanceId, [{ lineItemId, actions }])
    return shown?.actions ?? []
  })
}

async function refuseInconsistent(tx: Transaction, instanceId: string, actions: readonly Action[]): Promise<void> {
  const conditions = new Set((await tx.conditions.list(instanceId)).map(({ id }) => id))
  const problem = actionsProblem(
    actions.map(({ effect, conditionId, allocation }) => ({
      action: effect,
      conditionId: conditionId ?? undefined,
      allocation: allocation ?? undefined,
    })),
    conditions,
  )
  if (problem === undefined) return
  throw new CodedError('BAD_REQUEST', `body: ${actionsProblemText(problem)}`, { details: { ...problem } })
}

/** As this service stores it. */
export function storedAction(input: Omit<ActionInput, 'id' | 'used'> & { readonly id: string }): Action {
  return {
    id: input.id,
    name: input.name ?? null,
    conditionId: input.conditionId ?? null,
    effect: input.action,
    // Not used for DENY. Source: interface, Action, row allocation.
    allocation: input.action === 'DENY' ? null : (input.allocation ?? null),
  }
}
