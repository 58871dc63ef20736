// Both ways through the cloud's server: a request that comes in one piece takes the fast path, the same bytes in two pieces
// take Fastify. Both give the same responses. Only the fast path begins the names of its headers with capitals.
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { type Socket, connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connect as connectTls } from 'node:tls'
import { describe, expect, it, onTestFinished } from 'vitest'
import { Authority } from '../../support/certificates.ts'
import { DAY, type SettingsChange, type Twin, openTwin, pick } from '../harness.ts'
import { bareServer } from './bare-server.ts'

const BODY = JSON.stringify({
  requester: { type: 'user', value: 'LisaBarry' },
  requestedItems: [{ item: 'Print', count: 1 }],
})

const IN_SESSION = JSON.stringify({ ...(JSON.parse(BODY) as object), rollbackOnDeny: true })

interface Request {
  readonly method?: string
  readonly path?: string
  /** Null: no header. */
  readonly token?: string | null
  readonly headers?: readonly string[]
  readonly body?: string
}

/** A cloud with an instance where Print costs 1, and its access requests as bytes. */
async function openShop(change?: SettingsChange) {
  const twin = await openTwin(change)
  const instance = await twin.shop({ quantity: 1_000_000 })
  const token = await twin.administrationToken()
  const bytesOf = (request: Request = {}): Buffer => {
    const { method = 'POST', path = `/elastic/api/v1.1/instances/${instance}/access-request`, headers = [] } = request
    const body = request.body ?? BODY
    const authorization = request.token === null ? [] : [`Authorization: Bearer ${request.token ?? token}`]
    const type = headers.some((line) => line.startsWith('Content-Type')) ? [] : ['Content-Type: application/json']
    const lines = [`${method} /dynamicmonetization${path} HTTP/1.1`, 'Host: x', ...authorization, ...type, ...headers]
    return Buffer.from(`${lines.join('\r\n')}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`)
  }
  return { twin, instance, bytesOf }
}

function open({ cloud }: Twin): Socket {
  const { hostname, port } = new URL(cloud.address)
  const socket = connect(Number(port), hostname)
  onTestFinished(() => void socket.destroy())
  return socket
}

interface Received {
  readonly isFast: boolean
  readonly status: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: unknown
}

/** Reads one response. */
async function receive(socket: Socket): Promise<Received> {
  let text = ''
  for (;;) {
    text += String((await once(socket, 'data'))[0])
    const [head = '', body] = text.split('\r\n\r\n')
    const [status = '', ...lines] = head.split('\r\n')
    const headers = Object.fromEntries(
      lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 2)]),
    )
    if (body === undefined || Buffer.byteLength(body) < Number(headers['content-length'])) continue
    const isFast = head.includes('\r\nContent-Type')
    return { isFast, status, headers, body: JSON.parse(body) as unknown }
  }
}

/** What differs between two responses to the same request. */
function comparable({ status, headers, body }: Received): unknown {
  const unique = { correlationId: undefined, transactionId: undefined }
  return { status, headers: { ...headers, date: undefined }, body: { ...(body as object), ...unique } }
}

async function whole(twin: Twin, bytes: Buffer): Promise<Received> {
  const socket = open(twin)
  socket.write(bytes)
  return receive(socket)
}

async function inPieces(twin: Twin, bytes: Buffer): Promise<Received> {
  const socket = open(twin)
  socket.write(bytes.subarray(0, 20))
  // The connection has moved when its server has answered another one.
  await twin.call('GET', '/provisioning/api/v1.1/instances')
  socket.write(bytes.subarray(20))
  return receive(socket)
}

const OTHER = '0d2ff9a5-7b4f-4d39-9d3c-6a8a0a2f0a11'

