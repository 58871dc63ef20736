/** The one-off access request. Source: interface, Non-session access request. */
import {
  accessRequestBody,
  accessResponse,
  accessResponses,
  readAccessRequest,
  type ReadAccessRequest,
} from '../../../protocol/service/access-request.ts'
import { z } from 'zod'
import type { Decision } from '../../../core/rules/decision.ts'
import { claimOf } from '../../service-api/idempotency-key.ts'
import type { AccessBatcher } from '../../service-api/request-access.ts'
import { type Operation, inInstance, serviceOperation, CLIENTS } from '../operation.ts'
import { REQUEST_EXAMPLE, responseExample } from './examples.ts'

interface RequestAccess {
  readonly batcher: AccessBatcher
  readonly newId: () => string
  /** {@link Moment.present} */
  readonly present: () => number
}

export function accessRequestOperations({ batcher, newId, present }: RequestAccess): readonly Operation[] {
  return [
    serviceOperation({
      id: 'postaccessrequest',
      decides: true,
      role: 'operator',
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
      errors: ['NOT_FOUND', 'IDEMPOTENCY_CONFLICT', 'IDEMPOTENCY_IN_PROGRESS'],
      idempotent:
        'Charges once: for 24 hours, the same caller gets the first response again for the same request under the same key on the same instance. A different request under the key is refused.',
      method: 'POST',
      path: '/instances/:instanceId/access-request',
      areas: ['elastic/api'],
      principals: CLIENTS,
      params: inInstance,
      body: z.unknown(),
      bodyForm: (version) => accessRequestBody[version],
      handle: async ({ params: { instanceId }, body, version, principal, idempotencyKey, now }) => {
        const { request, metaData } = readAccessRequest(version, body)
        const correlationId = newId()
        const command = { instanceId, correlationId, request, metaData: metaDataTexts(metaData) }
        const responseTo = (decision: Decision) => accessResponse(version, correlationId, request, decision)
        if (idempotencyKey === null) return { status: 200, body: responseTo(await batcher.request(command, now)) }
        const compared = [version, request, metaData]
        const keyed = { concerned: instanceId, key: idempotencyKey, request: compared, created: present() }
        const answerOf = (decision: Decision): string => JSON.stringify(responseTo(decision))
        const result = await batcher.requestOnce(
          { ...command, once: { claim: claimOf(principal, keyed), answerOf } },
          now,
        )
        return 'answer' in result
          ? { status: 200, text: result.answer }
          : { status: 200, body: responseTo(result.decision) }
      },
    }),
  ]
}

export function metaDataTexts(metaData: ReadAccessRequest['metaData']): readonly (string | null)[] {
  return metaData.map((each) => (each === undefined ? null : JSON.stringify(each)))
}
