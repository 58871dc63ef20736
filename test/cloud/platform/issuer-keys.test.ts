import { decodeProtectedHeader } from 'jose'
import { expect, it } from 'vitest'
import { IssuerKeys } from '../../../src/cloud/platform/oidc/issuer-keys.ts'
import { FakeIssuer } from '../../support/fake-issuer.ts'

it('logs why the keys were not loaded, once for an outage, and its end', async () => {
  await using issuer = await FakeIssuer.start()
  const logged: (readonly [unknown, string])[] = []
  const log = (fields: unknown, message?: string) => void logged.push([fields, message ?? ''])
  let at = 0
  const keys = new IssuerKeys({
    ...{ issuer: issuer.issuer, timeoutMs: 10_000, waitingMax: 16, now: () => at },
    log: { info: log, warn: log } as ConstructorParameters<typeof IssuerKeys>[0]['log'],
  })
  const token = await issuer.token(0, {})
  const [payload = '', signature = ''] = token.split('.').slice(1)
  const find = async () => keys.find(decodeProtectedHeader(token) as { alg: string }, { payload, signature })
  issuer.respond = (request) => request.socket.destroy()
  for (let attempt = 0; attempt < 3; attempt += 1) {
    await expect(find()).rejects.toMatchObject({ code: 'SIGN_IN_UNAVAILABLE' })
    at += 11_000
  }
  issuer.respond = null
  await find()
  at += 11 * 60_000
  await find()
  expect(logged).toEqual([
    [
      { code: 'SIGN_IN_UNAVAILABLE', issuer: issuer.issuer, reason: 'other side closed' },
      'the keys of the OpenID Connect provider were not loaded',
    ],
    [{ issuer: issuer.issuer }, 'the keys of the OpenID Connect provider were loaded again'],
  ])
})
