/** The one-off access request. Source: contract, Non-session access request. */
import { accessRequestBody, accessResponse, requestOf } from '../../../../protocol/service/access-request.ts'
import { API_VERSIONS } from '../../../../protocol/service/status.ts'
import type { Policies } from '../../../app/load-policy.ts'
import { requestAccess } from '../../../app/request-access.ts'
import type { Store } from '../../../app/store.ts'
import { type Route, inInstance, route } from '../routes.ts'
import { metaDataOf } from './meta-data.ts'

export function accessRequestRoutes(store: Store, policies: Policies, newId: () => string): readonly Route[] {
  return [
    ...API_VERSIONS.map((version) =>
      route({
        versions: [version],
        method: 'POST',
        path: '/instances/:instanceId/access-request',
        areas: ['elastic/api'],
        access: 'EITHER',
        params: inInstance,
        body: accessRequestBody[version],
        handle: async ({ params: { instanceId }, body, now }) => {
          const request = requestOf(body)
          const correlationId = newId()
          const order = { instanceId, correlationId, request, metaData: metaDataOf(body) }
          const decision = await requestAccess(store, policies, order, now)
          return { status: 200, body: accessResponse(version, correlationId, request, decision) }
        },
      }),
    ),
  ]
}
