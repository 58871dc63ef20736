/** Actions on the wire. Source: interface, Rules of access; documentation on actions. */
import { z } from 'zod'
import { plainText, readOnlyField, tokenAmount, uuid, uuidInLowerCase } from '../wire.ts'

export const ACTIONS_MAX = 1_000

const fields = {
  name: plainText(256).optional(),
  conditionId: uuidInLowerCase.optional(),
  action: z.enum(['ALLOW', 'DENY']),
  allocation: tokenAmount('NON_NEGATIVE').optional(),
}

const createdAction = z.strictObject({ ...fields, id: readOnlyField, used: readOnlyField }).meta({ id: 'NewAction' })
export type NewAction = z.infer<typeof createdAction>

export const replacedAction = z
  .strictObject({
    ...fields,
    id: uuidInLowerCase.optional(),
    used: readOnlyField,
  })
  .meta({ id: 'ActionToSave', description: 'With the `id` of an existing action, its usage count is kept.' })
export type ActionInput = z.infer<typeof replacedAction>

export const createdActionsBody = z.array(createdAction).min(1).max(ACTIONS_MAX)

/** Body of PUT: the complete list; empty removes all. */
export const replacedActionsBody = z.array(replacedAction).max(ACTIONS_MAX)

export interface ActionsProblem {
  /** Of the field in the list; empty: the list as a whole. */
  readonly path: readonly [at: number, field: 'conditionId' | 'allocation'] | readonly []
  readonly problem: string
}

export function actionsProblemText({ path: [at], problem }: ActionsProblem): string {
  return at === undefined ? problem : `action ${at + 1}: ${problem}`
}

/** First problem of the whole list; undefined if valid. */
export function actionsProblem(
  actions: readonly Pick<ActionInput, 'conditionId' | 'action' | 'allocation'>[],
  conditions: ReadonlySet<string>,
): ActionsProblem | undefined {
  if (actions.length > ACTIONS_MAX) return { path: [], problem: `a line item has at most ${ACTIONS_MAX} actions` }
  const first = actions.findIndex(({ conditionId }) => conditionId === undefined)
  for (const [at, { action, conditionId, allocation: cap }] of actions.entries()) {
    if (conditionId === undefined) {
      if (at !== first) return { path: [at, 'conditionId'], problem: 'at most one action can have no condition' }
    } else if (!conditions.has(conditionId)) {
      return { path: [at, 'conditionId'], problem: `there is no condition ${conditionId}` }
    } else if (action === 'ALLOW' && cap === undefined) {
      return { path: [at, 'allocation'], problem: 'an ALLOW with a condition needs an allocation' }
    }
  }
  return undefined
}

export const action = z
  .strictObject({
    id: uuid,
    name: z.string().optional(),
    conditionId: uuid.optional(),
    action: z.enum(['ALLOW', 'DENY']),
    allocation: z.number().min(0).optional(),
    used: z.number().min(0).optional(),
  })
  .meta({
    id: 'Action',
    description:
      'One entry of the ordered list. The first action whose condition is met decides. `used` only with an allocation.',
  })
export type ActionWire = z.infer<typeof action>

export const actionList = z.array(action)

export const actionPage = z
  .tuple([
    z.strictObject({
      lineItems: z.array(
        z.strictObject({ lineItemId: z.string(), actions: actionList }).meta({ id: 'ActivationActions' }),
      ),
      next: z.int().min(0),
    }),
  ])
  .meta({ id: 'ActionPage', description: 'An array of one page. `next` is 0 on the last one.' })
