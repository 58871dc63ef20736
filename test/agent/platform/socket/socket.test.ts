// The socket server with real bytes over a real socket; the pipeline behind it is a fake.
import { once } from 'node:events'
import {
  chmodSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { request as httpRequest } from 'node:http'
import { type Socket, connect, createServer } from 'node:net'
import { join } from 'node:path'
import fc from '../../../support/fast-check.ts'
import { describe, expect, it, onTestFinished } from 'vitest'
import { type SocketOptions, type SocketServer, openSocket } from '../../../../src/agent/platform/socket/server.ts'
import type { AccessAnswer, AccessCall } from '../../../../src/agent/access/access.ts'
import { CodedError } from '../../../../src/protocol/errors.ts'
import { AGENT_DECISIONS_PATH } from '../../../../src/protocol/local/decision.ts'
import { AGENT_ROTATE_KEY_PATH } from '../../../../src/protocol/local/rotate-key.ts'
import { AGENT_STATUS_PATH } from '../../../../src/protocol/local/status.ts'
import { accessBody, temporaryDirectory } from '../../harness.ts'
import { ONLY_ACCESS } from './only-access.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'

const PATH = `/v1.0/instances/${INSTANCE}/access-request`
/** A UUID that a program chose. */
const PROGRAM = '5b0b7f1c-3c1e-4d0a-9d6f-0d4b8a0c7e11'
const ANSWER: AccessAnswer = {
  operable: true,
  status: 200,
  body: '{"granted":true}',
  policyRevision: 7,
  warnings: [],
  durability: 'write-behind',
}

/** An access request as the fast path takes it. */
const WHOLE = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}`

class Behind {
  readonly calls: AccessCall[] = []
  readonly faults: unknown[] = []
  answer: (call: AccessCall) => Promise<AccessAnswer> = async () => ANSWER
  readonly path = join(temporaryDirectory(), 'agent.sock')

  async open(changes: Partial<SocketOptions> = {}): Promise<SocketServer> {
    const server = await openSocket({
      path: this.path,
      mode: 0o660,
      bodyBytesMax: 1_000,
      waitingMax: 100,
      connectionsMax: 100,
      requestTimeoutMs: 5_000,
      access: {
        request: (call) => {
          this.calls.push(call)
          return this.answer(call)
        },
      },
      ...ONLY_ACCESS,
      onFault: (error) => this.faults.push(error),
      ...changes,
    })
    onTestFinished(() => server.stop(0))
    return server
  }

  /** Requests get their answer when the result resolves. */
  holdAnswers(): PromiseWithResolvers<AccessAnswer> {
    const gate = Promise.withResolvers<AccessAnswer>()
    this.answer = () => gate.promise
    return gate
  }

  post(body: unknown, how: { path?: string; headers?: Record<string, string>; method?: string } = {}) {
    const text = typeof body === 'string' ? body : JSON.stringify(body)
    return send(this.path, how.method ?? 'POST', how.path ?? PATH, text, {
      'content-type': 'application/json',
      ...how.headers,
    })
  }

  get(path: string) {
    return send(this.path, 'GET', path, null, {})
  }

  /** Sends the bytes. Returns all that it receives until the connection is closed, or `until` is in it. */
  async raw(bytes: string | Uint8Array, until?: string): Promise<string> {
    const socket = connect(this.path)
    socket.on('error', () => undefined)
    socket.write(bytes)
    const received = await read(socket, until)
    socket.destroy()
    return received
  }
}

async function read(socket: Socket, until?: string): Promise<string> {
  let received = ''
  for await (const chunk of socket) {
    received += String(chunk)
    if (until !== undefined && received.includes(until)) break
  }
  return received
}

interface Answer {
  readonly status: number
  readonly headers: Record<string, string | string[] | undefined>
  readonly body: unknown
}

function send(
  socketPath: string,
  method: string,
  path: string,
  body: string | null,
  headers: Record<string, string>,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const request = httpRequest({ socketPath, method, path, headers }, (response) => {
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString()
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          body: text === '' ? null : (JSON.parse(text) as unknown),
        })
      })
    })
    request.on('error', reject)
    request.end(body ?? undefined)
  })
}

describe('the socket', () => {
  it.each([
    PATH,
    `/v1.1/instances/${INSTANCE}/access-request`,
    `/elastic/api${PATH}`,
    `/dynamicmonetization/elastic/api${PATH}`,
    `/dynamicmonetization/elastic/api/v1.1/instances/${INSTANCE.toUpperCase()}/access-request`,
  ])('takes an access request at %s', async (path) => {
    const behind = new Behind()
    await behind.open()
    const { status, headers, body } = await behind.post(accessBody(1), { path, headers: { authorization: 'Bearer x' } })
    expect([status, body]).toEqual([200, { granted: true }])
    expect(headers).toMatchObject({
      'content-type': 'application/json',
      'x-tallygate-durability': 'write-behind',
      'x-tallygate-policy-revision': '7',
    })
    expect(behind.calls).toEqual([
      {
        apiVersion: path.includes('v1.1') ? 'v1.1' : 'v1.0',
        instanceId: INSTANCE,
        text: JSON.stringify(accessBody(1)),
        body: accessBody(1),
        isKept: false,
        idempotencyKey: null,
      },
    ])
  })

  it('has a header with the warnings of the decision', async () => {
    const behind = new Behind()
    behind.answer = async () => ({ ...ANSWER, warnings: ['CLOCK_UNDECIDED_ALLOWED'] })
    await behind.open()
    expect((await behind.post(accessBody(1))).headers['x-tallygate-warnings']).toBe('CLOCK_UNDECIDED_ALLOWED')
  })

  it('passes on the application session and the number of a request', async () => {
    const behind = new Behind()
    await behind.open()
    const headers = { 'x-tallygate-session': PROGRAM.toUpperCase(), 'x-tallygate-request': '42' }
    await behind.post(accessBody(1), { headers })
    expect(behind.calls[0]?.idempotencyKey).toEqual({ session: PROGRAM, n: 42 })
  })

  it.each([
    [{ 'x-tallygate-session': PROGRAM }],
    [{ 'idempotency-key': '' }],
    [{ 'idempotency-key': 'x'.repeat(256) }],
    [{ 'idempotency-key': 'a', 'x-tallygate-session': PROGRAM, 'x-tallygate-request': '1' }],
    [{ 'x-tallygate-request': '1' }],
    [{ 'x-tallygate-session': PROGRAM, 'x-tallygate-request': '0' }],
    [{ 'x-tallygate-session': PROGRAM, 'x-tallygate-request': '1.5' }],
    [{ 'x-tallygate-session': PROGRAM, 'x-tallygate-request': '9'.repeat(16) }],
    [{ 'x-tallygate-session': 'app', 'x-tallygate-request': '1' }],
  ])('refuses the session headers %j', async (headers) => {
    const behind = new Behind()
    await behind.open()
    expect(await behind.post(accessBody(1), { headers })).toMatchObject({ status: 400, body: { code: 'BAD_REQUEST' } })
    expect(behind.calls).toEqual([])
  })

  it('passes on advice, in a header', async () => {
    const behind = new Behind()
    behind.answer = async () => ({ ...ANSWER, advice: 'LaserCut exists as version 1.0' })
    await behind.open()
    expect((await behind.post(accessBody(1))).headers['x-tallygate-advice']).toBe('LaserCut exists as version 1.0')
  })

  it('reports its liveness and the status of the agent', async () => {
    const behind = new Behind()
    await behind.open()
    expect(await behind.get('/livez')).toMatchObject({ status: 200, body: { live: true } })
    expect(await behind.get(AGENT_STATUS_PATH)).toMatchObject({ status: 200, body: { version: '0.0.0' } })
    expect(await behind.get(`${AGENT_STATUS_PATH}?verbose`)).toMatchObject({ status: 200 })
  })

  it('answers every request of a half-closed client', async () => {
    const behind = new Behind()
    await behind.open()
    const body = JSON.stringify(accessBody(1))
    const head = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n`
    const decisions: (() => void)[] = []
    behind.answer = () => new Promise((resolve) => decisions.push(() => resolve(ANSWER)))
    const request = `${head}\r\n${body}`
    for (const bytes of [request, `${head}Connection: close\r\n\r\n${body}`, request.repeat(3)]) {
      behind.calls.length = 0
      const socket = connect(behind.path)
      socket.end(bytes)
      // By then the end of its connection has been seen as well.
      for (let round = 0; round < 3; round += 1) await behind.get('/livez')
      for (const decide of decisions) decide()
      const answers = (await read(socket)).match(/HTTP\/1.1 200 /g) ?? []
      expect(answers).toHaveLength(behind.calls.length)
      expect(behind.calls.length).toBeGreaterThan(0)
    }
  })

  it('takes an address as a client writes it for a proxy', async () => {
    const behind = new Behind()
    await behind.open()
    expect(await behind.post(accessBody(1), { path: `http://device:80${PATH}` })).toMatchObject({ status: 200 })
    expect(await behind.get(`HTTP://x${AGENT_STATUS_PATH}`)).toMatchObject({ status: 200 })
    expect(await behind.get('http://x')).toMatchObject({ status: 404 })
    expect(await behind.get('ftp://x/livez')).toMatchObject({ status: 404 })
  })

  it('refuses unknown paths, other methods and malformed ids', async () => {
    const behind = new Behind()
    await behind.open()
    const nothing = { status: 404, body: { code: 'OPERATION_UNKNOWN' } }
    for (const path of ['/', '/v1.0', '/v1.2/instances/x/access-request', '//livez']) {
      expect(await behind.post(accessBody(1), { path })).toMatchObject(nothing)
      expect(await behind.get(path)).toMatchObject(nothing)
    }
    expect(await behind.get(PATH)).toMatchObject({ status: 405, headers: { allow: 'POST, OPTIONS' } })
    const malformed = { status: 400, body: { code: 'BAD_REQUEST' } }
    expect(await behind.post({}, { path: '/v1.0/instances/not-a-uuid/access-request' })).toMatchObject(malformed)
    expect(await behind.post({}, { path: '/v1.0/instances//access-request' })).toMatchObject(malformed)
    expect(await behind.get('/v1.0/instances//access-request')).toMatchObject(nothing)
  })

  it('names the methods of the paths that only the agent has', async () => {
    const behind = new Behind()
    await behind.open()
    const allows = [
      [AGENT_STATUS_PATH, 'GET, HEAD, OPTIONS'],
      [`${AGENT_DECISIONS_PATH}no-uuid`, 'GET, HEAD, OPTIONS'],
      [AGENT_ROTATE_KEY_PATH, 'POST, OPTIONS'],
      ['/livez', 'GET, HEAD, OPTIONS'],
    ] as const
    for (const [path, allow] of allows) {
      const refused = { status: 405, headers: { allow }, body: { code: 'METHOD_NOT_ALLOWED' } }
      expect(await behind.post({}, { path, method: 'DELETE' }), path).toMatchObject(refused)
      expect(await behind.post('', { path, method: 'OPTIONS' }), path).toMatchObject({
        status: 204,
        headers: { allow },
      })
    }
    expect(await behind.post('', { path: '/livez', method: 'HEAD' })).toMatchObject({ status: 200, body: null })
  })

  it.each([
    ['no JSON', 'count: 1', 'BAD_JSON', 400],
    ['JSON that ends too early', '{"requester":', 'BAD_JSON', 400],
    ['blanks', ' ', 'BAD_JSON', 400],
    ['two values', '{} {}', 'BAD_JSON', 400],
    ['more than the limit', JSON.stringify('x'.repeat(1_000)), 'BODY_TOO_LARGE', 413],
    ['more levels than anybody needs', '['.repeat(100) + ']'.repeat(100), 'BAD_REQUEST', 400],
  ])('refuses a body with %s', async (_what, body, code, status) => {
    const behind = new Behind()
    await behind.open()
    expect(await behind.post(body)).toMatchObject({ status, body: { code } })
    expect(await behind.post(body, { headers: { 'transfer-encoding': 'chunked' } })).toMatchObject({ body: { code } })
    expect(behind.calls).toEqual([])
  })

  it.each([
    ['another type', { 'content-type': 'text/plain' }],
    ['a similar type', { 'content-type': 'application/jsonp' }],
    ['a compression', { 'content-encoding': 'gzip' }],
  ])('refuses a body in %s', async (_what, headers) => {
    const behind = new Behind()
    await behind.open()
    expect(await behind.post(accessBody(1), { headers })).toMatchObject({
      status: 415,
      body: { code: 'MEDIA_TYPE_NOT_SUPPORTED' },
    })
  })

  it('accepts a body that is declared as UTF-8, and refuses one that is not UTF-8', async () => {
    const behind = new Behind()
    await behind.open()
    const headers = { 'content-type': 'Application/JSON; charset="UTF-8"' }
    expect(await behind.post(accessBody(1), { headers })).toMatchObject({ status: 200 })
    const head = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n`
    const bytes = Buffer.concat([Buffer.from(head), Buffer.from([0x22, 0xff, 0x22])])
    expect(await behind.raw(bytes, 'BAD_JSON')).toMatch(/^HTTP\/1.1 400 /)
  })

  it('skips one byte order mark before a body, and takes no other, with and without the fast path', async () => {
    const behind = new Behind()
    await behind.open()
    for (const headers of [{}, { 'transfer-encoding': 'chunked' }]) {
      const marked = await behind.post(`\uFEFF${JSON.stringify(accessBody(1))}`, { headers })
      expect(marked).toMatchObject({ status: 200 })
      expect(behind.calls.pop()).toMatchObject({ text: JSON.stringify(accessBody(1)), body: accessBody(1) })
      for (const body of [`\uFEFF\uFEFF${JSON.stringify(accessBody(1))}`, '\uFEFF', '{\uFEFF}']) {
        expect(await behind.post(body, { headers })).toMatchObject({ status: 400, body: { code: 'BAD_JSON' } })
      }
    }
  })

  it('keeps the connection for the next request, also after a body that it did not read', async () => {
    const behind = new Behind()
    await behind.open()
    const socket = connect(behind.path)
    const length = 200_000
    const head = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n`
    socket.write(`${head}Content-Length: ${length}\r\n\r\n${'x'.repeat(length)}`)
    socket.write(`${head}Content-Length: 2\r\n\r\n{}`)
    const received = await read(socket, 'granted')
    expect(received.match(/HTTP\/1.1 \d+/g)).toEqual(['HTTP/1.1 413', 'HTTP/1.1 200'])
    socket.destroy()
  })

  it('refuses requests above the limit of waiting ones, with a Retry-After', async () => {
    const behind = new Behind()
    const gate = behind.holdAnswers()
    await behind.open({ waitingMax: 2 })
    const waiting = [behind.post(accessBody(1)), behind.post(accessBody(2))]
    await expect.poll(() => behind.calls.length).toBe(2)
    const refused = await behind.post(accessBody(3))
    expect(refused).toMatchObject({ status: 503, body: { code: 'OVERLOADED' } })
    expect(refused.headers['retry-after']).toBe('1')
    gate.resolve(ANSWER)
    expect((await Promise.all(waiting)).map(({ status }) => status)).toEqual([200, 200])
    expect(await behind.post(accessBody(4))).toMatchObject({ status: 200 })
  })

  it('answers a refusal with its code, and a fault with INTERNAL and without details', async () => {
    const behind = new Behind()
    await behind.open()
    behind.answer = async () => {
      throw new CodedError('NOT_RECORDED', 'the disk is full')
    }
    const refused = await behind.post(accessBody(1))
    expect(refused).toMatchObject({ status: 503, body: { code: 'NOT_RECORDED', message: 'the disk is full' } })
    expect(refused.headers['retry-after']).toBe('1')
    const fault = new Error('a secret of the house')
    behind.answer = () => Promise.reject(fault)
    const failed = await behind.post(accessBody(1))
    expect(failed).toMatchObject({ status: 500, body: { code: 'INTERNAL' } })
    expect(JSON.stringify(failed.body)).not.toContain('secret')
    expect(behind.faults).toEqual([fault])
  })

  it.each([
    ['no HTTP', 'good morning\r\n\r\n', 400],
    ['TLS', Buffer.from('16030100f4010000f00303', 'hex'), 400],
    ['a header without end', `GET / HTTP/1.1\r\nX: ${'x'.repeat(20_000)}`, 431],
    ['an invalid length', `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n`, 400],
    ['two lengths', `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}`, 400],
    [
      'a length and chunks',
      `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
      400,
    ],
    [
      'a broken chunk',
      `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n`,
      400,
    ],
  ])('answers %s with a refusal and closes', async (_what, bytes, status) => {
    const behind = new Behind()
    await behind.open()
    expect(await behind.raw(bytes)).toMatch(new RegExp(`^HTTP/1.1 ${status} `))
    expect(behind.calls).toEqual([])
    expect(await behind.get('/livez')).toMatchObject({ status: 200 })
  })

  it('answers a body that breaks off as the cloud does', async () => {
    const behind = new Behind()
    await behind.open()
    const head = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n`
    for (const broken of ['Transfer-Encoding: chunked\r\n\r\nzz\r\n', 'Content-Length: 9\r\n\r\n{']) {
      const socket = connect(behind.path)
      socket.end(head + broken)
      expect(await read(socket)).toMatch(/^HTTP\/1.1 400 [^]*"code":"BODY_INCOMPLETE"/)
    }
    expect(behind.calls).toEqual([])
  })

  describe('answers with a code and a reason', () => {
    const post = `POST ${PATH} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n`
    const live = 'GET /livez HTTP/1.1\r\n'
    it.each([
      ['a request that names no host', `${post}\r\n{}`, 400, 'BAD_REQUEST', 'Host'],
      ['a request that names no host and says nothing', `${live}\r\n`, 400, 'BAD_REQUEST', 'Host'],
      [
        'an expectation that it does not know',
        `${post}Host: x\r\nExpect: tea\r\n\r\n{}`,
        417,
        'EXPECTATION_UNKNOWN',
        'tea',
      ],
      ['two hosts', `${post}Host: x\r\nhost: x\r\n\r\n{}`, 400, 'BAD_REQUEST', 'more than once'],
      ['an invalid host', `${post}Host: x y\r\n\r\n{}`, 400, 'BAD_REQUEST', 'is not a host'],
      ['a host with a path', `${live}Host: x/y\r\n\r\n`, 400, 'BAD_REQUEST', 'is not a host'],
      [
        'a transfer coding that it does not know',
        'GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
        501,
        'TRANSFER_CODING_UNKNOWN',
        'gzip',
      ],
      [
        'one known expectation of two',
        `${post}Host: x\r\nExpect: 100-continue, tea\r\n\r\n{}`,
        417,
        'EXPECTATION_UNKNOWN',
        'tea',
      ],
      ['a wish for a tunnel', 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n', 404, 'OPERATION_UNKNOWN', 'CONNECT'],
      ['a method that HTTP does not have', 'BREW / HTTP/1.1\r\nHost: x\r\n\r\n', 400, 'BAD_REQUEST', 'HTTP'],
      ['HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400, 'BAD_REQUEST', 'HTTP'],
      ['headers without end', `${live}X: ${'x'.repeat(20_000)}`, 431, 'HEADERS_TOO_LARGE', 'KiB'],
    ])('%s', async (_what, bytes, status, code, named) => {
      const behind = new Behind()
      await behind.open()
      const [head = '', body = ''] = (await behind.raw(bytes, '"}')).split('\r\n\r\n')
      expect(head).toMatch(new RegExp(`^HTTP/1.1 ${status} `))
      expect(head).toMatch(/^Content-Type: application\/json\r?$/m)
      expect(head).toMatch(new RegExp(`^Content-Length: ${Buffer.byteLength(body)}\r?$`, 'm'))
      const told = JSON.parse(body) as { message: string; code: string }
      expect([Object.keys(told), told.code]).toEqual([['message', 'code'], code])
      expect(told.message).toContain(named)
      expect(behind.calls).toEqual([])
    })

    it.each([
      ['CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n', 'with one request', false],
      ['no HTTP\r\n\r\n', 'with one request', false],
      ['no HTTP\r\n\r\n', 'with one request, by a client that sends no more', true],
    ])('%j after an answer that is still to come, which goes first, %s', async (odd, _, isLast) => {
      const behind = new Behind()
      const gate = behind.holdAnswers()
      await behind.open()
      const socket = connect(behind.path)
      socket[isLast ? 'end' : 'write'](`${post}Host: x\r\n\r\n{}${odd}`)
      await expect.poll(() => behind.calls.length).toBe(1)
      expect(await behind.get('/livez')).toMatchObject({ status: 200 })
      gate.resolve(ANSWER)
      const received = await read(socket)
      expect(received.match(/HTTP\/1.1 \d+|granted|"code":"[A-Z_]+"/g)).toEqual([
        'HTTP/1.1 200',
        'granted',
        odd.startsWith('CONNECT') ? 'HTTP/1.1 404' : 'HTTP/1.1 400',
        odd.startsWith('CONNECT') ? '"code":"OPERATION_UNKNOWN"' : '"code":"BAD_REQUEST"',
      ])
    })
  })

  it.each([
    ['bytes that are not HTTP', 'no HTTP\r\n\r\n', ['HTTP/1.1 400', '"code":"BAD_REQUEST"']],
    ['another request', WHOLE, ['HTTP/1.1 200', 'granted']],
  ])('answers %s during an answer of the fast path, also if the client sends no more', async (_, more, answered) => {
    const behind = new Behind()
    const gate = behind.holdAnswers()
    await behind.open()
    const socket = connect(behind.path)
    socket.write(WHOLE)
    await expect.poll(() => behind.calls.length).toBe(1)
    socket.end(more)
    expect(await behind.get('/livez')).toMatchObject({ status: 200 })
    gate.resolve(ANSWER)
    const received = await read(socket)
    expect(received.match(/HTTP\/1.1 \d+|granted|"code":"[A-Z_]+"/g)).toEqual(['HTTP/1.1 200', 'granted', ...answered])
  })

  it.each(['CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n', 'no HTTP\r\n\r\n'])(
    'says what is wrong with %j also after an answer that has gone, and closes whatever the client does',
    async (odd) => {
      const behind = new Behind()
      await behind.open()
      const socket = connect({ path: behind.path, allowHalfOpen: true })
      onTestFinished(() => void socket.destroy())
      socket.on('error', () => undefined)
      const received: string[] = []
      socket.on('data', (chunk) => received.push(String(chunk)))
      socket.write('GET /livez HTTP/1.1\r\nHost: x\r\n\r\n')
      await expect.poll(() => received.join('')).toContain('live')
      const ended = once(socket, 'end')
      socket.write(`${odd}and more`)
      await ended
      expect(received.join('').match(/"code":"[A-Z_]+"/g)).toHaveLength(1)
      // A half of it that stays open would hold one of the connections that the agent takes.
      await expect
        .poll(() => {
          socket.write('x')
          return socket.destroyed
        })
        .toBe(true)
    },
  )

  it('lives through a client that asks for a tunnel and is gone before its answers', async () => {
    const behind = new Behind()
    const gate = behind.holdAnswers()
    const server = await behind.open()
    const head = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}`
    const socket = connect(behind.path)
    socket.write(`${head}CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n`)
    await expect.poll(() => behind.calls.length).toBe(1)
    socket.destroy()
    await once(socket, 'close')
    expect(await behind.get('/livez')).toMatchObject({ status: 200 })
    gate.resolve(ANSWER)
    expect(await behind.get('/livez')).toMatchObject({ status: 200 })
    await server.stop(5_000)
    expect(behind.faults).toEqual([])
  })

  it('stays with HTTP/1.1 when a client offers another protocol, and responds to the request', async () => {
    const behind = new Behind()
    await behind.open()
    const offers = { connection: 'Upgrade, HTTP2-Settings', upgrade: 'h2c', 'http2-settings': 'AAA' }
    expect(await behind.post(accessBody(1), { headers: offers })).toMatchObject({
      status: 200,
      body: { granted: true },
    })
    const socket = `GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`
    expect(await behind.raw(socket, 'live')).toMatch(/^HTTP\/1.1 200 /)
  })

  it.each([5, 60, 1_000])(
    'of %i requests that arrive at once, answers as many as it handles, then refuses one',
    async (count) => {
      const behind = new Behind()
      await behind.open()
      // The first one leaves the fast path.
      const received = await behind.raw(`GET /livez HTTP/1.1\r\nHost: x\r\n\r\n${WHOLE.repeat(count - 1)}`)
      const handled = count > 64 ? 0 : 3
      expect(behind.calls).toHaveLength(handled)
      expect(received.match(/HTTP\/1.1 \d+|granted|"code":"[A-Z_]+"/g)).toEqual([
        ...(count > 64 ? [] : ['HTTP/1.1 200']),
        ...Array.from({ length: handled }, () => ['HTTP/1.1 200', 'granted']).flat(),
        ...['HTTP/1.1 400', '"code":"BAD_REQUEST"'],
      ])
    },
  )

  it('answers four requests that arrive at once, and takes the next one', async () => {
    const behind = new Behind()
    await behind.open()
    const socket = connect(behind.path)
    onTestFinished(() => void socket.destroy())
    for (let round = 1; round <= 2; round += 1) {
      let received = ''
      socket.write(WHOLE.repeat(4))
      socket.on('data', (chunk) => (received += String(chunk)))
      await expect.poll(() => received.match(/granted/g)?.length).toBe(4)
      expect(behind.calls).toHaveLength(4 * round)
      socket.removeAllListeners('data')
    }
  })

  it('refuses far too many requests after the answers to earlier ones', async () => {
    const behind = new Behind()
    const gate = behind.holdAnswers()
    await behind.open()
    const socket = connect(behind.path)
    socket.on('error', () => undefined)
    socket.write(WHOLE.repeat(2))
    await expect.poll(() => behind.calls.length).toBe(2)
    socket.write(WHOLE.repeat(1_000))
    gate.resolve(ANSWER)
    const received = await read(socket)
    expect(received.match(/granted/g)).toHaveLength(2)
    expect(behind.calls).toHaveLength(2)
    expect(received).toMatch(/"code":"BAD_REQUEST"[^"]*$/)
  })

  it.each([
    ['that lists the header', 'Connection: Upgrade\r\n'],
    ['without a Connection header', ''],
  ])('answers an upgrade offer %s as a plain request, and serves no request right behind it', async (_what, header) => {
    const behind = new Behind()
    await behind.open()
    const post = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n`
    const socket = connect(behind.path)
    onTestFinished(() => void socket.destroy())
    socket.on('error', () => undefined)
    socket.write(`${post}${header}Upgrade: h2c\r\n\r\n{}${post}\r\n[]`)
    const received = await read(socket)
    expect(received.match(/HTTP\/1.1 \d+|Connection: [a-z-]+/g)).toEqual(['HTTP/1.1 200', 'Connection: close'])
    expect(behind.calls).toHaveLength(1)
  })

  it('does not serve a request behind one whose refusal closes the connection', async () => {
    const behind = new Behind()
    await behind.open()
    const broken = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 2\r\n\r\n{}`
    expect((await behind.raw(broken + WHOLE)).match(/HTTP\/1.1 \d+/g)).toEqual(['HTTP/1.1 400'])
    expect(behind.calls).toEqual([])
  })

  it.each([
    ['its refusal closes the connection', `POST ${PATH} HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 2\r\n\r\n{}`],
    [
      'its body is too long',
      `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{`,
    ],
    ['it closes the connection', `GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`],
  ])('sends nothing after the response to a request if %s', async (_what, request) => {
    const behind = new Behind()
    await behind.open({ requestTimeoutMs: 50 })
    expect((await behind.raw(`${request}${WHOLE}not HTTP`)).match(/HTTP\/1.1 \d+/g)).toHaveLength(1)
    expect(behind.calls).toEqual([])
  })

  it.each([
    ['plain', WHOLE],
    ['that Node parses', WHOLE.replace('Host', 'Expect: 100-continue\r\nHost')],
  ])('answers all requests %s of a connection that are pending at a stop', async (_what, whole) => {
    const behind = new Behind()
    const gate = behind.holdAnswers()
    const server = await behind.open()
    const socket = connect(behind.path)
    socket.write(whole.repeat(3))
    await expect.poll(() => behind.calls.length).toBe(3)
    const stopped = server.stop(5_000)
    gate.resolve(ANSWER)
    expect((await read(socket)).match(/granted/g)).toHaveLength(3)
    await stopped
  })

  it('takes an HTTP/1.0 request without a host, and 100-continue', async () => {
    const behind = new Behind()
    await behind.open()
    expect(await behind.raw('GET /livez HTTP/1.0\r\n\r\n')).toMatch(/^HTTP\/1.1 200 /)
    const expecting = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}`
    expect(await behind.raw(expecting, 'granted')).toMatch(/^HTTP\/1.1 100 Continue\r\n\r\nHTTP\/1.1 200 /)
  })

  it('gives up on a request that does not arrive in time', async () => {
    const behind = new Behind()
    await behind.open({ requestTimeoutMs: 50 })
    const begun = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{`
    const answer = await behind.raw(begun)
    expect(answer).toMatch(/^HTTP\/1.1 408 [^]*\r\nRetry-After: 1\r\n/)
    expect(answer).toContain('REQUEST_TOO_SLOW')
    expect(behind.calls).toEqual([])
  })

  it('survives arbitrary bytes', async () => {
    const behind = new Behind()
    behind.answer = async () => {
      throw new CodedError('BAD_REQUEST', 'no')
    }
    await behind.open({ requestTimeoutMs: 500 })
    const line = fc.constantFrom(
      `POST ${PATH} HTTP/1.1\r\n`,
      'GET /livez HTTP/1.0\r\n',
      'Host: x\r\n',
      'Content-Type: application/json\r\n',
      'Content-Length: 10\r\n',
      'Transfer-Encoding: chunked\r\n',
      'Expect: 100-continue\r\n',
      'Connection: upgrade\r\nUpgrade: h2c\r\n',
      'CONNECT x:1 HTTP/1.1\r\n',
      '\r\n',
      '5\r\n{"a":\r\n',
      '{"__proto__":{"a":1}}',
      '\u0000\u0000',
    )
    const bytes = fc.oneof(line, fc.string({ unit: 'binary', maxLength: 50 }))
    await fc.assert(
      fc.asyncProperty(fc.array(bytes, { maxLength: 12, size: 'max' }), async (parts) => {
        const socket = connect(behind.path)
        socket.on('error', () => undefined)
        await once(socket, 'connect')
        socket.end(parts.join(''))
        socket.resume()
        await once(socket, 'close')
      }),
      { numRuns: 150 },
    )
    expect(await behind.get('/livez')).toMatchObject({ status: 200 })
    expect(behind.faults).toEqual([])
  })

  it('lives through applications that hang up in the middle of everything', async () => {
    const behind = new Behind()
    const gate = behind.holdAnswers()
    await behind.open({ waitingMax: 1 })
    const head = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n`
    for (const sent of [head, `${head}{}`]) {
      const socket = connect(behind.path)
      socket.write(sent)
      await once(socket, 'connect')
      if (sent.endsWith('{}')) await expect.poll(() => behind.calls.length).toBe(1)
      socket.destroy()
    }
    gate.resolve(ANSWER)
    await expect.poll(async () => (await behind.post(accessBody(1))).status).toBe(200)
  })
})

describe('a stop of the socket', () => {
  it('finishes requests in progress, accepts no new connections, and removes its file', async () => {
    const behind = new Behind()
    const gate = behind.holdAnswers()
    const server = await behind.open()
    const keptOpen = connect(behind.path)
    await once(keptOpen, 'connect')
    const underWay = behind.post(accessBody(1))
    await expect.poll(() => behind.calls.length).toBe(1)
    const stopped = server.stop(5_000)
    expect(existsSync(behind.path)).toBe(false)
    await expect(behind.get('/livez')).rejects.toMatchObject({ code: 'ENOENT' })
    gate.resolve(ANSWER)
    expect(await underWay).toMatchObject({ status: 200, headers: { connection: 'close' } })
    await stopped
  })

  it('refuses requests that are still arriving as too late, and closes', async () => {
    const behind = new Behind()
    const server = await behind.open()
    const socket = connect(behind.path)
    const request = `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}`
    socket.write(request.slice(0, 30))
    await once(socket, 'connect')
    // The server has read it when it answers a later caller.
    await behind.get('/livez')
    const stopped = server.stop(5_000)
    socket.write(request.slice(30))
    const received = await read(socket)
    expect(received).toMatch(/^HTTP\/1.1 503 .*"code":"STOPPING"/s)
    expect(behind.calls).toEqual([])
    await stopped
  })

  it('ends after its time limit although a request is pending', async () => {
    const behind = new Behind()
    behind.answer = () => new Promise(() => undefined)
    const server = await behind.open()
    const hopeless = behind.post(accessBody(1))
    hopeless.catch(() => undefined)
    await expect.poll(() => behind.calls.length).toBe(1)
    await server.stop(10)
    await expect(hopeless).rejects.toMatchObject({ code: 'ECONNRESET' })
  })
})

describe('the path of the socket', () => {
  it('has the permissions that were asked for, and is made with its directory', async () => {
    for (const mode of [0o600, 0o660, 0o666]) {
      const behind = new Behind()
      await behind.open({ mode })
      expect(statSync(behind.path).mode & 0o777).toBe(mode)
      expect(existsSync(`${behind.path}~`)).toBe(false)
    }
    const behind = new Behind()
    const path = join(temporaryDirectory(), 'a', 'b', 'agent.sock')
    await behind.open({ path })
    expect(lstatSync(path).isSocket()).toBe(true)
  })

  it('lets more clients wait for a connection than the default of Node', async () => {
    const behind = new Behind()
    await behind.open({ connectionsMax: 1_024 })
    const clients = Array.from({ length: 600 }, () => connect(behind.path))
    onTestFinished(() => clients.forEach((client) => client.destroy()))
    const results = await Promise.allSettled(clients.map((client) => once(client, 'connect')))
    expect(results.filter(({ status }) => status === 'rejected')).toEqual([])
  })

  it('is taken over from a dead agent', async () => {
    const behind = new Behind()
    // What a killed process leaves: the name of a socket without a listener.
    const dead = createServer()
    dead.listen(`${behind.path}.first`)
    await once(dead, 'listening')
    linkSync(`${behind.path}.first`, behind.path)
    linkSync(`${behind.path}.first`, `${behind.path}~`)
    await new Promise((resolve) => dead.close(resolve))
    expect(lstatSync(behind.path).isSocket()).toBe(true)
    await behind.open()
    expect(await behind.get('/livez')).toMatchObject({ status: 200 })
  })

  it('is never taken from a running agent', async () => {
    const behind = new Behind()
    await behind.open()
    await expect(behind.open()).rejects.toMatchObject({ code: 'SOCKET_IN_USE' })
    expect(await behind.get('/livez')).toMatchObject({ status: 200 })
  })

  it.each([
    ['a file', (path: string) => writeFileSync(path, 'precious')],
    ['a directory', (path: string) => mkdirSync(path)],
    ['a link', (path: string) => symlinkSync('/nowhere', path)],
  ])('that is %s is left as it is', async (_what, occupy) => {
    const behind = new Behind()
    occupy(behind.path)
    await expect(behind.open()).rejects.toMatchObject({ code: 'SOCKET_PATH_OCCUPIED' })
    if (lstatSync(behind.path).isFile()) expect(readFileSync(behind.path, 'utf8')).toBe('precious')
  })

  it('that cannot be made, or is too long for one, is refused with the reason', async () => {
    const behind = new Behind()
    writeFileSync(behind.path, '')
    const below = new Behind().open({ path: join(behind.path, 'agent.sock') })
    await expect(below).rejects.toMatchObject({
      code: 'SOCKET_PATH_OCCUPIED',
      message: expect.stringMatching(/agent\.sock cannot be created: a file is in its place$/) as string,
    })
    const long = new Behind().open({ path: join(temporaryDirectory(), 'x'.repeat(120)) })
    await expect(long).rejects.toMatchObject({ code: 'SOCKET_PATH_OCCUPIED' })
  })

  it('is not removed at the stop if another process has replaced it', async () => {
    const behind = new Behind()
    const server = await behind.open()
    const other = `${behind.path}.other`
    writeFileSync(other, 'precious')
    chmodSync(other, 0o600)
    const { renameSync } = await import('node:fs')
    renameSync(other, behind.path)
    await server.stop(0)
    expect(readFileSync(behind.path, 'utf8')).toBe('precious')
  })
})
