/** The one-off access request. Source: interface, Non-session access request. */
import {
  accessRequestBody,
  accessResponse,
  accessResponses,
  requestOf,
  type AccessRequestBody,
} from '../../../protocol/service/access-request.ts'
import type { AccessBatcher } from '../../service-api/request-access.ts'
import { type Operation, inInstance, serviceOperation, CLIENTS } from '../operation.ts'
import { REQUEST_EXAMPLE, responseExample } from './examples.ts'

export function accessRequestOperations(batcher: AccessBatcher, newId: () => string): readonly Operation[] {
  return [
    serviceOperation({
      id: 'postaccessrequest',
      tag: 'Access requests',
      summary: 'Request items once, without a session',
      description: 'Each item is granted or refused independently, in the given order.',
      example: REQUEST_EXAMPLE,
      answers: (version) => ({
        200: {
          description: 'The result of each item, granted or refused.',
          body: accessResponses[version],
          example: responseExample(version),
        },
      }),
      errors: ['NOT_FOUND'],
      method: 'POST',
      path: '/instances/:instanceId/access-request',
      areas: ['elastic/api'],
      principals: CLIENTS,
      params: inInstance,
      body: (version) => accessRequestBody[version],
      handle: async ({ params: { instanceId }, body, version, now }) => {
        const request = requestOf(body)
        const correlationId = newId()
        const order = { instanceId, correlationId, request, metaData: metaDataOf(body) }
        const decision = await batcher.request(order, now)
        return { status: 200, body: accessResponse(version, correlationId, request, decision) }
      },
    }),
  ]
}

export function metaDataOf({ requestedItems }: Pick<AccessRequestBody, 'requestedItems'>): readonly (string | null)[] {
  return requestedItems.map(({ metaData }) => (metaData === undefined ? null : JSON.stringify(metaData)))
}
