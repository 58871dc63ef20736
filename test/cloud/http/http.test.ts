import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { type Socket, connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { text as readAll } from 'node:stream/consumers'
import { PassThrough } from 'node:stream'
import fc from '../../support/fast-check.ts'
import { pino } from 'pino'
import { describe, expect, it, onTestFinished } from 'vitest'
import { makeAccessToken } from '../../../src/client/access-token.ts'
import { registerHealth } from '../../../src/cloud/http/health.ts'
import { CodedError, ERRORS, type ErrorCode } from '../../../src/protocol/errors.ts'
import { Authority } from '../../support/certificates.ts'
import { silentPeer } from '../../support/silent-peer.ts'
import { newDeviceKeys } from '../sync/test-device.ts'
import {
  DAY,
  START,
  type SettingsChange,
  type Twin,
  lineItemBody,
  newKeyPair,
  openTwin,
  pick,
  text,
  refusal,
} from '../harness.ts'
import { bareServer } from './bare-server.ts'

const INSTANCES = '/provisioning/api/v1.1/instances'

/** Sends bytes as they are and returns all that comes back. */
async function raw(twin: Twin, bytes: string): Promise<string> {
  const { hostname, port } = new URL(twin.cloud.address)
  const socket = connect(Number(port), hostname)
  socket.end(bytes)
  return readAll(socket)
}

/** Sends a request whose body never ends. Refused itself if it arrives while another one has its place. */
function beginBody(twin: Twin, token: string): Socket {
  const { hostname, port } = new URL(twin.cloud.address)
  const socket = connect(Number(port), hostname).on('error', () => undefined)
  onTestFinished(() => void socket.destroy())
  socket.write(
    `POST /dynamicmonetization${INSTANCES} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n` +
      'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{',
  )
  return socket
}

/** The token of a client with a key of its own. */
async function clientOf(twin: Twin, keyId: string, instance: string): Promise<string> {
  const { privatePem, publicPem } = newKeyPair()
  await twin.call('PUT', '/api/v1.1/client-keys', { body: [{ id: keyId, publicKey: publicPem }] })
  const whose = { kind: 'CLIENT', privateKey: privatePem, keyId, instanceIds: [instance], issuer: 'tests' } as const
  return makeAccessToken({ ...whose, now: twin.wall, lifetimeMs: 3_600_000 })
}

describe('the server', () => {
  it('shows without a token whether it is alive and whether it can serve', async () => {
    await using twin = await openTwin()
    const { origin } = new URL(twin.cloud.address)
    expect(await (await fetch(`${origin}/healthz`)).json()).toEqual({ status: 'ok' })
    expect(await (await fetch(`${origin}/readyz`)).json()).toEqual({ status: 'ready' })
  })

  it('answers an unknown path or version with 404', async () => {
    await using twin = await openTwin()
    for (const [method, path] of [
      ['GET', '/'],
      ['GET', '/provisioning/api/v1.2/instances'],
      ['GET', '/provisioning/api/instances'],
      ['POST', '/provisioning/api/v1.1/nothing'],
      ['OPTIONS', '/provisioning/api/v1.1/nothing'],
      ['GET', '/elastic/api/v1.1/instances'],
      ['GET', '/api/v1.1/rate-tables'],
      ['GET', '/docs/scalar/1.0'],
    ] as const) {
      const { status, body } = await twin.call(method, path)
      expect(status, `${method} ${path}`).toBe(404)
      expect(body).toMatchObject({ code: 'OPERATION_UNKNOWN' })
    }
  })

  it('names the methods that a path accepts', async () => {
    await using twin = await openTwin()
    const instance = `${INSTANCES}/64d2028c-ae87-4069-a624-66089d957ef9`
    const session = '/api/v1.0/sessions/64d2028c-ae87-4069-a624-66089d957ef9'
    for (const [method, path, allow] of [
      ['DELETE', INSTANCES, 'GET, POST, OPTIONS'],
      ['HEAD', `${INSTANCES}/?size=1`, 'GET, POST, OPTIONS'],
      ['PATCH', `${instance}/line-items`, 'GET, PUT, OPTIONS'],
      ['PATCH', `${instance}/line%2ditems/a%2Fb`, 'DELETE, GET, OPTIONS'],
      ['POST', session, 'DELETE, GET, PUT, OPTIONS'],
      // A heartbeat has an effect, and HEAD must not have one.
      ['HEAD', `${session}/heartbeat`, 'GET, OPTIONS'],
      ['PUT', '/edge/api/v1/devices', 'GET, OPTIONS'],
      ['PUT', '/docs/scalar/1.0.js', 'GET, OPTIONS'],
    ] as const) {
      const { status, body, headers } = await twin.call(method, path, { token: null })
      expect([status, headers.get('allow')], `${method} ${path}`).toEqual([405, allow])
      if (method !== 'HEAD') expect(body).toMatchObject({ code: 'METHOD_NOT_ALLOWED' })
      const asked = await twin.call('OPTIONS', path, { token: null })
      expect([asked.status, asked.headers.get('allow'), asked.text]).toEqual([204, allow, ''])
    }
    expect(twin.wrongAnswers).toEqual([])
  })

  it('names the methods of a path in a full URL, as clients send it to a proxy', async () => {
    await using twin = await openTwin()
    const { pathname } = new URL(twin.cloud.address)
    const ask = (target: string) => raw(twin, `DELETE ${target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`)
    const known = await ask(`http://cloud.example${pathname}${INSTANCES}`)
    expect(known).toMatch(/^HTTP\/1\.1 405 /)
    expect(known).toMatch(/^allow: GET, POST, OPTIONS\r$/m)
    expect(await ask(`http://cloud.example${pathname}/nothing`)).toContain('"No operation DELETE at this path."')
  })

  it('has no operation at a target with a malformed user name, which the router leaves out', async () => {
    await using twin = await openTwin()
    const answer = await raw(twin, 'GET http://a%ZZ@b/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
    expect(answer).toMatch(/^HTTP\/1.1 404 [^]*"code":"OPERATION_UNKNOWN"/)
  })

  it('reads no body for a path that it does not have', async () => {
    await using twin = await openTwin()
    for (const [path, status] of [
      ['/nothing', 404],
      [INSTANCES, 405],
    ] as const) {
      const head = `PATCH /dynamicmonetization${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n`
      expect(await raw(twin, `${head}Content-Length: 1000\r\n\r\n{`)).toMatch(new RegExp(`^HTTP/1.1 ${status} `))
    }
  })

  it('reads no body for an enrollment whose token it has not made', async () => {
    await using twin = await openTwin()
    const head = `POST /dynamicmonetization/edge/api/v1/enrollments HTTP/1.1\r\nHost: x\r\nConnection: close\r\n`
    const token = await twin.administrationToken()
    for (const bearer of ['a.b.c', token]) {
      const headers = `Authorization: Bearer ${bearer}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{`
      expect(await raw(twin, head + headers)).toMatch(/^HTTP\/1.1 401 [^]*"code":"TOKEN_INVALID"/)
    }
  })

  it('answers HEAD where it has no effect', async () => {
    await using twin = await openTwin()
    for (const url of [`${twin.cloud.address}/docs`, new URL('/healthz', twin.cloud.address).href]) {
      const { status, headers } = await fetch(url, { method: 'HEAD' })
      expect([status, Number(headers.get('content-length')) > 0]).toEqual([200, true])
    }
    expect(twin.wrongAnswers).toEqual([])
  })

  it('gives up a request that takes too long to arrive', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, requestTimeout: 300 } }))
    const { hostname, port } = new URL(twin.cloud.address)
    const head = `POST /dynamicmonetization${INSTANCES} HTTP/1.1\r\nHost: x\r\n`
    const token = await twin.administrationToken()
    const body = `Authorization: Bearer ${token}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{`
    for (const part of [head, head + body]) {
      const slow = connect(Number(port), hostname)
      slow.write(part)
      const said = await readAll(slow)
      expect(said).toMatch(/^HTTP\/1.1 408 /)
      expect(said).toContain('"code":"REQUEST_TOO_SLOW"')
    }
    expect((await twin.call('GET', INSTANCES)).status).toBe(200)
  })

  it('answers a half-closed client', async () => {
    await using twin = await openTwin()
    const { pathname } = new URL(twin.cloud.address)
    const body = '{"shortName":"s","accountId":"a"}'
    const request =
      `POST ${pathname}${INSTANCES} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${await twin.administrationToken()}\r\n` +
      `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`
    expect((await raw(twin, request.repeat(2))).match(/HTTP\/1.1 201 /g)).toHaveLength(2)
  })

  it('refuses headers that are too large by their name', async () => {
    await using twin = await openTwin()
    for (const request of [
      `GET /${'x'.repeat(20_000)} HTTP/1.1\r\nHost: x\r\n\r\n`,
      `GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${'x'.repeat(20_000)}\r\n\r\n`,
    ]) {
      const said = await raw(twin, request)
      expect(said).toMatch(/^HTTP\/1.1 431 /)
      expect(said).toContain('"code":"HEADERS_TOO_LARGE"')
    }
  })

  it('refuses a compressed body, and accepts one with the encoding identity', async () => {
    await using twin = await openTwin()
    const body = '{"shortName":"s","accountId":"a"}'
    const packed = await twin.call('POST', INSTANCES, {
      raw: new Uint8Array(gzipSync(body)),
      headers: { 'content-encoding': 'gzip' },
    })
    expect(refusal(packed)).toEqual([415, 'MEDIA_TYPE_NOT_SUPPORTED'])
    const plain = await twin.call('POST', INSTANCES, { raw: body, headers: { 'content-encoding': 'identity' } })
    expect(plain.status).toBe(201)
  })

  it('accepts no id that clients would resolve in a path', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const { publicPem } = newKeyPair()
    for (const id of ['.', '..']) {
      expect((await twin.lineItem(instance, { activationId: id })).status).toBe(400)
      const key = await twin.call('PUT', '/api/v1.1/client-keys', { body: [{ id, publicKey: publicPem }] })
      expect(key.status).toBe(400)
    }
    expect((await twin.lineItem(instance, { activationId: '...' })).status).toBe(201)
  })

  it('names the place of a mistake, also where several forms are taken', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const said = async (method: string, path: string, raw: string) =>
      pick((await twin.call(method, path, { raw })).body, 'message')
    const conditions = `/api/v1.1/instances/${instance}/conditions`
    for (const [raw, wanted] of [
      ['[{"operator":"IN","property":"a","values":[1]}]', /^body\[0\]\.values\[0\]: /],
      ['[{"operator":"NOT","condition":{"operator":"IN","values":["a"]}}]', /^body\[0\]\.condition\.property: /],
      ['[{"operator":"XOR"}]', /^body\[0\]\.operator: must be one of AND, OR, NOT, IN$/],
      ['[{"property":"a","values":["b"]}]', /^body\[0\]\.operator: must be one of AND, OR, NOT, IN$/],
      ['{}', /^body\.conditions: /],
    ] as const) {
      expect(await said('POST', conditions, raw)).toMatch(wanted)
    }
    const configuration = '/provisioning/api/v1.1/configuration'
    expect(await said('PATCH', configuration, '[{"name":"timezone.tolerant"}]')).toMatch(/^body\[0\]\.value: /)
    const access = `/elastic/api/v1.1/instances/${instance}/access-request`
    const asking = (item: string) => `{"requester":{"type":"u","value":"v"},"requestedItems":[{"item":"A",${item}}]}`
    expect(await said('POST', access, asking('"count":1e300'))).toBe(
      'body.requestedItems[0].count: must be a number in the supported range',
    )
    expect(await said('POST', access, asking('"count":1,"metaData":{"a":[1e400]}'))).toBe(
      'body.requestedItems[0].metaData: must not contain a number beyond the range of a double',
    )
    const infinite = asking('"count":1').replace('"v"', '"v","dictionary":{"a":1e400}')
    expect(await said('POST', access, infinite)).toBe(
      'body.requester.dictionary: must not contain a number beyond the range of a double',
    )
    const lineItems = `${INSTANCES}/${instance}/line-items`
    expect(await said('PUT', lineItems, '')).toEqual(['$: nothing found, object expected'])
    const huge = JSON.stringify(lineItemBody()).replace(/"quantity":\d+/, '"quantity":1e19')
    expect(await said('PUT', lineItems, huge)).toEqual(['$.quantity: must have a maximum value of 9223372036854775807'])
  })

  it('takes its areas below another prefix, or below none', async () => {
    for (const prefix of ['', '/a/b']) {
      await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, prefix } }))
      expect((await twin.call('GET', INSTANCES)).status).toBe(200)
    }
    for (const prefix of ['x', '/x/', '//', '/a b', '/a%zz/b', '/a%20b', '/:a', '/*', '/a/..', '/./a']) {
      const opened = openTwin((settings) => ({ ...settings, http: { ...settings.http, prefix } }))
      await expect(opened).rejects.toMatchObject({ code: 'CONFIG_INVALID' })
    }
  })

  it('asks for the token before it looks at anything else', async () => {
    await using twin = await openTwin()
    const { status } = await twin.call('POST', INSTANCES, { token: null, raw: 'x'.repeat(3_000_000) })
    expect(status).toBe(401)
  })

  it('refuses a body that is not well-formed JSON in UTF-8', async () => {
    await using twin = await openTwin()
    const latin1 = new Uint8Array([0x22, 0xe4, 0x22])
    for (const raw of ['{', '{"a":1,}', 'undefined', "{'a':1}", '{"a":1} x', 'NaN', '"', latin1]) {
      const { status, body } = await twin.call('POST', INSTANCES, { raw })
      expect([status, pick(body, 'code')]).toEqual([400, 'BAD_JSON'])
    }
    expect(await twin.call('POST', INSTANCES, { raw: '' })).toMatchObject({
      status: 400,
      body: { code: 'BAD_REQUEST' },
    })
  })

  it('skips one byte order mark before a body, and takes no other', async () => {
    await using twin = await openTwin()
    const raw = '{"shortName":"s","accountId":"a"}'
    expect(await twin.call('POST', INSTANCES, { raw: `\uFEFF${raw}` })).toMatchObject({ status: 201 })
    for (const odd of [`\uFEFF\uFEFF${raw}`, '\uFEFF', '{\uFEFF}']) {
      const { status, body } = await twin.call('POST', INSTANCES, { raw: odd })
      expect([odd, status, pick(body, 'code')]).toEqual([odd, 400, 'BAD_JSON'])
    }
  })

  it('refuses a body of another type, or of none', async () => {
    await using twin = await openTwin()
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/xml', 'nonsense']) {
      const { status, body } = await twin.call('POST', INSTANCES, { raw: '{}', headers: { 'content-type': type } })
      expect([status, pick(body, 'code')]).toEqual([415, 'MEDIA_TYPE_NOT_SUPPORTED'])
    }
    const withCharset = { 'content-type': 'application/json; charset=utf-8' }
    const made = await twin.call('POST', INSTANCES, { raw: '{"shortName":"s","accountId":"a"}', headers: withCharset })
    expect(made.status).toBe(201)
  })

  it('refuses a body above the limit, and one that nests too deep', async () => {
    await using twin = await openTwin()
    const large = JSON.stringify({ shortName: 's', accountId: 'x'.repeat(1_048_576) })
    expect(await twin.call('POST', INSTANCES, { raw: large })).toMatchObject({
      status: 413,
      body: { code: 'BODY_TOO_LARGE' },
    })
    const path = `/api/v1.1/instances/${await twin.instance()}/conditions`
    for (const deep of [
      `${'['.repeat(100_000)}${']'.repeat(100_000)}`,
      `[${'{"operator":"NOT","condition":'.repeat(20_000)}{}${'}'.repeat(20_000)}]`,
    ]) {
      expect((await twin.call('POST', path, { raw: deep })).status).toBe(400)
    }
  })

  it('does not stumble over names that mean something to the language', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ constructor: 1, toString: 2 })
    await twin.lineItem(instance, { activationId: '__proto__' })
    const raw = `{"requester":{"type":"user","value":"x","dictionary":{"__proto__":{"a":1},"constructor":"y"}},
      "requestedItems":[{"item":"constructor","count":1,"metaData":{"constructor":1}},{"item":"hasOwnProperty","count":1}]}`
    const { status, body } = await twin.call('POST', `/elastic/api/v1.1/instances/${instance}/access-request`, { raw })
    expect(status).toBe(200)
    expect(pick(body, 'requestedItems', 0, 'lineItems', 0, 'activationId')).toBe('__proto__')
    expect(pick(body, 'requestedItems', 1, 'status', 'code')).toBe('2001')
  })

  it('refuses a path with a part that is longer than any id', async () => {
    await using twin = await openTwin()
    const { status, body } = await twin.call('GET', `${INSTANCES}/${'x'.repeat(2_000)}`)
    expect([status, pick(body, 'code')]).toEqual([400, 'BAD_REQUEST'])
  })

  it('refuses meta data with a key that would set a prototype, at any depth', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ Print: 1 })
    await twin.lineItem(instance)
    for (const metaData of ['{"__proto__":1}', '{"a":[{"__proto__":{"b":1}}]}']) {
      const raw = `{"requester":{"type":"user","value":"x"},"requestedItems":[{"item":"Print","count":1,"metaData":${metaData}}]}`
      const { status, body } = await twin.call('POST', `/elastic/api/v1.1/instances/${instance}/access-request`, {
        raw,
      })
      expect([status, pick(body, 'code')]).toEqual([400, 'BAD_REQUEST'])
      expect(pick(body, 'message')).toBe('body.requestedItems[0].metaData: must not contain the key __proto__')
    }
    expect(await twin.usage(instance)).toEqual([])
  })

  it('answers invalid HTTP requests and malformed paths', async () => {
    await using twin = await openTwin()
    const nonsense = await raw(twin, 'this is not HTTP\r\n\r\n')
    expect(nonsense).toMatch(/^HTTP\/1.1 400 /)
    expect(nonsense).toContain('"code":"BAD_REQUEST"')
    const path = await raw(
      twin,
      'GET /dynamicmonetization/api/v1.1/sessions/%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n',
    )
    expect(path).toMatch(/^HTTP\/1.1 400 /)
    expect(path).toContain('"code":"BAD_REQUEST"')
    expect((await twin.call('GET', INSTANCES)).status).toBe(200)
  })

  it('refuses more simultaneous requests than its limit, and says when to try again', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, requestsMax: 1 } }))
    const token = await twin.administrationToken()
    const post = async () => twin.call('POST', INSTANCES, { body: { shortName: 's', accountId: 'a' } })
    const slow = [beginBody(twin, token)]
    let refused = await post()
    while (refused.status === 201) {
      slow.push(beginBody(twin, token))
      refused = await post()
    }
    expect(refused).toMatchObject({ status: 503, body: { code: 'OVERLOADED' } })
    expect(refused.headers.get('retry-after')).toBe('1')
    for (const socket of slow) socket.destroy()
    let again = await post()
    while (again.status === 503) again = await post()
    expect(again.status).toBe(201)
  })

  it('says when to try again by elapsed time, although its wall clock is set back', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, requestsMax: 1 } }))
    const instance = await twin.instance()
    const token = await twin.administrationToken()
    await twin.clientToken(instance)
    const refusal = async () => {
      for (;;) {
        beginBody(twin, token)
        const by = { token: await twin.clientToken(instance), headers: { 'x-instance-id': instance } }
        const { body, headers } = await twin.call('POST', '/api/v1.1/sessions', { ...by, body: {} })
        if (pick(body, 'code') === 'OVERLOADED') return headers.get('retry-after')
      }
    }
    twin.clockAheadMs = 240_000
    expect(await refusal()).toBe('1')
    twin.clockAheadMs = 0
    expect(await refusal()).toBe('1')
  })

  it('serves health, administrators, devices and other clients while bodies of two clients never end', async () => {
    const http = { requestsMax: 40, drainTimeout: 100 }
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, ...http } }))
    const { hostname, port, origin } = new URL(twin.cloud.address)
    const instance = await twin.instance()
    const tokens = await Promise.all(['a', 'b', 'c'].map(async (id) => clientOf(twin, id, instance)))
    const refusals = tokens.slice(0, 2).map(async (token) =>
      Promise.race(
        Array.from({ length: 40 }, async () => {
          const slow = connect(Number(port), hostname)
          onTestFinished(() => void slow.destroy())
          slow.write(
            `POST /dynamicmonetization/api/v1.1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n` +
              `x-instance-id: ${instance}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{`,
          )
          return readAll(slow).catch(() => '')
        }),
      ),
    )
    for (const said of await Promise.all(refusals)) expect(said).toContain('"code":"KEY_BUSY"')
    for (const path of ['/healthz', '/readyz']) expect((await fetch(`${origin}${path}`)).status).toBe(200)
    expect((await twin.call('GET', INSTANCES)).status).toBe(200)
    const body = { instanceId: instance }
    const opened = await twin.call('POST', '/api/v1.1/sessions', {
      body,
      token: tokens[2] ?? null,
      headers: { 'x-instance-id': instance },
    })
    expect(opened.status).toBe(200)
    const token = await twin.enrollmentToken(instance)
    const { jwk: publicKey } = await newDeviceKeys()
    expect((await twin.call('POST', '/edge/api/v1/enrollments', { token, body: { publicKey } })).status).toBeLessThan(
      300,
    )
  })

  it('keeps the connection after malformed JSON', async () => {
    await using twin = await openTwin()
    const { status, headers, body } = await twin.call('POST', INSTANCES, { raw: '{' })
    expect([status, pick(body, 'code'), headers.get('connection')]).toEqual([400, 'BAD_JSON', 'keep-alive'])
  })

  describe('whose token is valid, and whose bodies never end,', () => {
    const MAX = 3
    const few: SettingsChange = (settings) => ({
      ...settings,
      http: { ...settings.http, requestsMax: 100, requestsPerKeyMax: MAX },
    })
    /** Sends all of a request but the end of its body, and resolves with what is answered before the connection closes. */
    function begin(
      twin: Twin,
      path: string,
      token: string,
    ): { readonly socket: Socket; readonly said: Promise<string> } {
      const { hostname, port } = new URL(twin.cloud.address)
      const socket = connect(Number(port), hostname)
      onTestFinished(() => void socket.destroy())
      socket.write(
        `POST /dynamicmonetization${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n` +
          'Connection: close\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{',
      )
      return { socket, said: readAll(socket).catch(() => '') }
    }
    const refusalOf = async (slow: readonly ReturnType<typeof begin>[]): Promise<string> =>
      Promise.race(slow.map(({ said }) => said))

    it('is refused beyond its share, and only it', async () => {
      await using twin = await openTwin(few)
      const instance = await twin.instance()
      const client = await twin.clientToken(instance)
      const token = await twin.administrationToken()
      const slow = Array.from({ length: MAX + 1 }, () => begin(twin, INSTANCES, token))
      const said = await refusalOf(slow)
      expect(said).toMatch(/^HTTP\/1.1 429 [^]*"code":"KEY_BUSY"/)
      expect(said).toMatch(/retry-after: 1\r\n/i)
      expect((await twin.call('GET', INSTANCES)).status).toBe(429)
      // Tokens of another key are the business of another caller.
      const other = { token: client, headers: { 'x-instance-id': instance } }
      expect((await twin.call('GET', '/api/v1.1/sessions', other)).status).toBe(200)

      for (const { socket } of slow) socket.destroy()
      let again = await twin.call('GET', INSTANCES)
      while (again.status === 429) again = await twin.call('GET', INSTANCES)
      expect(again.status).toBe(200)
      expect(twin.wrongAnswers).toEqual([])
    })

    it('is refused beyond 16 when it is a device to be', async () => {
      await using twin = await openTwin(few)
      const instanceIds = [await twin.instance()]
      const { body } = await twin.call('POST', '/edge/api/v1/enrollment-tokens', { body: { instanceIds } })
      const slow = Array.from({ length: 17 }, () => begin(twin, '/edge/api/v1/enrollments', text(body, 'token')))
      expect(await refusalOf(slow)).toMatch(/^HTTP\/1.1 429 [^]*"code":"KEY_BUSY"/)
      expect((await twin.call('GET', INSTANCES)).status).toBe(200)
    })
  })

  it('charges exactly those that it has room for, when more ask at a time than it is allowed', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, requestsMax: 4 } }))
    const instance = await twin.instance()
    await twin.rates({ Print: 1 })
    await twin.lineItem(instance, { quantity: 1000 })
    const answers = await Promise.all(Array.from({ length: 60 }, () => twin.access(instance, { Print: 1 })))
    const granted = answers.filter(({ status }) => status === 200)
    for (const { status, headers, body } of answers) {
      if (status === 200) continue
      expect([status, pick(body, 'code'), headers.get('retry-after')]).toEqual([503, 'OVERLOADED', '1'])
    }
    expect(granted.length).toBeGreaterThan(0)
    expect(await twin.used(instance, 'ACT-1')).toBe(granted.length)
  })

  it('finishes requests in progress when it is stopped, and has stored all that it answered', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ Print: 1 })
    await twin.lineItem(instance, { quantity: 1000 })
    const answers = Array.from({ length: 40 }, async () =>
      twin.access(instance, { Print: 1 }).then(
        ({ status }) => status,
        () => 'refused' as const,
      ),
    )
    await answers[0]
    await twin.stop()
    const granted = (await Promise.all(answers)).filter((status) => status === 200).length
    expect(granted).toBeGreaterThan(0)
    await twin.start()
    expect(await twin.used(instance, 'ACT-1')).toBe(granted)
  })

  it('answers requests that reach it while it stops with STOPPING, and ends their connection', async () => {
    const server = bareServer()
    registerHealth(
      server.http,
      async () => undefined,
      () => [],
    )
    expect((await server.http.inject('/readyz')).statusCode).toBe(200)
    server.stopAccepting()
    const refused = await server.http.inject('/readyz')
    expect([refused.statusCode, pick(refused.json(), 'code')]).toEqual([503, 'STOPPING'])
    expect(refused.headers).toMatchObject({ connection: 'close', 'retry-after': '1' })
    await server.http.close()
  })

  it('reveals neither the address of its database nor the names of its files', async () => {
    const { http } = bareServer()
    let code: ErrorCode = 'DATABASE_UNREACHABLE'
    registerHealth(
      http,
      () => Promise.reject(new CodedError(code, 'postgres://user@db.internal/x: /var/lib/x')),
      () => [],
    )
    for (const each of ['DATABASE_REFUSED', 'DATABASE_CORRUPT', 'NOT_RECORDED', 'STATE_UNWRITABLE'] as const) {
      code = each
      const { body, statusCode } = await http.inject('/readyz')
      expect([statusCode, JSON.parse(body)]).toEqual([ERRORS[code].http, { message: ERRORS[code].meaning, code }])
    }
    await http.close()
  })

  it('is not ready when it cannot do its work', async () => {
    const { http } = bareServer()
    registerHealth(
      http,
      () => Promise.reject(new Error('the disk is gone')),
      () => [],
    )
    const answer = await http.inject('/readyz')
    expect([answer.statusCode, answer.body.includes('disk')]).toEqual([500, false])
    expect((await http.inject('/healthz')).statusCode).toBe(200)
    await http.close()
  })

  it('ends connections that never finish their request, in the time that it was given', async () => {
    const drainTimeout = 150
    await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, drainTimeout } }))
    const token = await twin.administrationToken()
    const { hostname, port } = new URL(twin.cloud.address)
    const slow = connect(Number(port), hostname)
    slow.on('error', () => undefined)
    slow.write(
      `POST /dynamicmonetization${INSTANCES} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n` +
        'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{',
    )
    const closed = once(slow, 'close')
    await twin.call('GET', INSTANCES)
    await twin.stop()
    await closed
  })

  it('ends connections that say nothing in their TLS handshake', async () => {
    await using authority = await Authority.make()
    const { certificate, key } = await authority.certify(START + DAY)
    const folder = await mkdtemp(join(tmpdir(), 'tallygate-tls-'))
    onTestFinished(() => rm(folder, { recursive: true }))
    const tls = { certificateFile: join(folder, 'certificate.pem'), keyFile: join(folder, 'key.pem') }
    await writeFile(tls.certificateFile, certificate)
    await writeFile(tls.keyFile, key)
    const drainTimeout = 150
    await using twin = await openTwin((settings) => ({ ...settings, tls, http: { ...settings.http, drainTimeout } }))
    const silent = await silentPeer(Number(new URL(twin.cloud.address).port))
    const closed = once(silent, 'close')
    await twin.stop()
    await closed
  })

  it('cannot listen where another process does', async () => {
    await using first = await openTwin()
    const port = Number(new URL(first.cloud.address).port)
    const second = openTwin((settings) => ({ ...settings, http: { ...settings.http, port } }))
    await expect(second).rejects.toMatchObject({ code: 'ADDRESS_IN_USE' })
    const elsewhere = openTwin((settings) => ({ ...settings, http: { ...settings.http, host: '192.0.2.1' } }))
    await expect(elsewhere).rejects.toMatchObject({ code: 'ADDRESS_NOT_PERMITTED' })
    for (const area of ['http', 'push'] as const) {
      const nowhere = openTwin((settings) => ({ ...settings, [area]: { ...settings[area], host: 'no/../host' } }))
      await expect(nowhere, area).rejects.toMatchObject({ code: 'ADDRESS_NOT_PERMITTED' })
    }
  })

  it('logs no tokens, no keys and nothing that requesters state about themselves', async () => {
    const lines = new PassThrough()
    const written = readAll(lines)
    const secrets: string[] = []
    {
      await using twin = await openTwin(undefined, pino({ level: 'debug' }, lines))
      const instance = await twin.instance()
      const { publicPem } = newKeyPair()
      await twin.call('PUT', '/api/v1.1/client-keys', { body: [{ id: 'k', publicKey: publicPem }] })
      await twin.access(instance, { Print: 1 }, 'a-very-private-person')
      await twin.call('POST', INSTANCES, { raw: '{' })
      await twin.call('GET', INSTANCES, { token: 'not.a.token' })
      secrets.push(
        await twin.administrationToken(),
        publicPem.split('\n')[1] ?? '',
        'a-very-private-person',
        'not.a.token',
      )
    }
    lines.end()
    const log = await written
    expect(log).toContain('listening')
    for (const secret of secrets) expect(log).not.toContain(secret)
  })
})

