/** Operations on conditions. Source: interface, Rules of access: conditions. */
import { z } from 'zod'
import { uuidInLowerCase } from '../../../protocol/wire.ts'
import { type ConditionWire, conditionList, conditionsBody } from '../../../protocol/service/conditions.ts'
import {
  createConditions,
  deleteCondition,
  deleteConditions,
  patchConditions,
} from '../../service-api/change-conditions.ts'
import type { ConditionNode } from '../../storage/records.ts'
import { requireInstance } from '../../storage/require-record.ts'
import type { Store } from '../../storage/store.ts'
import { type Operation, inInstance, instanceId, CLIENTS } from '../operation.ts'
import { rulesOperation } from './rules-operation.ts'

const place = {
  path: '/instances/:instanceId/conditions',
  areas: ['api', 'floating/api'],
  principals: CLIENTS,
  params: inInstance,
  tag: 'Rules of access',
  errors: ['NOT_FOUND'],
} as const

export function conditionOperations(store: Store, newId: () => string): readonly Operation[] {
  return [
    rulesOperation(store, {
      ...place,
      id: 'getconditions',
      summary: 'List the conditions of an instance',
      answers: { 200: { description: 'All conditions.', body: conditionList } },
      method: 'GET',
      handle: async ({ params }, acting) => {
        const conditions = await acting.read(async (reader) => {
          await requireInstance(reader, params.instanceId)
          return reader.conditions.list(params.instanceId)
        })
        return { status: 200, body: conditions.map(conditionToWire) }
      },
    }),
    rulesOperation(store, {
      ...place,
      id: 'postconditions',
      role: 'rules',
      summary: 'Create conditions',
      example: [{ name: 'Engineers', operator: 'IN', property: 'department', values: ['engineering', 'design'] }],
      answers: { 200: { description: 'Only the created conditions.', body: conditionList } },
      method: 'POST',
      body: conditionsBody,
      handle: async ({ params, body, now }, acting) => ({
        status: 200,
        body: (await createConditions({ store: acting, newId }, params.instanceId, body, now)).map(conditionToWire),
      }),
    }),
    rulesOperation(store, {
      ...place,
      id: 'patchconditions',
      role: 'rules',
      summary: 'Update conditions by their id, and create those without one',
      answers: { 200: { description: 'Only the created and updated conditions.', body: conditionList } },
      method: 'PATCH',
      body: conditionsBody,
      handle: async ({ params, body, now }, acting) => ({
        status: 200,
        body: (await patchConditions({ store: acting, newId }, params.instanceId, body, now)).map(conditionToWire),
      }),
    }),
    rulesOperation(store, {
      ...place,
      id: 'deleteconditions',
      role: 'rules',
      summary: 'Delete all conditions of an instance',
      answers: { 204: { description: 'All conditions are deleted.' } },
      errors: ['NOT_FOUND', 'CONFLICT'],
      method: 'DELETE',
      handle: async ({ params, now }, acting) => {
        await deleteConditions(acting, params.instanceId, now)
        return { status: 204 }
      },
    }),
    rulesOperation(store, {
      ...place,
      id: 'deletecondition',
      role: 'rules',
      summary: 'Delete one condition',
      answers: { 204: { description: 'The condition is deleted.' } },
      errors: ['NOT_FOUND', 'CONFLICT'],
      method: 'DELETE',
      path: '/instances/:instanceId/conditions/:conditionId',
      params: z.object({ instanceId, conditionId: uuidInLowerCase }),
      handle: async ({ params, now }, acting) => {
        await deleteCondition(acting, params.instanceId, params.conditionId, now)
        return { status: 204 }
      },
    }),
  ]
}

function conditionToWire(node: ConditionNode): ConditionWire {
  const label = { id: node.id, ...(node.name === null ? {} : { name: node.name }) }
  switch (node.operator) {
    case 'AND':
    case 'OR':
      return { ...label, operator: node.operator, conditions: node.conditions.map(conditionToWire) }
    case 'NOT':
      return { ...label, operator: 'NOT', condition: conditionToWire(node.condition) }
    case 'IN':
      return { ...label, operator: 'IN', property: node.property, values: node.values }
  }
}