describe('an access request in one piece gets the same response as one in two pieces', () => {
  it.each<[string, boolean, (shop: Awaited<ReturnType<typeof openShop>>) => Request | Promise<Request>]>([
    ['granted', true, () => ({})],
    ['of version 1.0', true, ({ instance }) => ({ path: `/elastic/api/v1.0/instances/${instance}/access-request` })],
    [
      'with the instance in capitals',
      true,
      ({ instance }) => ({
        path: `/elastic/api/v1.1/instances/${instance.toUpperCase()}/access-request`,
      }),
    ],
    ['of a client', true, async ({ twin, instance }) => ({ token: await twin.clientToken(instance) })],
    ['of a client of another instance', true, async ({ twin }) => ({ token: await twin.clientToken(OTHER) })],
    ['for an unknown instance', true, () => ({ path: `/elastic/api/v1.1/instances/${OTHER}/access-request` })],
    ['for an instance that is no UUID', true, () => ({ path: '/elastic/api/v1.1/instances/x/access-request' })],
    ['that names its instance twice', true, ({ instance }) => ({ headers: [`X-Instance-Id: ${instance}`] })],
    ['that names two instances', true, () => ({ headers: [`X-Instance-Id: ${OTHER}`] })],
    ['that names a cell', true, () => ({ headers: ['X-Cell: north'] })],
    ['without a token', true, () => ({ token: null })],
    ['with a wrong token', true, () => ({ token: 'not.a.token' })],
    ['without a token and with a broken body', true, () => ({ token: null, body: '{' })],
    ['with a broken body', true, () => ({ body: '{' })],
    ['with a body of another kind', true, () => ({ body: '[1]' })],
    ['with bytes that are no UTF-8', true, () => ({ body: '{"requester":"\u00ff"}' })],
    ['with an unusable key', true, () => ({ headers: [`Idempotency-Key: ${'k'.repeat(300)}`] })],
    ['with a body that is too large', false, () => ({ body: JSON.stringify('x'.repeat(2_000_000)) })],
    ['with another type', false, () => ({ headers: ['Content-Type: text/plain'] })],
    ['with a query', false, ({ instance }) => ({ path: `/elastic/api/v1.1/instances/${instance}/access-request?a=b` })],
    [
      'with a slash at its end',
      false,
      ({ instance }) => ({ path: `/elastic/api/v1.1/instances/${instance}/access-request/` }),
    ],
    ['with another method', false, () => ({ method: 'PUT' })],
    ['as the last one of its connection', false, () => ({ headers: ['Connection: close'] })],
  ])('%s', async (_, isFast, requestOf) => {
    const { twin, ...others } = await openShop()
    await using _twin = twin
    const bytes = others.bytesOf(await requestOf({ twin, ...others }))
    const one = await whole(twin, bytes)
    const two = await inPieces(twin, bytes)
    expect(comparable(one)).toEqual(comparable(two))
    expect([one.isFast, two.isFast]).toEqual([isFast, false])
  })

  it('in a session', async () => {
    const { twin, instance, bytesOf } = await openShop()
    await using _twin = twin
    const opened = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId: instance } })
    const path = `/api/v1.1/sessions/${String(pick(opened.body, 'sessionId'))}`
    const bytes = bytesOf({ method: 'PUT', path, body: IN_SESSION })
    const [one, two] = [await whole(twin, bytes), await inPieces(twin, bytes)]
    expect([one.isFast, two.isFast, one.status]).toEqual([true, false, 'HTTP/1.1 200 OK'])
    expect(comparable(one)).toEqual(comparable(two))
  })
})

it('the same request under the same key gets the same response on both ways, and is charged once', async () => {
  const { twin, instance, bytesOf } = await openShop()
  await using _twin = twin
  const bytes = bytesOf({ headers: ['Idempotency-Key: k'] })
  const first = await whole(twin, bytes)
  expect((await inPieces(twin, bytes)).body).toEqual(first.body)
  expect((await whole(twin, bytes)).body).toEqual(first.body)
  expect(await twin.used(instance, 'ACT-1')).toBe(1)
})

it('requests on one connection are answered in order, plain or not', async () => {
  const { twin, bytesOf } = await openShop()
  await using _twin = twin
  const socket = open(twin)
  const fast: boolean[] = []
  for (const headers of [[], [], ['Accept: a', 'Accept: b'], []]) {
    socket.write(bytesOf({ headers }))
    const { isFast, status } = await receive(socket)
    expect(status).toBe('HTTP/1.1 200 OK')
    fast.push(isFast)
  }
  expect(fast).toEqual([true, true, false, false])
})