describe('any input', () => {
  it('is never answered with a server error', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ Print: 1 })
    await twin.lineItem(instance)
    const session = pick(
      (await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId: instance } })).body,
      'sessionId',
    )
    const inInstance = `instances/${instance}`
    const inSession = `sessions/${String(session)}`
    const operations: readonly (readonly [string, string])[] = [
      ['GET POST', `provisioning/api/v1.1/instances`],
      ['GET PUT', `provisioning/api/v1.0/${inInstance}/line-items`],
      ['GET PUT', `provisioning/api/v1.1/${inInstance}/line-items`],
      ['GET DELETE', `provisioning/api/v1.1/${inInstance}/line-items/ACT-1`],
      ['GET POST PUT DELETE', `api/v1.1/${inInstance}/line-items/ACT-1/actions`],
      ['GET', `api/v1.1/${inInstance}/line-items/actions`],
      ['GET POST PATCH DELETE', `api/v1.1/${inInstance}/conditions`],
      ['GET PUT DELETE', `api/v1.1/${inInstance}/line-items/ACT-1/consumption-limit`],
      ['POST', `elastic/api/v1.0/${inInstance}/access-request`],
      ['POST', `elastic/api/v1.1/${inInstance}/access-request`],
      ['GET POST', 'api/v1.1/sessions'],
      ['GET PUT', `floating/api/v1.0/${inSession}`],
      ['PUT', `api/v1.1/${inSession}`],
      ['GET', `api/v1.1/${inSession}/heartbeat`],
      ['GET POST DELETE', 'provisioning/api/v1.1/rate-tables'],
      ['GET PATCH', 'provisioning/api/v1.1/configuration'],
      ['PUT', 'api/v1.1/client-keys'],
      ['GET', 'api/v1.1/public-keys'],
    ]
    const calls = operations.flatMap(([methods, path]) => methods.split(' ').map((method) => [method, path] as const))
    const token = await twin.administrationToken()
    const number = fc.oneof(
      fc.constantFrom(0, -0, 1, -1, 0.5, 1e-7, 1e21, 1e308, -1e308, 2 ** 53, 2 ** 63, START, 253402300799999),
      fc.double({ noNaN: true, noDefaultInfinity: true }),
    )
    const word = fc.oneof(
      fc.constantFrom(
        '',
        'ACT-1',
        'Print',
        'DEPLOYED',
        'OBSOLETE',
        'Number',
        'Unlimited',
        'ALLOW',
        'DENY',
        'MONTHLY',
        instance,
      ),
      fc.string({ unit: 'binary' }),
      fc.string({ unit: 'grapheme' }),
    )
    const leaf = fc.oneof(number, word, fc.boolean(), fc.constant(null))
    const field = fc.constantFrom(
      ...['activationId', 'state', 'quantity', 'start', 'end', 'used', 'attributes', 'elastic', 'rateTableSeries'],
      ...['overdraftLimit', 'overdraftType', 'resetFrequency', 'action', 'allocation', 'conditionId', 'id', 'name'],
      ...['operator', 'conditions', 'condition', 'property', 'values', 'effectiveFrom', 'version', 'series', 'items'],
      ...['rate', 'requester', 'type', 'value', 'dictionary', 'requestedItems', 'item', 'count', 'metaData', 'limit'],
      ...['rollbackOnDeny', 'instanceId', 'shortName', 'accountId', 'publicKey', 'frequency', 'nextReset', '__proto__'],
    )
    const anything = fc.letrec<{ value: unknown }>((tie) => ({
      value: fc.oneof(
        { depthSize: 'small' },
        leaf,
        fc.array(tie('value'), { maxLength: 4 }),
        fc.dictionary(field, tie('value'), { maxKeys: 6 }),
      ),
    })).value
    /** A good body with something in it exchanged: it gets further than noise. */
    const bent = fc
      .tuple(
        fc.constantFrom<Record<string, unknown>>(
          lineItemBody(),
          { requester: { type: 'u', value: 'v' }, requestedItems: [{ item: 'Print', count: 1 }] },
          { requester: { type: 'u', value: 'v' }, rollbackOnDeny: true, requestedItems: [{ item: 'Print', count: 1 }] },
          { effectiveFrom: 1, version: '1', items: [{ name: 'Print', rate: 1 }] },
          { limit: 5, frequency: 'DAILY', nextReset: START + 1 },
          { shortName: 's', accountId: 'a' },
        ),
        field,
        anything,
      )
      .map(([body, key, value]) => ({ ...body, [key]: value }))
    const query = fc.oneof(
      fc.constant(''),
      fc
        .tuple(fc.constantFrom('next', 'size', 'accountId', 'default', 'series', 'version', 'instanceId'), word)
        .map(([key, value]) => `?${key}=${encodeURIComponent(value.toWellFormed())}`),
      fc.string({ unit: 'binary-ascii' }).map((text) => `?${encodeURI(text)}`),
    )
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...calls),
        query,
        fc.oneof(
          anything,
          bent,
          bent.map((body) => [body]),
        ),
        async ([method, path], search, body) => {
          const options = method === 'GET' ? { token } : { token, body }
          const reply = await twin.call(method, `/${path}${search}`, options)
          expect(reply.status, reply.text).toBeLessThan(500)
        },
      ),
      { numRuns: 600 },
    )
    expect((await twin.call('GET', `${INSTANCES}/${instance}/line-items`)).status).toBe(200)
    await twin.tick()
  }, 60_000)
})
