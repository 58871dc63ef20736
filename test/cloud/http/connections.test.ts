// Requests that cannot be read to their end, on raw connections: what the client receives, in which order.
import { type Socket, connect } from 'node:net'
import { once } from 'node:events'
import { text as readAll } from 'node:stream/consumers'
import { Writable } from 'node:stream'
import { pino } from 'pino'
import { describe, expect, it, onTestFinished } from 'vitest'
import { type Twin, openTwin } from '../harness.ts'
import { bareServer } from './bare-server.ts'

const INSTANCES = '/provisioning/api/v1.1/instances'

function open(twin: Twin): Socket {
  const { hostname, port } = new URL(twin.cloud.address)
  const socket = connect(Number(port), hostname)
  onTestFinished(() => void socket.destroy())
  return socket
}

/** Statuses and codes of all responses on a connection. */
function responses(said: string): readonly string[] {
  return [...said.matchAll(/HTTP\/1\.1 (\d{3})|"code":"(\w+)"/g)].map(([, status, code]) => status ?? code ?? '')
}

async function head(twin: Twin, more: string, path = INSTANCES): Promise<string> {
  const token = await twin.administrationToken()
  return (
    `POST /dynamicmonetization${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n` +
    `Content-Type: application/json\r\n${more}\r\n`
  )
}

const BODY = '{"shortName":"s","accountId":"a"}'
const WHOLE = `Content-Length: ${BODY.length}\r\n`
const GARBAGE = '\0\0\0 this is not HTTP\r\n\r\n'

describe('after a request that is still pending,', () => {
  it.each([
    ['sends bytes that are not HTTP, and no more', (socket: Socket, request: string) => socket.end(request + GARBAGE)],
    ['sends bytes that are not HTTP', (socket: Socket, request: string) => socket.write(request + GARBAGE)],
    [
      'sends these bytes apart, and no more',
      (socket: Socket, request: string) => socket.write(request, () => socket.end(GARBAGE)),
    ],
  ] as const)('a client that %s receives both responses in order', async (_, send) => {
    await using twin = await openTwin()
    const socket = open(twin)
    send(socket, (await head(twin, WHOLE)) + BODY)
    expect(responses(await readAll(socket))).toEqual(['201', '400', 'BAD_REQUEST'])
  })

  it('a client that begins another request and sends no more receives both responses in order', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    const request = await head(twin, WHOLE)
    socket.end(request + BODY + request + BODY.slice(1))
    expect(responses(await readAll(socket))).toEqual(['201', '400', 'BODY_INCOMPLETE'])
  })
})

describe('a body that is too large', () => {
  it('is refused with a response that a client receives although it is still sending', async () => {
    await using twin = await openTwin()
    const length = 4 * 1_024 * 1_024
    const request = (await head(twin, `Content-Length: ${length}\r\n`)) + 'x'.repeat(length)
    for (let round = 0; round < 20; round += 1) {
      const socket = open(twin)
      socket.write(request)
      expect(responses(await readAll(socket))).toEqual(['413', 'BODY_TOO_LARGE'])
    }
  })
})

describe('a request behind a refusal that closes the connection is not served:', () => {
  const chunked = (bytes: number): readonly [string, string] => [
    'Transfer-Encoding: chunked\r\n',
    `${bytes.toString(16)}\r\n${'x'.repeat(bytes)}\r\n0\r\n\r\n`,
  ]
  const counted = (bytes: number): readonly [string, string] => [`Content-Length: ${bytes}\r\n`, 'x'.repeat(bytes)]
  const MIB = 1_024 * 1_024

  it.each([
    ['a body of 2 MiB', counted(2 * MIB), ['413', 'BODY_TOO_LARGE']],
    ['2 MiB in chunks', chunked(2 * MIB), ['413', 'BODY_TOO_LARGE']],
    ['chunks that end at once', chunked(MIB + 1), ['413', 'BODY_TOO_LARGE']],
    ['two hosts', [`Host: y\r\n${WHOLE}`, BODY], ['400', 'BAD_REQUEST']],
  ] as const)('%s', async (_, [framing, body], refused) => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.end((await head(twin, framing)) + body + (await head(twin, WHOLE)) + BODY)
    const said = readAll(socket)
    await once(socket, 'close')
    expect(responses(await said)).toEqual(refused)
    expect((await twin.call('GET', INSTANCES)).body).toMatchObject({ content: [] })
  })
})

