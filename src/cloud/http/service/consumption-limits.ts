/**
 * The consumption limit of a line item. An extension of this project: the service has one, but its form is not public. See
 * docs/decisions/periods.md.
 */
import { consumptionLimit, consumptionLimitBody } from '../../../protocol/service/consumption-limits.ts'
import { tokensNumber } from '../../../protocol/wire.ts'
import {
  type ConsumptionLimitTerms,
  removeConsumptionLimit,
  setConsumptionLimit,
  showConsumptionLimit,
} from '../../service-api/set-consumption-limit.ts'
import type { Store } from '../../storage/store.ts'
import { type Operation, CLIENTS } from '../operation.ts'
import { rulesOperation } from './rules-operation.ts'
import { inLineItem } from './line-items.ts'

const place = {
  path: '/instances/:instanceId/line-items/:lineItemId/consumption-limit',
  areas: ['api', 'floating/api'],
  versions: ['v1.1'],
  principals: CLIENTS,
  params: inLineItem,
  tag: 'Consumption limits',
  errors: ['NOT_FOUND'],
} as const

export function consumptionLimitOperations(store: Store): readonly Operation[] {
  return [
    rulesOperation(store, {
      ...place,
      id: 'getconsumptionlimit',
      summary: 'Show the consumption limit of a line item',
      answers: { 200: { description: 'The limit and its next reset.', body: consumptionLimit } },
      method: 'GET',
      handle: async ({ params, now }, acting) => {
        const terms = await acting.read((reader) => showConsumptionLimit(reader, params, now))
        return { status: 200, body: termsToWire(terms) }
      },
    }),
    rulesOperation(store, {
      ...place,
      id: 'putconsumptionlimit',
      role: 'rules',
      summary: 'Set the consumption limit of a line item',
      description: 'Counts start at zero, unless only the amount changes.',
      example: { limit: 100, frequency: 'MONTHLY', nextReset: 1_772_323_200_000 },
      answers: { 200: { description: 'The limit in force.', body: consumptionLimit } },
      method: 'PUT',
      body: consumptionLimitBody,
      handle: async ({ params, body, now }, acting) => {
        const terms = await setConsumptionLimit(acting, params, body, now)
        return { status: 200, body: termsToWire(terms) }
      },
    }),
    rulesOperation(store, {
      ...place,
      id: 'deleteconsumptionlimit',
      role: 'rules',
      summary: 'Remove the consumption limit of a line item',
      answers: { 204: { description: 'The limit is removed.' } },
      method: 'DELETE',
      handle: async ({ params, now }, acting) => {
        await removeConsumptionLimit(acting, params, now)
        return { status: 204 }
      },
    }),
  ]
}

function termsToWire({ limit, frequency, nextReset }: ConsumptionLimitTerms) {
  return { limit: tokensNumber(limit), frequency, nextReset }
}