it('each response frees the place of its request', async () => {
  const { twin, bytesOf } = await openShop((settings) => ({
    ...settings,
    http: { ...settings.http, requestsPerKeyMax: 1 },
  }))
  await using _twin = twin
  for (const body of [BODY, '{', BODY]) {
    const { status } = await whole(twin, bytesOf({ body }))
    expect(status).toBe(body === BODY ? 'HTTP/1.1 200 OK' : 'HTTP/1.1 400 Bad Request')
  }
})

it('a second request of a caller with one place is refused while the first one is decided', async () => {
  const { twin, bytesOf } = await openShop((settings) => ({
    ...settings,
    http: { ...settings.http, requestsPerKeyMax: 1 },
  }))
  await using _twin = twin
  const statuses = await Promise.all(Array.from({ length: 20 }, async () => (await whole(twin, bytesOf())).status))
  expect(new Set(statuses)).toEqual(new Set(['HTTP/1.1 200 OK', 'HTTP/1.1 429 Too Many Requests']))
})

it('responses are counted as those of other requests', async () => {
  const { twin, bytesOf } = await openShop()
  await using _twin = twin
  await whole(twin, bytesOf())
  await whole(twin, bytesOf({ body: '{' }))
  await inPieces(twin, bytesOf())
  const metrics = await (await fetch(twin.cloud.metricsAddress)).text()
  const counts = [...metrics.matchAll(/^\w*http_requests_total\{(.*access-request.*)\} (\d+)$/gm)]
  expect(counts.map(([, labels, count]) => [/status="(\d+)"/.exec(labels ?? '')?.[1], count])).toEqual([
    ['200', '2'],
    ['400', '1'],
  ])
})

it('the headers of an answer are sent', async () => {
  const { http, plain } = bareServer()
  onTestFinished(() => http.close())
  const answer = async () => ({ status: 201, headers: { location: '/made' }, body: {} })
  plain.add({ method: 'POST', url: '/made', answers: new Map(), answer })
  await http.listen({ host: '127.0.0.1', port: 0 })
  const socket = connect(Number(new URL(http.listeningOrigin).port), '127.0.0.1')
  onTestFinished(() => void socket.destroy())
  socket.write('POST /made HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}')
  expect(await receive(socket)).toMatchObject({ isFast: true, headers: { location: '/made' } })
})

it('idle connections end when the cloud stops', async () => {
  const { twin, bytesOf } = await openShop()
  await using _twin = twin
  const [silent, used] = [open(twin), open(twin)]
  used.write(bytesOf())
  await receive(used)
  const closed = Promise.all([silent, used].map((socket) => once(socket.resume(), 'close')))
  await twin.stop()
  await closed
})

it('a request over TLS takes the fast path', async () => {
  await using authority = await Authority.make()
  const { certificate, key } = await authority.certify(Date.now() + DAY)
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-tls-'))
  onTestFinished(() => rm(folder, { recursive: true }))
  const tls = { certificateFile: join(folder, 'certificate.pem'), keyFile: join(folder, 'key.pem') }
  await writeFile(tls.certificateFile, certificate)
  await writeFile(tls.keyFile, key)
  await using twin = await openTwin((settings) => ({ ...settings, tls }))
  const socket = connectTls({
    port: Number(new URL(twin.cloud.address).port),
    host: '127.0.0.1',
    ca: authority.certificate,
  })
  onTestFinished(() => void socket.destroy())
  const path = `/dynamicmonetization/elastic/api/v1.1/instances/${OTHER}/access-request`
  const authorization = `Bearer ${await twin.administrationToken()}`
  for (const [more, isFast] of [
    ['', true],
    ['Accept: a\r\nAccept: b\r\n', false],
    ['', false],
  ] as const) {
    socket.write(
      `POST ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\nContent-Type: application/json\r\n${more}` +
        `Content-Length: ${BODY.length}\r\n\r\n${BODY}`,
    )
    const received = await receive(socket)
    expect([received.isFast, received.status]).toEqual([isFast, 'HTTP/1.1 404 Not Found'])
  }
})
