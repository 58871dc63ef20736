/** Tells programs without a token where administrators sign in. The response is the same for everyone. */
import type { FastifyInstance } from 'fastify'
import { CodedError } from '../../protocol/errors.ts'
import { SIGN_IN_PATH, type SignInOptionsWire, signInOptions } from '../../protocol/sign-in.ts'
import type { SignIn } from '../service-api/sign-in.ts'
import { sendJson } from './answer-error.ts'
import { declaredAnswers } from './declared-answers.ts'

/** @param signIn null: administrators use keys only */
export function registerSignIn(http: FastifyInstance, prefix: string, signIn: Pick<SignIn, 'options'> | null): void {
  const form = { description: 'Issuer, client and scopes of the OpenID Connect provider.', body: signInOptions }
  const answers = declaredAnswers('GET', { 200: form }, ['SIGN_IN_NOT_OFFERED'])
  http.get(`${prefix}${SIGN_IN_PATH}`, { exposeHeadRoute: true, config: { answers } }, (_request, reply) => {
    if (signIn === null) throw new CodedError('SIGN_IN_NOT_OFFERED', 'Administrators of this cloud use keys only.')
    sendJson(reply, 200, signIn.options satisfies SignInOptionsWire)
  })
}
