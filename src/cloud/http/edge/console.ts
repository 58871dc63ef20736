/** Sign-in to the console by a program that has an access token. */
import { consoleCode } from '../../../protocol/edge/administration.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { ConsoleSignIn } from '../../console/sign-in.ts'
import { bearerToken } from '../../service-api/authenticate.ts'
import { type Operation, ADMINISTRATORS, edgeOperation } from '../operation.ts'

export interface ConsoleDeps {
  /** Null: the console is off. */
  readonly console: Pick<ConsoleSignIn, 'codeFor'> | null
}

export function consoleOperations({ console }: ConsoleDeps): readonly Operation[] {
  return [
    edgeOperation({
      method: 'POST',
      path: '/console-codes',
      principals: ADMINISTRATORS,
      concernsCaller: true,
      cells: 'ANY',
      role: 'read',
      id: 'createConsoleCode',
      tag: 'Administration',
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
