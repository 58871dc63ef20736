// Administrators who sign in: which tokens of an issuer the cloud accepts, and how it bears a provider that fails.
import { createHmac } from 'node:crypto'
import type { ServerResponse } from 'node:http'
import { exportJWK, exportSPKI } from 'jose'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { AccessRule } from '../../../src/protocol/sign-in.ts'
import { CLIENT_ID, FakeIssuer } from '../../support/fake-issuer.ts'
import { MINUTE, type SettingsChange, type Twin, openTwin, pick, text } from '../harness.ts'

const PLANT_7 = '64d2028c-ae87-4069-a624-66089d957ef9'
const ACCESS: AccessRule[] = [
  { value: 'operators', roles: ['operator'] },
  { value: 'plant-7', roles: ['rules'], instances: [PLANT_7] },
]
const CALLER = '/edge/api/v1/caller'
const COOL_DOWN = 11_000

let issuer: FakeIssuer
let twin: Twin

const signIn =
  (change: object = {}): SettingsChange =>
  (settings) => ({
    ...settings,
    oidc: { ...settings.oidc, issuer: issuer.issuer, clientId: CLIENT_ID, access: ACCESS, ...change },
  })

beforeEach(async () => {
  issuer = await FakeIssuer.start()
  twin = await openTwin(signIn())
})
afterEach(async () => {
  await twin[Symbol.asyncDispose]()
  await issuer[Symbol.asyncDispose]()
})

const OPERATOR = { groups: ['staff', 'operators'] }

const ask = async (token: string, path = CALLER) => {
  const { status, body, headers } = await twin.call('GET', path, { token })
  return { status, code: pick(body, 'code'), message: String(pick(body, 'message')), retry: headers.get('retry-after') }
}
const refused = (code: string, message: RegExp) => ({ code, message: expect.stringMatching(message) as string })

