/** Tells what was decided on access requests, by what their answers say. An answer leaves as it is. */
import type { AccessResponse } from '../../../protocol/service/access-request.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import type { Route } from '../http/routes.ts'

/** Operations whose answer is an access response, or says why there is none. */
const DECIDING: ReadonlySet<string> = new Set(['postaccessrequest', 'putsessionaccessrequest'])

/** @param onDecision hears of each item: its status code in that version */
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
