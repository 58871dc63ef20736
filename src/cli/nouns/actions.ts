/** Actions of line items, with conditions by name: people write names, the service takes ids. */
import { z } from 'zod'
import { ACTIONS_MAX, actionsProblem, replacedAction } from '../../protocol/service/actions.ts'
import { plainText } from '../../protocol/wire.ts'
import { type Change, type Scope, valueText } from './noun.ts'
import { type Row, type Service, notFound } from './service.ts'

/** `condition` is the name or id of a condition, which may not exist yet. */
export const actionsBody = z.strictObject({
  lineItemId: z.string(),
  actions: z
    .array(replacedAction.omit({ conditionId: true }).extend({ condition: plainText(256).optional() }))
    .max(ACTIONS_MAX)
    .superRefine((actions, context) => {
      const named = actions.map((action) => ({ ...action, conditionId: action.condition }))
      const problem = actionsProblem(named, new Set(named.flatMap(({ conditionId }) => conditionId ?? [])))
      if (problem === undefined) return
      const path = problem.path.map((key) => (key === 'conditionId' ? 'condition' : key))
      context.addIssue({ code: 'custom', path, message: problem.problem })
    }),
})

export async function listRules(service: Service, { instanceId }: Scope): Promise<readonly Row[]> {
  const conditions = await conditionsOf(service, instanceId)
  const rows = await service.pages(`/api/v1.1/instances/${instanceId}/line-items/actions`, 'lineItems')
  return rows
    .map(({ lineItemId, actions }) => ({ lineItemId, actions: named(actions as readonly Row[], conditions) }))
    .filter(({ actions }) => actions.length > 0)
}

/** Of these line items, as far as they can be read. */
export async function actionsOf(
  service: Service,
  instanceId: string,
  lineItemIds: Iterable<string>,
): Promise<readonly Row[]> {
  const conditions = await conditionsOf(service, instanceId).catch(() => [])
  const found: Row[] = []
  for (const lineItemId of lineItemIds) {
    const path = `/api/v1.1/instances/${instanceId}/line-items/${encodeURIComponent(lineItemId)}/actions`
    found.push(...named(await service.rows(path).catch(() => []), conditions))
  }
  return found
}

/** With the names of their conditions. */
function named(actions: readonly Row[], conditions: readonly Row[]): readonly Row[] {
  const names = new Map(conditions.map(({ id, name }) => [id, name ?? id]))
  return actions.map(({ conditionId, ...action }) => ({
    ...action,
    ...(conditionId === undefined ? {} : { conditionId, condition: names.get(conditionId) ?? conditionId }),
  }))
}

/** Without what only the service sets. */
export function comparableActions({ lineItemId, actions }: Row): Row {
  const settable = (actions as readonly Row[]).map(
    ({ id: _id, used: _used, conditionId: _conditionId, ...action }) => action,
  )
  return { lineItemId, actions: settable }
}

/** The body of a PUT: an action that stays keeps its id, and so its use. */
export async function savedActions({ service, scope, body, existing }: Change): Promise<readonly Row[]> {
  const conditions = await conditionsOf(service, scope.instanceId)
  const left = [...((existing?.['actions'] ?? []) as readonly Row[])]
  return (body['actions'] as readonly Row[]).map(({ condition, ...action }) => {
    const at = bestMatch({ condition, ...action }, left)
    const [kept] = at === -1 ? [] : left.splice(at, 1)
    return {
      ...(kept === undefined ? {} : { id: kept['id'] }),
      ...action,
      ...(condition === undefined ? {} : { conditionId: conditionId(valueText(condition), conditions) }),
    }
  })
}

/** Index of the action with the same effect and condition, and if possible the same name; -1: none. */
function bestMatch(wanted: Row, left: readonly Row[]): number {
  const isSame = (each: Row): boolean =>
    each['action'] === wanted['action'] && each['condition'] === wanted['condition']
  const exact = left.findIndex((each) => isSame(each) && each['name'] === wanted['name'])
  return exact === -1 ? left.findIndex(isSame) : exact
}

function conditionId(named: string, conditions: readonly Row[]): string {
  const found = conditions.find(({ id, name }) => id === named || name === named)
  if (found !== undefined) return valueText(found['id'])
  throw notFound(
    { one: 'condition', name: 'conditions' },
    named,
    conditions.map(({ name }) => valueText(name)),
  )
}

async function conditionsOf(service: Service, instanceId: string | null): Promise<readonly Row[]> {
  return service.rows(`/api/v1.1/instances/${instanceId}/conditions`)
}