it.each([
  ['that lists the header', 'Connection: Upgrade\r\n'],
  ['without a Connection header', ''],
])('an upgrade offer %s is answered as a plain request, and no request behind it is served', async (_what, header) => {
  await using twin = await openTwin()
  const socket = open(twin)
  const [offer, next] = [await head(twin, `${header}Upgrade: h2c\r\n${WHOLE}`), await head(twin, WHOLE)]
  socket.write(offer + BODY + next + BODY.replace('"s"', '"t"'))
  expect(responses(await readAll(socket))).toEqual(['201'])
  expect((await twin.call('GET', INSTANCES)).body).toMatchObject({ content: [{ shortName: 's' }] })
})

it('at a stop, a client receives the responses to all access requests that it has sent', async () => {
  const { http, plain, stopAccepting } = bareServer()
  const gate = Promise.withResolvers<{ readonly status: number; readonly body: unknown }>()
  plain.add({ method: 'POST', url: '/access', answers: new Map(), answer: () => gate.promise })
  http.post('/access', async () => 'late')
  const accepted = once(http.server, 'connection')
  onTestFinished(() => http.close())
  const { port } = new URL(await http.listen({ host: '127.0.0.1', port: 0 }))
  const socket = connect(Number(port), '127.0.0.1')
  const request = 'POST /access HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}'
  const [connection] = (await accepted) as [Socket]
  for (const count of [1, 2]) {
    socket.write(request)
    await expect.poll(() => connection.bytesRead).toBe(count * request.length)
  }
  stopAccepting()
  gate.resolve({ status: 200, body: {} })
  expect(responses(await readAll(socket))).toEqual(['200', '503', 'STOPPING'])
})

it('at a stop, a client receives the responses to all requests that it has sent', async () => {
  const { http, stopAccepting } = bareServer()
  const gate = Promise.withResolvers<string>()
  let requests = 0
  http.get('/', () => {
    requests += 1
    return gate.promise
  })
  onTestFinished(() => http.close())
  const { port } = new URL(await http.listen({ host: '127.0.0.1', port: 0 }))
  const socket = connect(Number(port), '127.0.0.1')
  socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(3))
  await expect.poll(() => requests).toBe(3)
  stopAccepting()
  gate.resolve('')
  expect(responses(await readAll(socket))).toEqual(['200', '200', '200'])
})

describe('a client that does not wait for responses', () => {
  const GET = 'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n'

  it('receives each of them, in order', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.end(`${GET.repeat(59)}${GET.replace('healthz', 'nothing')}`)
    expect(responses(await readAll(socket))).toEqual([...Array<string>(59).fill('200'), '404', 'OPERATION_UNKNOWN'])
  })

  it('loses its connection if hundreds of requests arrive at once, after the responses to earlier ones', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.write(GET)
    const [first] = (await once(socket, 'data')) as [Buffer]
    socket.write(GET.repeat(300))
    expect(responses(String(first) + (await readAll(socket)))).toEqual(['200', '400', 'BAD_REQUEST'])
  })
})

it('takes a body with hundreds of blank lines for one request', async () => {
  await using twin = await openTwin()
  const raw = `{${'\r\n'.repeat(600)}"shortName": "HTTP/1.1", "accountId": "HTTP/1.1"${'\r\n'.repeat(600)}}`
  expect(await twin.call('POST', '/provisioning/api/v1.1/instances', { raw })).toMatchObject({ status: 201 })
})

describe('gets a code and a message:', () => {
  it.each([
    ['a request without Host', 'GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n', ['400', 'BAD_REQUEST']],
    ['a request without Host and path', 'GET /x HTTP/1.1\r\nConnection: close\r\n\r\n', ['400', 'BAD_REQUEST']],
    ['two hosts', 'GET /healthz HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n', ['400', 'BAD_REQUEST']],
    ['an invalid host', 'GET /healthz HTTP/1.1\r\nHost: x/y\r\n\r\n', ['400', 'BAD_REQUEST']],
    [
      'a transfer coding that is not known',
      'POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
      ['501', 'TRANSFER_CODING_UNKNOWN'],
    ],
    [
      'one known expectation of two',
      'GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: 100-continue, tea\r\n\r\n',
      ['417', 'EXPECTATION_UNKNOWN'],
    ],
    [
      'a transfer coding that is not known, as a page of the console',
      'GET /dynamicmonetization/console HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
      ['501'],
    ],
    [
      'an unknown expectation, as a page of the console',
      'GET /dynamicmonetization/console HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n',
      ['417'],
    ],
    ['a request for a tunnel', 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n', ['404', 'OPERATION_UNKNOWN']],
  ])('%s', async (_, request, expected) => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.write(request)
    expect(responses(await readAll(socket))).toEqual(expected)
  })

  it('a request for a tunnel, after the response to an earlier request', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.write(`${await head(twin, WHOLE)}${BODY}CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nmore`)
    expect(responses(await readAll(socket))).toEqual(['201', '404', 'OPERATION_UNKNOWN'])
    expect((await twin.call('GET', INSTANCES)).status).toBe(200)
  })

  it('no request of HTTP/1.0, which needs no Host', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.write('GET /healthz HTTP/1.0\r\n\r\n')
    expect(responses(await readAll(socket))).toEqual(['200'])
  })
})

