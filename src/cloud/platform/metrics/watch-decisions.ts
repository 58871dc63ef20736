/** Reports decisions on access requests from their responses, without changing them. */
import type { AccessResponse } from '../../../protocol/service/access-request.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import type { Route } from '../../http/routes.ts'

/** Operations that respond with an access response or a refusal. */
const DECIDING: ReadonlySet<string> = new Set(['postaccessrequest', 'putsessionaccessrequest'])

/** @param onDecision called for each item with its status code in that API version */
export function watchDecisions(
  routes: readonly Route[],
  onDecision: (version: ApiVersion, code: string) => void,
): readonly Route[] {
  return routes.map((operation) =>
    DECIDING.has(operation.id)
      ? {
          ...operation,
          handle: async (call) => {
            const answer = await operation.handle(call)
            const { requestedItems = [] } = (answer.body ?? {}) as Partial<AccessResponse>
            for (const { status } of requestedItems) onDecision(call.version, status.code)
            return answer
          },
        }
      : operation,
  )
}