describe('an ID token', () => {
  it('makes its user an administrator with the roles of each matching rule, in the instances of that rule', async () => {
    const token = await issuer.token(twin.now, { groups: ['plant-7', 'operators'] })
    const { body } = await twin.call('GET', CALLER, { token })
    expect(body).toEqual({
      keyId: 'ada',
      issuer: issuer.issuer,
      name: 'Ada',
      rights: [
        { roles: ['operator'], instances: null },
        { roles: ['rules'], instances: [PLANT_7] },
      ],
    })
  })

  it('with two rules has no role outside of the instances of its rule', async () => {
    const instance = await twin.shop()
    const token = await issuer.token(twin.now, { groups: ['plant-7', 'operators'] })
    const path = `/api/v1.1/instances/${instance}/line-items/ACT-1/actions`
    const { status, body } = await twin.call('POST', path, { token, body: [{ action: 'ALLOW' }] })
    expect({ status, code: pick(body, 'code') }).toEqual({ status: 403, code: 'INSTANCE_NOT_IN_SCOPE' })
    expect((await ask(token, '/edge/api/v1/devices')).status).toBe(200)
  })

  it.each([
    ['for another client', { aud: 'another' }, 'TOKEN_INVALID', /not issued to the client tallygate alone/],
    ['for several clients', { aud: [CLIENT_ID, 'another'] }, 'TOKEN_INVALID', /not issued to the client/],
    ['that another client requested', { azp: 'another' }, 'TOKEN_INVALID', /not issued to the client/],
    ['without an audience', { aud: undefined }, 'TOKEN_INVALID', /not issued to the client/],
    ['without a subject', { sub: undefined }, 'TOKEN_INVALID', /claim sub/],
    ['with an empty subject', { sub: '' }, 'TOKEN_INVALID', /claim sub/],
    ['without a time of issue', { iat: undefined }, 'TOKEN_INVALID', /claim iat/],
    ['without an end', { exp: undefined }, 'TOKEN_INVALID', /claim exp/],
    ['that tells of a logout', { events: {} }, 'TOKEN_INVALID', /claim events/],
    ['that is bound to a key', { cnf: { jkt: 'x' } }, 'TOKEN_INVALID', /claim cnf/],
    ['of a user without a role', { groups: ['staff'] }, 'SIGN_IN_NOT_MAPPED', /claim groups .*"staff"/],
    ['without the claim', { groups: undefined }, 'SIGN_IN_NOT_MAPPED', /has no such claim/],
    ['with a claim of another type', { groups: { operators: true } }, 'SIGN_IN_NOT_MAPPED', /has no such claim/],
    ['with a value that differs in case', { groups: 'Operators' }, 'SIGN_IN_NOT_MAPPED', /"Operators"/],
  ])('%s is refused', async (_what, claims, code, message) => {
    expect(await ask(await issuer.token(twin.now, { ...OPERATOR, ...claims }))).toMatchObject(refused(code, message))
  })

  it('for several clients is accepted if ours requested it', async () => {
    const token = await issuer.token(twin.now, { ...OPERATOR, aud: [CLIENT_ID, 'another'], azp: CLIENT_ID })
    expect((await ask(token)).status).toBe(200)
  })

  it.each(['at+jwt', 'logout+jwt', 'dpop+jwt'])('with the header typ %s is refused', async (typ) => {
    const token = await issuer.token(twin.now, OPERATOR, { typ })
    expect(await ask(token)).toMatchObject(refused('TOKEN_INVALID', /not an ID token/))
  })

  it('is valid from nbf to exp and up to its maximum age, with a minute of tolerance', async () => {
    const at = Math.floor(twin.now / 1000)
    const of = async (claims: object) => (await ask(await issuer.token(twin.now, { ...OPERATOR, ...claims }))).code
    expect(await of({ exp: at - 59 })).toBeUndefined()
    expect(await of({ exp: at - 60 })).toBe('TOKEN_NOT_IN_TIME')
    expect(await of({ nbf: at + 60 })).toBeUndefined()
    expect(await of({ nbf: at + 61 })).toBe('TOKEN_NOT_IN_TIME')
    expect(await of({ iat: at + 60 })).toBeUndefined()
    expect(await of({ iat: at + 61 })).toBe('TOKEN_NOT_IN_TIME')
    expect(await of({ iat: at - 12 * 3_600 - 60 })).toBeUndefined()
    expect(await of({ iat: at - 12 * 3_600 - 61 })).toBe('TOKEN_NOT_IN_TIME')
  })

  it('without a signature, or with the public key as a shared secret, is refused', async () => {
    const token = await issuer.token(twin.now, OPERATOR)
    expect((await ask(token)).status).toBe(200)
    const [, payload] = token.split('.')
    const { kid, publicKey } = issuer.signer
    const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
    for (const alg of ['none', 'None', 'HS256']) {
      const input = `${encode({ alg, kid })}.${payload}`
      expect(await ask(`${input}.`)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
      for (const secret of [await exportSPKI(publicKey), JSON.stringify(await exportJWK(publicKey))]) {
        const mac = createHmac('sha256', secret).update(input).digest('base64url')
        expect(await ask(`${input}.${mac}`)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
      }
    }
  })

  it('with a changed claim is refused', async () => {
    const [header, , signature] = (await issuer.token(twin.now, { groups: ['staff'] })).split('.')
    const [, payload] = (await issuer.token(twin.now, OPERATOR)).split('.')
    expect(await ask(`${header}.${payload}.${signature}`)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
  })

  it('that a registered key signed in the name of the issuer is refused, and works in any other name', async () => {
    const told = await ask(await twin.administrationToken(issuer.issuer))
    expect(told).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
    for (const name of [`${issuer.issuer}/`, issuer.issuer.toUpperCase(), 'tallygate']) {
      expect((await ask(await twin.administrationToken(name))).status).toBe(200)
    }
  })

  it('of an issuer that differs by a slash is refused', async () => {
    const token = await issuer.token(twin.now, { ...OPERATOR, iss: `${issuer.issuer}/` })
    expect(await ask(token)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
  })

  it('loses its roles with the reload that removes the rule', async () => {
    const token = await issuer.token(twin.now, OPERATOR)
    expect((await ask(token)).status).toBe(200)
    twin.cloud.reload(() => signIn({ access: [{ value: 'staff', roles: ['read'] }] })(twin.settings))
    expect((await ask(token, '/edge/api/v1/sweeps')).status).toBe(200)
    const { body } = await twin.call('POST', '/edge/api/v1/sweeps/clock/confirm', { token })
    expect(pick(body, 'message')).toMatch(/requires the role operator\. The signed-in user Ada has the role read/)
  })

  it('gives the audit issuer, subject and a name without control characters, and no token', async () => {
    twin.cloud.reload(() => signIn({ access: [{ value: 'operators', roles: ['rules'] }] })(twin.settings))
    const token = await issuer.token(twin.now, { ...OPERATOR, name: 'A\u001b[31mda\u202e' })
    const { status } = await twin.call('POST', '/provisioning/api/v1.1/instances', {
      token,
      body: { shortName: 'Plant', accountId: 'customer' },
    })
    expect(status).toBe(201)
    const { body, text: shown } = await twin.call('GET', '/edge/api/v1/audit?size=1')
    expect(pick(body, 'records', 0)).toMatchObject({
      action: 'CREATE_INSTANCE',
      by: { kind: 'ADMINISTRATOR', keyId: 'ada', issuer: issuer.issuer, name: 'A[31mda' },
    })
    expect(shown).not.toContain(token.split('.')[2])
  })
})

describe('the claim with the roles', () => {
  it.each([
    ['a claim in a claim', 'realm_access.roles', { realm_access: { roles: ['operators'] } }, 200],
    ['a claim whose name has dots', 'https://x.example/roles', { 'https://x.example/roles': 'operators' }, 200],
    ['a verified email address', 'email', { email: 'operators', email_verified: true }, 200],
    ['an email address that is not verified', 'email', { email: 'operators' }, 403],
    ['a property of every object', 'constructor.name', {}, 403],
  ])('can be %s', async (_what, rolesClaim, claims, status) => {
    await twin.stop()
    await twin.start(signIn({ rolesClaim }))
    expect((await ask(await issuer.token(twin.now, claims))).status).toBe(status)
  })
})

describe('the keys of the provider', () => {
  it('are loaded once for many requests, and again for a new key, but not in each moment', async () => {
    const token = await issuer.token(twin.now, OPERATOR)
    const all = await Promise.all(Array.from({ length: 10 }, () => ask(token)))
    expect(all.map(({ status }) => status)).toEqual(Array.from({ length: 10 }, () => 200))
    expect(issuer.asked).toHaveLength(2)
    await issuer.rotate('second')
    const next = await issuer.token(twin.now, OPERATOR)
    expect(await ask(next)).toMatchObject(refused('TOKEN_INVALID', /does not list/))
    expect(issuer.asked).toHaveLength(2)
    twin.now += COOL_DOWN
    expect((await ask(next)).status).toBe(200)
    expect(await ask(token)).toMatchObject(refused('TOKEN_INVALID', /does not list/))
    expect(issuer.asked).toHaveLength(4)
  })

  it('serve for a day while the provider is down, and then sign-ins are refused and other callers are not', async () => {
    expect((await ask(await issuer.token(twin.now, OPERATOR))).status).toBe(200)
    issuer.respond = (request) => request.socket.destroy()
    twin.now += 23 * 60 * MINUTE
    expect((await ask(await issuer.token(twin.now, OPERATOR))).status).toBe(200)
    twin.now += 2 * 60 * MINUTE
    expect(await ask(await issuer.token(twin.now, OPERATOR))).toMatchObject({
      ...{ status: 503, code: 'SIGN_IN_UNAVAILABLE', retry: '10' },
    })
    expect((await ask(await twin.administrationToken())).status).toBe(200)
    issuer.respond = null
    twin.now += COOL_DOWN
    expect((await ask(await issuer.token(twin.now, OPERATOR))).status).toBe(200)
  })

  const json = (body: unknown) => (_: unknown, response: ServerResponse) => void response.end(JSON.stringify(body))
  it.each<[string, (response: ServerResponse) => void]>([
    ['an error', (response) => response.writeHead(500).end('{}')],
    ['a redirect', (response) => response.writeHead(302, { location: '/elsewhere' }).end()],
    ['no JSON', (response) => response.end('<html>')],
    [
      'metadata of another issuer',
      (response) => json({ issuer: 'https://x.example', jwks_uri: 'https://x.example' })(0, response),
    ],
    [
      'keys that are no list',
      (response) => json({ issuer: issuer.issuer, jwks_uri: `${issuer.issuer}/keys`, keys: 1 })(0, response),
    ],
    [
      'keys that are local files',
      (response) => json({ issuer: issuer.issuer, jwks_uri: 'file:///etc/passwd' })(0, response),
    ],
    [
      'a body without an end',
      (response) => {
        const more = (): void => {
          response.write('x'.repeat(65_536), (error) => {
            if (error === null || error === undefined) more()
          })
        }
        more()
      },
    ],
  ])('that are %s are an error of the provider', async (_what, respond) => {
    issuer.respond = (_request, response) => respond(response)
    expect(await ask(await issuer.token(twin.now, OPERATOR))).toMatchObject({
      status: 503,
      code: 'SIGN_IN_UNAVAILABLE',
    })
  })

  it('that never arrive delay few requests, and no other callers', async () => {
    const held: ServerResponse[] = []
    await twin.stop()
    await twin.start((settings) =>
      signIn({ timeout: 30_000 })({ ...settings, http: { ...settings.http, requestsMax: 40 } }),
    )
    issuer.respond = (_request, response) => void held.push(response)
    const token = await issuer.token(twin.now, OPERATOR)
    const waiting = Array.from({ length: 40 }, () => ask(token))
    const first = await Promise.race(waiting)
    expect(first).toMatchObject({ status: 503, code: 'SIGN_IN_UNAVAILABLE' })
    expect((await ask(await twin.administrationToken())).status).toBe(200)
    expect(issuer.asked).toHaveLength(1)
    for (const response of held) response.destroy()
    const told = await Promise.all(waiting)
    expect(new Set(told.map(({ code }) => code))).toEqual(new Set(['SIGN_IN_UNAVAILABLE']))
  })

  it('that arrive too slowly are given up after the timeout', async () => {
    await twin.stop()
    await twin.start(signIn({ timeout: 100 }))
    issuer.respond = (_request, response) => void response.write('{')
    expect((await ask(await issuer.token(twin.now, OPERATOR))).code).toBe('SIGN_IN_UNAVAILABLE')
  })
})

describe('the settings', () => {
  const start = async (oidc: object) => {
    await twin.stop()
    return twin.start(signIn(oidc))
  }

  it.each([
    ['without a client', { clientId: null }, /go together/],
    ['without rules', { access: null }, /go together/],
    ['without an issuer', { issuer: null }, /go together/],
    ['with an issuer on another machine without TLS', { issuer: 'http://login.example' }, /must begin with https/],
    ['with a password', { issuer: 'https://a:b@login.example' }, /without user name/],
    ['with a query', { issuer: 'https://login.example/?x' }, /without user name/],
  ])('%s are refused at the start', async (_what, oidc, message) => {
    await expect(start(oidc)).rejects.toThrow(message)
  })

  it('show everyone the issuer and the client, and no rules', async () => {
    const { status, body } = await twin.call('GET', '/edge/api/v1/sign-in', { token: null })
    expect(status).toBe(200)
    expect(body).toEqual({
      ...{ issuer: issuer.issuer, clientId: CLIENT_ID, scopes: 'openid profile email offline_access' },
      maxTokenAgeMs: 12 * 60 * MINUTE,
    })
  })

  it('may be omitted: then ID tokens are tokens of no key', async () => {
    await twin.stop()
    await twin.start(signIn({ issuer: null, clientId: null, access: null }))
    expect((await ask(await issuer.token(twin.now, OPERATOR))).code).toBe('TOKEN_INVALID')
    const { status, body } = await twin.call('GET', '/edge/api/v1/sign-in', { token: null })
    expect({ status, code: text(body, 'code') }).toEqual({ status: 404, code: 'SIGN_IN_NOT_OFFERED' })
  })
})