describe('a body that breaks off', () => {
  it.each([
    ['because the client sends no more', WHOLE, BODY.slice(1)],
    ['by an invalid chunk', 'Transfer-Encoding: chunked\r\n', '5\r\n{"sho\r\nx\r\n'],
  ])('%s gets one response', async (_, framing, body) => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.end((await head(twin, framing)) + body)
    expect(responses(await readAll(socket))).toEqual(['400', 'BODY_INCOMPLETE'])
  })

  it('is no reason to refuse a GET, which does not read it', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.end((await head(twin, WHOLE)).replace('POST', 'GET') + BODY.slice(1))
    expect(responses(await readAll(socket))).toEqual(['200'])
  })

  it('of a caller that is refused gets the refusal only', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.end((await head(twin, WHOLE, '/api/v1.1/nothing')) + BODY.slice(1))
    expect(responses(await readAll(socket))).toEqual(['404', 'OPERATION_UNKNOWN'])
  })

  it('is counted, and logged once in a while without a stack', async () => {
    const lines: string[] = []
    const sink = new Writable({
      write: (line: Buffer, _encoding, done) => {
        lines.push(String(line))
        done()
      },
    })
    await using twin = await openTwin(undefined, pino({ level: 'info' }, sink))
    const metrics = async (): Promise<string> => (await fetch(twin.cloud.metricsAddress)).text()
    for (const end of ['resetAndDestroy', 'destroy'] as const) {
      const socket = open(twin)
      socket.write(await head(twin, `${WHOLE}Expect: 100-continue\r\n`))
      await once(socket, 'data')
      socket[end]()
    }
    let text = await metrics()
    while (!text.includes('tallygate_http_bodies_incomplete_total 2')) text = await metrics()
    const about = lines.filter((line) => line.includes('before the body'))
    expect(about.map((line) => JSON.parse(line) as unknown)).toEqual([
      expect.objectContaining({ level: 30, requests: 1 }),
    ])
    expect(lines.filter((line) => line.includes('"stack"') || line.includes('request failed'))).toEqual([])
  })
})

describe('the header Expect', () => {
  it('of another kind gets a coded 417', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    socket.write(await head(twin, `${WHOLE}Expect: foo\r\n`))
    const said = await readAll(socket)
    expect(responses(said)).toEqual(['417', 'EXPECTATION_UNKNOWN'])
    expect(said).toContain('content-type: application/json')
  })

  it('gets 100 Continue for a permitted caller, who can use the connection again', async () => {
    await using twin = await openTwin()
    const socket = open(twin)
    const request = await head(twin, `${WHOLE}Expect: 100-continue\r\n`)
    socket.write(request)
    const [interim] = (await once(socket, 'data')) as [Buffer]
    expect(String(interim)).toBe('HTTP/1.1 100 Continue\r\n\r\n')
    socket.end(BODY + request + BODY)
    expect(responses(await readAll(socket))).toEqual(['201', '100', '201'])
  })

  it.each([
    ['without a token', '', '401'],
    ['whose instance is another', 'x-instance-id: 64d2028c-ae87-4069-a624-66089d957ef9\r\n', '403'],
    ['with a compressed body', 'Content-Encoding: br\r\n', '415'],
  ])('gets no 100 Continue for a request %s, and the connection ends', async (what, more, status) => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const socket = open(twin)
    const request = await head(
      twin,
      `${WHOLE}Expect: 100-continue\r\n${more}`,
      `/api/v1.1/instances/${instance}/conditions`,
    )
    socket.write(what === 'without a token' ? request.replace(/Authorization.*\r\n/, '') : request)
    expect(responses(await readAll(socket))[0]).toBe(status)
  })
})
