/** Operations on actions. Source: interface, Rules of access: actions. */
import { z } from 'zod'
import { tokensNumber } from '../../../protocol/wire.ts'
import {
  type ActionWire,
  actionList,
  actionPage,
  createdActionsBody,
  replacedActionsBody,
} from '../../../protocol/service/actions.ts'
import { PAGE_SIZE_DEFAULT, paging } from '../../../protocol/service/instances.ts'
import { appendActions, removeActions, replaceActions } from '../../service-api/change-actions.ts'
import { requireInstance, requireLineItem } from '../../storage/require-record.ts'
import { type ActionUse, actionUses } from '../../service-api/show-line-items.ts'
import type { Store } from '../../storage/store.ts'
import { type Operation, inInstance, CLIENTS } from '../operation.ts'
import { rulesOperation } from './rules-operation.ts'
import { inLineItem } from './line-items.ts'
import { pageOf } from './page.ts'

const place = {
  path: '/instances/:instanceId/line-items/:lineItemId/actions',
  areas: ['api', 'floating/api'],
  principals: CLIENTS,
  params: inLineItem,
  tag: 'Rules of access',
  errors: ['NOT_FOUND'],
} as const

export function actionOperations(store: Store, newId: () => string): readonly Operation[] {
  return [
    rulesOperation(store, {
      ...place,
      id: 'createactions',
      role: 'rules',
      summary: 'Add actions to the end of the list of a line item',
      example: [
        { name: 'Design', conditionId: '2a6a8a5e-6a4b-4f6d-8a6e-4d8a3a2b1c0d', action: 'ALLOW', allocation: 1000 },
      ],
      answers: { 200: { description: 'The actions that were added.', body: actionList } },
      method: 'POST',
      body: createdActionsBody,
      handle: async ({ params, body, now }, acting) => ({
        status: 200,
        body: (await appendActions({ store: acting, newId }, params, body, now)).map(actionToWire),
      }),
    }),
    rulesOperation(store, {
      ...place,
      id: 'putactions',
      role: 'rules',
      summary: 'Replace the ordered list of actions of a line item',
      description: 'Omitted actions are removed, together with their usage counts.',
      answers: { 200: { description: 'The actions as saved.', body: actionList } },
      method: 'PUT',
      body: replacedActionsBody,
      handle: async ({ params, body, now }, acting) => ({
        status: 200,
        body: (await replaceActions({ store: acting, newId }, params, body, now)).map(actionToWire),
      }),
    }),
    rulesOperation(store, {
      ...place,
      id: 'getlineitemactions',
      summary: 'List the actions of a line item',
      answers: { 200: { description: 'The actions in their order.', body: actionList } },
      method: 'GET',
      handle: async ({ params: { instanceId, lineItemId } }, acting) => {
        const uses = await acting.read(async (reader) => {
          await requireLineItem(reader, instanceId, lineItemId)
          const actions = await reader.actions.of(instanceId, lineItemId)
          return actionUses(reader, instanceId, [{ lineItemId, actions }])
        })
        return { status: 200, body: uses.flatMap(({ actions }) => actions.map(actionToWire)) }
      },
    }),
    rulesOperation(store, {
      ...place,
      id: 'deleteactions',
      role: 'rules',
      summary: 'Delete all actions of a line item',
      answers: { 204: { description: 'All actions are deleted.' } },
      method: 'DELETE',
      handle: async ({ params, now }, acting) => {
        await removeActions(acting, params, now)
        return { status: 204 }
      },
    }),
    rulesOperation(store, {
      ...place,
      id: 'getallactions',
      summary: 'List the actions of all line items of an instance',
      answers: { 200: { description: 'One page.', body: actionPage } },
      method: 'GET',
      path: '/instances/:instanceId/line-items/actions',
      params: inInstance,
      query: z.object({ next: paging.next }),
      handle: async ({ params: { instanceId }, query: { next: from = 0 } }, acting) =>
        acting.read(async (reader) => {
          await requireInstance(reader, instanceId)
          const list = (offset: number, limit: number) => reader.actions.list(instanceId, offset, limit)
          const { shown, next } = await pageOf(from, PAGE_SIZE_DEFAULT, list)
          const lineItems = (await actionUses(reader, instanceId, shown)).map(({ lineItemId, actions }) => ({
            lineItemId,
            actions: actions.map(actionToWire),
          }))
          return { status: 200, body: [{ lineItems, next }] }
        }),
    }),
  ]
}

function actionToWire({ action, used }: ActionUse): ActionWire {
  const { id, name, conditionId, effect, allocation } = action
  return {
    id,
    ...(name === null ? {} : { name }),
    ...(conditionId === null ? {} : { conditionId }),
    action: effect,
    ...(allocation === null ? {} : { allocation: tokensNumber(allocation) }),
    ...(used === null ? {} : { used: tokensNumber(used) }),
  }
}
