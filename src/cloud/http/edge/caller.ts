/** Shows administrators as which caller the cloud knows them. */
import { type CallerState, callerState } from '../../../protocol/edge/administration.ts'
import { ROLES } from '../../../protocol/service/keys.ts'
import type { Administrator } from '../../service-api/principal.ts'
import { type Operation, ADMINISTRATORS, edgeOperation } from '../operation.ts'

export function callerOperations(): readonly Operation[] {
  return [
    edgeOperation({
      method: 'GET',
      path: '/caller',
      principals: ADMINISTRATORS,
      concernsCaller: true,
      cells: 'ANY',
      id: 'showCaller',
      tag: 'Administration',
      summary: 'Show the name, roles and instances of the calling administrator',
      answers: { 200: { description: 'The administrator.', body: callerState } },
      handle: async ({ principal }) => ({ status: 200, body: stateOf(principal) }),
    }),
  ]
}

function stateOf({ keyId, issuer, name, rights }: Administrator): CallerState {
  const shown = rights.map(({ roles, instances }) => {
    return { roles: [...(roles ?? ROLES)], instances: instances === null ? null : [...instances] }
  })
  return { keyId, issuer, name, rights: shown }
}
