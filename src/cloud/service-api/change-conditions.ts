/**
 * Conditions of an instance. One that an action refers to cannot be deleted. Source: interface, Rules of access;
 * documentation on conditions.
 */
import { idsOf, recordChange } from '../storage/audit.ts'
import { CONDITION_DEPTH_MAX } from '../../core/rules/policy.ts'
import { CodedError, bodyError } from '../../protocol/errors.ts'
import {
  CONDITIONS_CHARACTERS_MAX,
  CONDITIONS_MAX,
  type ConditionInput,
  conditionDepth,
} from '../../protocol/service/conditions.ts'
import { type RuleDeps, changeRules, lockRules, bumpPolicyRevision } from '../policy/bump-policy-revision.ts'
import { refuseTooLarge } from '../policy/refuse-too-large.ts'
import type { ConditionNode } from '../storage/records.ts'
import { notOn } from '../storage/require-record.ts'
import type { Store, Transaction } from '../storage/store.ts'

export async function createConditions(
  { store, newId }: RuleDeps,
  instanceId: string,
  inputs: readonly ConditionInput[],
  now: number,
): Promise<readonly ConditionNode[]> {
  const created = nodesOf(inputs, () => newId())
  return changeRules(store, instanceId, now, async (tx) => {
    await refuseTooMuch(tx, instanceId, created, [])
    await tx.conditions.save(instanceId, created)
    await refuseTooLarge(tx, instanceId, now)
    await recordChange(tx, now, { action: 'ADD_CONDITIONS', instanceId, detail: { conditions: idsOf(created) } })
    return created
  })
}

/**
 * Updates those with an id and creates the others. Returns the changed ones. @throws CodedError NOT_FOUND, BAD_REQUEST
 */
export async function patchConditions(
  { store, newId }: RuleDeps,
  instanceId: string,
  inputs: readonly ConditionInput[],
  now: number,
): Promise<readonly ConditionNode[]> {
  const given = inputs.flatMap(({ id }) => (id === undefined ? [] : [id]))
  if (new Set(given).size < given.length) throw bodyError('two conditions have the same id')
  const nodes = nodesOf(inputs, (id) => id ?? newId())
  return store.transaction(async (tx) => {
    const revision = await lockRules(tx, instanceId)
    const stored = new Map((await tx.conditions.list(instanceId)).map((node) => [node.id, node]))
    const unknown = given.find((id) => !stored.has(id))
    if (unknown !== undefined) throw bodyError(`there is no condition ${unknown}`)
    const changed = nodes.filter((node) => !same(stored.get(node.id), node))
    if (changed.length === 0) return []
    const replaced = changed.flatMap(({ id }) => stored.get(id) ?? [])
    await refuseTooMuch(tx, instanceId, changed, replaced)
    await tx.conditions.save(instanceId, changed)
    await refuseTooLarge(tx, instanceId, now)
    await bumpPolicyRevision(tx, revision, now)
    await recordChange(tx, now, { action: 'CHANGE_CONDITIONS', instanceId, detail: { conditions: idsOf(changed) } })
    return changed
  })
}

/** @throws CodedError NOT_FOUND, CONFLICT */
export async function deleteCondition(store: Store, instanceId: string, id: string, now: number): Promise<void> {
  await changeRules(store, instanceId, now, async (tx) => {
    if ((await tx.conditions.get(instanceId, id)) === undefined) throw await notOn(tx, instanceId, `condition ${id}`)
    await remove(tx, instanceId, [id], now)
  })
}

/** @throws CodedError NOT_FOUND, CONFLICT */
export async function deleteConditions(store: Store, instanceId: string, now: number): Promise<void> {
  await changeRules(store, instanceId, now, async (tx) => {
    await remove(
      tx,
      instanceId,
      (await tx.conditions.list(instanceId)).map(({ id }) => id),
      now,
    )
  })
}

async function remove(tx: Transaction, instanceId: string, ids: readonly string[], now: number): Promise<void> {
  const referenced = await tx.conditions.referenced(instanceId)
  const kept = ids.find((id) => referenced.has(id))
  if (kept !== undefined) {
    const { name = null } = (await tx.conditions.get(instanceId, kept)) ?? {}
    throw new CodedError(
      'CONFLICT',
      `An action refers to condition ${name === null ? kept : `${name} (${kept})`}. Remove the action first.`,
    )
  }
  await tx.conditions.remove(instanceId, ids)
  const conditions = idsOf(ids.map((id) => ({ id })))
  await recordChange(tx, now, { action: 'DELETE_CONDITIONS', instanceId, detail: { conditions } })
}

export async function refuseTooMuch(
  tx: Transaction,
  instanceId: string,
  saved: readonly ConditionNode[],
  replaced: readonly ConditionNode[],
): Promise<void> {
  const stored = await tx.conditions.size(instanceId)
  if (stored.count + saved.length - replaced.length > CONDITIONS_MAX) {
    throw bodyError(`an instance has at most ${CONDITIONS_MAX} conditions`)
  }
  if (stored.characters + charactersOf(saved) - charactersOf(replaced) > CONDITIONS_CHARACTERS_MAX) {
    throw bodyError(`the conditions of an instance have at most ${CONDITIONS_CHARACTERS_MAX} characters of JSON in all`)
  }
}

function charactersOf(nodes: readonly ConditionNode[]): number {
  return nodes.reduce((sum, node) => sum + JSON.stringify(node).length, 0)
}

/** The id of a node, by the id in the body. */
type IdFor = (given: string | undefined) => string

export function nodesOf(inputs: readonly ConditionInput[], idFor: IdFor): readonly ConditionNode[] {
  return inputs.map((input, index) => {
    if (conditionDepth(input) > CONDITION_DEPTH_MAX) {
      throw bodyError(`nests deeper than ${CONDITION_DEPTH_MAX} levels`, [index])
    }
    return nodeOf(input, idFor)
  })
}

function nodeOf(input: ConditionInput, idFor: IdFor): ConditionNode {
  const label = { id: idFor(input.id), name: input.name ?? null }
  switch (input.operator) {
    case 'AND':
    case 'OR':
      return {
        ...label,
        operator: input.operator,
        conditions: input.conditions.map((inner) => nodeOf(inner, idFor)),
      }
    case 'NOT':
      return { ...label, operator: 'NOT', condition: nodeOf(input.condition, idFor) }
    case 'IN':
      return { ...label, operator: 'IN', property: input.property, values: input.values }
  }
}

/** Both come from {@link nodeOf}, so their JSON has the same key sequence. */
function same(stored: ConditionNode | undefined, node: ConditionNode): boolean {
  return stored !== undefined && JSON.stringify(stored) === JSON.stringify(node)
}
