/** What an administrator requests about itself: as whom the cloud knows it, and a sign-in to the console by its access token. */
import { type CallerState, callerState, consoleCode } from '../../../protocol/edge/administration.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { ROLES } from '../../../protocol/service/keys.ts'
import type { ConsoleSignIn } from '../../console/sign-in.ts'
import { bearerToken } from '../../service-api/authenticate.ts'
import type { Administrator } from '../../service-api/principal.ts'
import { type Operation, ADMINISTRATORS, edgeOperation } from '../operation.ts'

export interface CallerDeps {
  /** Null: the console is off. */
  readonly console: Pick<ConsoleSignIn, 'codeFor'> | null
}

const ofCaller = {
  principals: ADMINISTRATORS,
  concernsCaller: true,
  cells: 'ANY',
  tag: 'Administration',
} as const

export function callerOperations({ console }: CallerDeps): readonly Operation[] {
  return [
    edgeOperation({
      ...ofCaller,
      method: 'GET',
      path: '/caller',
      id: 'showCaller',
      summary: 'Show the name, roles and instances of the calling administrator',
      answers: { 200: { description: 'The administrator.', body: callerState } },
      handle: async ({ principal }) => ({ status: 200, body: stateOf(principal) }),
    }),
    edgeOperation({
      ...ofCaller,
      method: 'POST',
      path: '/console-codes',
      role: 'read',
      id: 'createConsoleCode',
      summary: 'Create a one-time code that signs a browser in to the console',
      description:
        'Open `<prefix>/console/sign-in#<code>` within a minute. The browser is signed in with the token of this request, until it expires.',
      answers: { 201: { description: 'The code.', body: consoleCode } },
      errors: ['CONSOLE_OFF', 'CONSOLE_SIGN_IN_REFUSED'],
      handle: async ({ headers, now }) => {
        if (console === null) throw new CodedError('CONSOLE_OFF', 'This cloud does not serve its console.')
        return { status: 201, body: await console.codeFor(bearerToken(headers.authorization), now) }
      },
    }),
  ]
}

function stateOf({ keyId, issuer, name, rights }: Administrator): CallerState {
  const shown = rights.map(({ roles, instances }) => {
    return { roles: [...(roles ?? ROLES)], instances: instances === null ? null : [...instances] }
  })
  return { keyId, issuer, name, rights: shown }
}
