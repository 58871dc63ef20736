import { constants, createHmac, createSign, generateKeyPairSync } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { HOUR, type Twin, newKeyPair, openTwin, pick, text } from '../harness.ts'

const INSTANCES = '/provisioning/api/v1.1/instances'

const base64url = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')

describe('a token', () => {
  let twin: Twin
  let keyId: string
  let privateKey: string
  beforeAll(async () => {
    twin = await openTwin()
    keyId = text((await twin.call('GET', '/api/v1.1/public-keys')).body, 'keys', 0, 'id')
    privateKey = await readFile(twin.cloud.administrationKeyFile, 'utf8')
  })
  afterAll(() => twin[Symbol.asyncDispose]())

  const seconds = (): number => Math.floor(twin.now / 1000)
  const adminClaims = (change: Record<string, unknown> = {}) => ({
    iss: 'producer.org',
    nbf: seconds(),
    iat: seconds(),
    exp: seconds() + 60,
    cnf: { jwk: { kid: keyId, kty: 'ADMIN' } },
    ...change,
  })
  const signed = (claims: unknown, header: Record<string, unknown> = { alg: 'ES256' }, key = privateKey): string => {
    const input = `${base64url(header)}.${base64url(claims)}`
    const signature = createSign('SHA256').update(input).sign({ key, dsaEncoding: 'ieee-p1363' })
    return `${input}.${signature.toString('base64url')}`
  }
  const ask = async (token: string | null, headers: Record<string, string> = {}) => {
    const { status, body, headers: answered } = await twin.call('GET', INSTANCES, { token, headers })
    return { status, code: pick(body, 'code'), challenge: answered.get('www-authenticate') }
  }

  it('with the documented claims is accepted, whatever its header says about the key', async () => {
    expect((await ask(signed(adminClaims()))).status).toBe(200)
    expect((await ask(signed(adminClaims(), { alg: 'ES256', typ: 'at+jwt', kid: 'something else' }))).status).toBe(200)
  })

  it('is asked for when it is missing', async () => {
    expect(await ask(null)).toEqual({ status: 401, code: 'TOKEN_MISSING', challenge: 'Bearer' })
    for (const authorization of ['Basic dTpw', 'Bearer', 'Bearer  ', 'Bearer two words', 'bearer']) {
      expect(await ask(null, { authorization })).toMatchObject({ status: 401, code: 'TOKEN_MISSING' })
    }
  })

  it('is refused when it is not a JWT at all', async () => {
    for (const token of ['x', 'a.b', 'a.b.c', `${base64url({})}.${base64url([])}.`, '....', signed('text')]) {
      expect(await ask(token)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
    }
  })

  it('is refused when another key signed it', async () => {
    const stranger = newKeyPair()
    expect(await ask(signed(adminClaims(), { alg: 'ES256' }, stranger.privatePem))).toMatchObject({
      status: 401,
      code: 'TOKEN_INVALID',
    })
  })

  it('is refused when its key is not registered, or registered for the other kind', async () => {
    const unknown = { cnf: { jwk: { kid: 'nobody', kty: 'ADMIN' } } }
    expect(await ask(signed(adminClaims(unknown)))).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
    const asClient = { cnf: { jwk: { kid: keyId, kty: 'CLIENT' } }, aud: ['x'] }
    expect(await ask(signed(adminClaims(asClient)))).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
    const neither = { cnf: { jwk: { kid: keyId, kty: 'EC' } } }
    expect(await ask(signed(adminClaims(neither)))).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
  })

  it('without a signature is refused', async () => {
    for (const alg of ['none', 'None', 'NONE']) {
      const input = `${base64url({ alg })}.${base64url(adminClaims())}`
      expect(await ask(`${input}.`)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
    }
  })

  it('cannot choose an algorithm that makes the public key a shared secret', async () => {
    const { body } = await twin.call('GET', '/api/v1.1/public-keys')
    const input = `${base64url({ alg: 'HS256' })}.${base64url(adminClaims())}`
    const mac = createHmac('sha256', text(body, 'keys', 0, 'publicKey'))
      .update(input)
      .digest('base64url')
    expect(await ask(`${input}.${mac}`)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
  })

  it('is bound to the algorithms of its stored key', async () => {
    const { privateKey: rsa, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
    const publicPem = publicKey.export({ type: 'spki', format: 'pem' })
    const put = await twin.call('PUT', '/api/v1.1/administration-keys', { body: [{ id: 'rsa', publicKey: publicPem }] })
    expect(put.status).toBe(200)
    const claims = adminClaims({ cnf: { jwk: { kid: 'rsa', kty: 'ADMIN' } } })
    const sign = (alg: string, hash: string, pss = false): string => {
      const input = `${base64url({ alg })}.${base64url(claims)}`
      const padding = pss ? constants.RSA_PKCS1_PSS_PADDING : constants.RSA_PKCS1_PADDING
      const signature = createSign(hash)
        .update(input)
        .sign({ key: rsa, padding, saltLength: constants.RSA_PSS_SALTLEN_DIGEST })
      return `${input}.${signature.toString('base64url')}`
    }
    for (const [alg, hash] of [
      ['RS256', 'SHA256'],
      ['RS384', 'SHA384'],
      ['RS512', 'SHA512'],
    ] as const) {
      expect((await ask(sign(alg, hash))).status).toBe(200)
    }
    expect((await ask(sign('PS256', 'SHA256', true))).status).toBe(200)
    expect((await ask(sign('PS384', 'SHA384', true))).status).toBe(401)
    expect((await ask(sign('ES256', 'SHA256'))).status).toBe(401)
  })

  it('is valid from nbf to exp, with a minute of tolerance at both ends', async () => {
    const at = async (nbf: number, exp: number) =>
      ask(signed(adminClaims({ nbf: seconds() + nbf, exp: seconds() + exp })))
    expect((await at(60, 600)).status).toBe(200)
    expect(await at(61, 600)).toMatchObject({ status: 401, code: 'TOKEN_NOT_IN_TIME' })
    expect((await at(-600, -59)).status).toBe(200)
    expect(await at(-600, -60)).toMatchObject({ status: 401, code: 'TOKEN_NOT_IN_TIME' })
    expect((await at(-9e6, 9e6)).status).toBe(200)
  })

  it('that was accepted before is refused once its key is deleted or replaced', async () => {
    const [first, second] = [newKeyPair(), newKeyPair()]
    const claims = { ...adminClaims(), cnf: { jwk: { kid: 'passing', kty: 'ADMIN' } } }
    const token = signed(claims, { alg: 'ES256' }, first.privatePem)
    const save = (publicKey: string) =>
      twin.call('PUT', '/api/v1.1/administration-keys', { body: [{ id: 'passing', publicKey }] })
    expect((await save(first.publicPem)).status).toBeLessThan(300)
    for (let times = 0; times < 2; times += 1) expect((await ask(token)).status).toBe(200)
    expect((await save(second.publicPem)).status).toBeLessThan(300)
    expect(await ask(token)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
    expect((await save(first.publicPem)).status).toBeLessThan(300)
    expect((await ask(token)).status).toBe(200)
    expect((await twin.call('DELETE', '/api/v1.1/administration-keys/passing')).status).toBeLessThan(300)
    expect(await ask(token)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
  })

  it('that was accepted before is refused after it has expired', async () => {
    const token = signed(adminClaims())
    const before = twin.now
    for (const [later, status] of [
      [0, 200],
      [30_000, 200],
      [119_000, 200],
      [121_000, 401],
      [-61_000, 401],
      [0, 200],
    ] as const) {
      twin.now = before + later
      expect((await ask(token)).status).toBe(status)
    }
  })

  it('is refused when a required claim is missing or of another type', async () => {
    for (const change of [
      { iss: undefined },
      { iss: 5 },
      { nbf: undefined },
      { nbf: 'now' },
      { iat: undefined },
      { exp: undefined },
      { exp: null },
      { cnf: undefined },
      { cnf: { jwk: {} } },
      { cnf: { jwk: { kid: '', kty: 'ADMIN' } } },
    ]) {
      expect(await ask(signed(adminClaims(change)))).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
    }
  })

  it('that says it needs an extension which is not understood is refused', async () => {
    const token = signed(adminClaims(), {
      alg: 'ES256',
      crit: ['https://example.org/x'],
      'https://example.org/x': true,
    })
    expect(await ask(token)).toMatchObject({ status: 401, code: 'TOKEN_INVALID' })
  })
})

describe('a client token', () => {
  let twin: Twin
  let mine: string
  let other: string
  beforeAll(async () => {
    twin = await openTwin()
    mine = await twin.instance('mine')
    other = await twin.instance('other')
  })
  afterAll(() => twin[Symbol.asyncDispose]())

  const conditions = (id: string): string => `/api/v1.1/instances/${id}/conditions`
  const ask = async (
    method: string,
    path: string,
    token: string,
    headers: Record<string, string> = {},
    body?: unknown,
  ) => {
    const reply = await twin.call(method, path, { token, headers, ...(body === undefined ? {} : { body }) })
    return { status: reply.status, code: pick(reply.body, 'code') }
  }

  it('opens the instances of its audience and no other', async () => {
    const token = await twin.clientToken(mine)
    expect((await ask('GET', conditions(mine), token)).status).toBe(200)
    expect((await ask('GET', conditions(mine.toUpperCase()), token)).status).toBe(200)
    expect(await ask('GET', conditions(other), token)).toEqual({ status: 403, code: 'INSTANCE_NOT_IN_TOKEN' })
  })

  it('may have its audience as one text, in capitals', async () => {
    const { privatePem, publicPem } = newKeyPair()
    await twin.call('PUT', '/api/v1.0/client-keys', { body: [{ id: 'text', publicKey: publicPem }] })
    const order = {
      kind: 'CLIENT',
      privateKey: privatePem,
      keyId: 'text',
      issuer: 'i',
      now: twin.now,
      lifetimeMs: HOUR,
    } as const
    const [head = '', payload = ''] = (await makeAccessToken({ ...order, instanceIds: [mine] })).split('.')
    const claims = { ...(JSON.parse(Buffer.from(payload, 'base64url').toString()) as object), aud: mine.toUpperCase() }
    const input = `${head}.${base64url(claims)}`
    const signature = createSign('SHA256').update(input).sign({ key: privatePem, dsaEncoding: 'ieee-p1363' })
    const token = `${input}.${signature.toString('base64url')}`
    expect((await ask('GET', conditions(mine), token)).status).toBe(200)
  })

  it('without an audience opens nothing', async () => {
    const token = await twin.clientToken()
    expect(await ask('GET', conditions(mine), token)).toEqual({ status: 403, code: 'INSTANCE_NOT_IN_TOKEN' })
  })

  it('does not administer', async () => {
    const token = await twin.clientToken(mine)
    for (const [method, path] of [
      ['GET', '/provisioning/api/v1.0/instances'],
      ['POST', '/provisioning/api/v1.1/instances'],
      ['GET', `/provisioning/api/v1.1/instances/${mine}`],
      ['PUT', `/provisioning/api/v1.1/instances/${mine}/line-items`],
      ['DELETE', `/provisioning/api/v1.1/instances/${mine}/line-items/A`],
      ['GET', '/provisioning/api/v1.1/rate-tables'],
      ['POST', '/provisioning/api/v1.1/rate-tables'],
      ['DELETE', '/provisioning/api/v1.1/rate-tables'],
      ['GET', '/provisioning/api/v1.1/configuration'],
      ['PATCH', '/provisioning/api/v1.1/configuration'],
      ['PUT', '/api/v1.1/administration-keys'],
      ['PUT', '/api/v1.1/client-keys'],
      ['DELETE', '/api/v1.1/client-keys/client'],
      ['GET', '/api/v1.1/public-keys'],
    ] as const) {
      const body = method === 'GET' || method === 'DELETE' ? undefined : {}
      expect(await ask(method, path, token, {}, body), `${method} ${path}`).toEqual({
        status: 403,
        code: 'ACCESS_KIND_WRONG',
      })
    }
  })

  it('reads line items and makes access requests of its instance', async () => {
    const token = await twin.clientToken(mine)
    expect((await ask('GET', `/provisioning/api/v1.0/instances/${mine}/line-items`, token)).status).toBe(200)
    const body = { requester: { type: 'user', value: 'x' }, requestedItems: [{ item: 'Print', count: 1 }] }
    expect((await ask('POST', `/elastic/api/v1.0/instances/${mine}/access-request`, token, {}, body)).status).toBe(200)
  })

  it('must agree with the header where both name an instance', async () => {
    const token = await twin.clientToken(mine, other)
    expect((await ask('GET', conditions(mine), token, { 'x-instance-id': mine })).status).toBe(200)
    const mismatch = await ask('GET', conditions(mine), token, { 'x-instance-id': other })
    expect(mismatch).toEqual({ status: 403, code: 'INSTANCE_NOT_IN_TOKEN' })
    expect((await ask('GET', conditions(mine), token, { 'x-instance-id': 'no uuid' })).status).toBe(400)
  })

  it('needs the header x-instance-id on sessions', async () => {
    const token = await twin.clientToken(mine)
    const body = { instanceId: mine }
    const missing = await ask('POST', '/api/v1.1/sessions', token, {}, body)
    expect(missing).toEqual({ status: 400, code: 'INSTANCE_HEADER_MISSING' })
    const wrong = await ask('POST', '/api/v1.1/sessions', token, { 'x-instance-id': other }, { instanceId: other })
    expect(wrong).toEqual({ status: 403, code: 'INSTANCE_NOT_IN_TOKEN' })
    const mismatch = await ask('POST', '/api/v1.1/sessions', token, { 'x-instance-id': mine }, { instanceId: other })
    expect(mismatch).toEqual({ status: 403, code: 'INSTANCE_NOT_IN_TOKEN' })
    expect((await ask('POST', '/api/v1.1/sessions', token, { 'x-instance-id': mine }, body)).status).toBe(200)
  })

  it('lists sessions by the instance in the query or in the header', async () => {
    const token = await twin.clientToken(mine)
    const list = (query: string, headers = {}) => ask('GET', `/api/v1.1/sessions${query}`, token, headers)
    expect((await list(`?instanceId=${mine}`)).status).toBe(200)
    expect((await list('', { 'x-instance-id': mine })).status).toBe(200)
    expect((await list(`?instanceId=${mine}`, { 'x-instance-id': mine })).status).toBe(200)
    expect(await list('')).toEqual({ status: 400, code: 'INSTANCE_HEADER_MISSING' })
    const refused = { status: 403, code: 'INSTANCE_NOT_IN_TOKEN' }
    expect(await list(`?instanceId=${other}`)).toEqual(refused)
    expect(await list(`?instanceId=${other}`, { 'x-instance-id': mine })).toEqual(refused)
    expect(await list(`?instanceId=${mine}`, { 'x-instance-id': other })).toEqual(refused)
  })

  it('does not open a session of another instance', async () => {
    const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId: other } })
    const path = `/api/v1.1/sessions/${text(body, 'sessionId')}`
    const token = await twin.clientToken(mine)
    for (const [method, suffix] of [
      ['GET', ''],
      ['GET', '/heartbeat'],
      ['DELETE', ''],
    ] as const) {
      const refused = await ask(method, `${path}${suffix}`, token, { 'x-instance-id': mine })
      expect(refused).toEqual({ status: 403, code: 'INSTANCE_NOT_IN_TOKEN' })
    }
    expect((await twin.call('GET', `${path}/heartbeat`)).status).toBe(204)
  })
})
