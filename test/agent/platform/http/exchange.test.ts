import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { createServer, type RequestListener } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { type AddressInfo, createServer as createTcpServer, type Server as TcpServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { gunzipSync } from 'node:zlib'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import {
  createExchange,
  EXCHANGE_DEFAULTS,
  type ExchangeOptions,
  type HttpRequest,
} from '../../../../src/agent/platform/http/exchange.ts'
import type { CodedError } from '../../../../src/protocol/errors.ts'
import { Authority } from '../../../support/certificates.ts'

const DAY_MS = 24 * 60 * 60_000

const open: (() => Promise<void> | void)[] = []
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close()
})

async function listen(server: TcpServer): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  open.push(() => new Promise<void>((resolve) => void server.close(() => resolve())))
  return (server.address() as AddressInfo).port
}

async function serve(listener: RequestListener): Promise<string> {
  const server = createServer(listener)
  const port = await listen(server)
  open.push(() => server.closeAllConnections())
  return `http://127.0.0.1:${port}`
}

function exchangeWith(options: Partial<ExchangeOptions> = {}) {
  const { exchange, close } = createExchange({ ...EXCHANGE_DEFAULTS, ...options })
  open.push(close)
  return exchange
}

const get = (url: string, signal = new AbortController().signal): HttpRequest => ({
  method: 'GET',
  url,
  headers: {},
  body: null,
  compress: false,
  signal,
})

async function failure(answer: Promise<unknown>): Promise<{ code: unknown; network: unknown }> {
  const error = await answer.then(
    () => {
      throw new Error('an answer came')
    },
    (reason: unknown) => reason as CodedError,
  )
  return { code: error.code, network: error.details['network'] }
}

test('a request arrives whole, and so does its answer', async () => {
  const url = await serve((request, response) => {
    let body = ''
    request.setEncoding('utf8').on('data', (chunk: string) => (body += chunk))
    request.on('end', () => {
      response.writeHead(201, { 'x-seen': request.headers['x-sent'], 'set-cookie': ['a', 'b'] })
      response.end(`${request.method ?? ''} ${request.url ?? ''} ${body}`)
    })
  })
  const answer = await exchangeWith()({
    ...get(`${url}/a/b?c=d`),
    method: 'POST',
    headers: { 'x-sent': 'yes' },
    body: 'größe ✓',
  })
  expect(answer).toMatchObject({ status: 201, body: 'POST /a/b?c=d größe ✓' })
  expect(answer.headers).toMatchObject({ 'x-seen': 'yes', 'set-cookie': 'a' })
})

test('a long body is compressed if the other side accepts that, and arrives unchanged', async () => {
  const url = await serve((request, response) => {
    const { 'content-encoding': encoding = 'none' } = request.headers
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      const sent = Buffer.concat(chunks)
      response.end(`${encoding} ${(encoding === 'gzip' ? gunzipSync(sent) : sent).toString()}`)
    })
  })
  const post = async (body: string, compress: boolean): Promise<boolean[]> => {
    const answer = await exchangeWith()({ ...get(url), method: 'POST', body, compress })
    return [answer.body.startsWith('gzip '), answer.body.endsWith(` ${body}`)]
  }
  const long = 'größe ✓ '.repeat(1_000)
  expect(await post(long, true)).toEqual([true, true])
  expect(await post(long, false)).toEqual([false, true])
  expect(await post('short', true)).toEqual([false, true])
})

test('requests reuse a connection', async () => {
  const sockets = new Set<Socket>()
  const url = await serve((request, response) => {
    sockets.add(request.socket)
    response.end()
  })
  const exchange = exchangeWith()
  for (let i = 0; i < 3; i += 1) await exchange(get(url))
  expect(sockets.size).toBe(1)
})

test('redirects are not followed', async () => {
  const url = await serve((_request, response) => response.writeHead(302, { location: 'http://127.0.0.1:1/' }).end())
  expect((await exchangeWith()(get(url))).status).toBe(302)
})

test('an answer above the limit is refused without being read to its end', async () => {
  const url = await serve((_request, response) => {
    const more = (): void => {
      if (response.write('x'.repeat(10_000))) setImmediate(more)
      else response.once('drain', more)
    }
    more()
  })
  expect(await failure(exchangeWith({ answerBytesMax: 50_000 })(get(url)))).toMatchObject({ code: 'ANSWER_UNEXPECTED' })
})

test('a server that falls silent is given up, before the answer and in the middle of it', async () => {
  const url = await serve((request, response) => {
    if (request.url === '/half') response.writeHead(200, { 'content-length': 10 }).write('half')
  })
  for (const path of ['/nothing', '/half']) {
    expect(await failure(exchangeWith({ silenceMs: 50 })(get(url + path)))).toEqual({
      code: 'CLOUD_UNREACHABLE',
      network: 'ETIMEDOUT',
    })
  }
})

test('an answer that drips for ever is given up', async () => {
  const url = await serve((request, response) => {
    const drip = setInterval(() => response.write('.'), 10)
    request.socket.once('close', () => clearInterval(drip))
  })
  expect(await failure(exchangeWith({ silenceMs: 5_000, durationMs: 100 })(get(url)))).toEqual({
    code: 'CLOUD_UNREACHABLE',
    network: 'ETIMEDOUT',
  })
})

describe('over a slow line', () => {
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
    return () => vi.useRealTimers()
  })
  const post = (url: string, body: string): HttpRequest => ({ ...get(url), method: 'POST', body })

  test('a long request has as much more time as a slow line takes for it', async () => {
    const url = await serve((request, response) => {
      request.resume().on('end', () => {
        vi.advanceTimersByTime(request.url === '/late' ? 160_001 : 159_000)
        response.end('x')
      })
    })
    const exchange = exchangeWith()
    const body = 'x'.repeat(100 * 1_024)
    expect((await exchange(post(url, body))).body).toBe('x')
    expect(await failure(exchange(post(`${url}/late`, body)))).toMatchObject({ network: 'ETIMEDOUT' })
  })

  test('a long answer has more time, too', async () => {
    const url = await serve((_request, response) => {
      response.write('x'.repeat(12 * 1024 * 1024))
      // Most of it has been read: no socket buffers as much.
      response.once('drain', () => {
        vi.advanceTimersByTime(500_000)
        response.end()
      })
    })
    expect((await exchangeWith()(get(url))).body).toHaveLength(12 * 1024 * 1024)
  })

  test('no exchange takes longer than the longest one', async () => {
    const url = await serve((request, response) => {
      request.resume().on('end', () => {
        vi.advanceTimersByTime(EXCHANGE_DEFAULTS.wholeMs)
        response.end()
      })
    })
    const endless = post(url, 'x'.repeat(8 * 1024 * 1024))
    expect(await failure(exchangeWith()(endless))).toMatchObject({ network: 'ETIMEDOUT' })
  })
})

test('distinguishes a missing server, a broken connection and a cut response by their errno', async () => {
  const gone = createTcpServer()
  const port = await new Promise<number>((resolve) => {
    gone.listen(0, '127.0.0.1', () => resolve((gone.address() as AddressInfo).port))
  })
  await new Promise((resolve) => gone.close(resolve))
  expect(await failure(exchangeWith()(get(`http://127.0.0.1:${port}`)))).toEqual({
    code: 'CLOUD_UNREACHABLE',
    network: 'ECONNREFUSED',
  })
  await expect(exchangeWith()(get(`http://127.0.0.1:${port}`))).rejects.toThrow(
    `The cloud at 127.0.0.1:${port} cannot be reached: no process is listening there (ECONNREFUSED).`,
  )
  const breaking = createTcpServer((socket) => void socket.once('data', () => socket.resetAndDestroy()))
  expect(await failure(exchangeWith()(get(`http://127.0.0.1:${await listen(breaking)}`)))).toEqual({
    code: 'CLOUD_UNREACHABLE',
    network: 'ECONNRESET',
  })
  const cutting = createTcpServer((socket) => {
    socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf'))
  })
  expect(await failure(exchangeWith()(get(`http://127.0.0.1:${await listen(cutting)}`)))).toEqual({
    code: 'CLOUD_UNREACHABLE',
    network: 'ECONNRESET',
  })
})

test('a response that is not HTTP counts as an unreachable cloud', async () => {
  const server = createTcpServer((socket) => void socket.once('data', () => socket.end('SSH-2.0-OpenSSH_9.9\r\n')))
  expect(await failure(exchangeWith()(get(`http://127.0.0.1:${await listen(server)}`)))).toMatchObject({
    code: 'CLOUD_UNREACHABLE',
  })
})

test('a response that switches protocols counts as an unreachable cloud', async () => {
  const server = createTcpServer((socket) => {
    const switched = 'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n'
    socket.once('data', () => socket.write(switched))
  })
  expect(await failure(exchangeWith()(get(`http://127.0.0.1:${await listen(server)}`)))).toEqual({
    code: 'CLOUD_UNREACHABLE',
    network: 'HPE_PAUSED_UPGRADE',
  })
})

test('a signal ends the request', async () => {
  const url = await serve(() => undefined)
  const controller = new AbortController()
  const answer = failure(exchangeWith()(get(url, controller.signal)))
  controller.abort()
  expect(await answer).toEqual({ code: 'CLOUD_UNREACHABLE', network: 'ABORTED' })
})

test('a certificate counts only if its issuer does', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-tls-'))
  open.push(() => rm(folder, { recursive: true, force: true }))
  const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')]
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1']
  const kind = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2']
  await promisify(execFile)('openssl', [...kind, ...subject, '-keyout', key, '-out', cert])
  const pem = await readFile(cert, 'utf8')
  const server = createTlsServer({ key: await readFile(key), cert: pem }, (_request, response) => response.end('hello'))
  const url = `https://127.0.0.1:${await listen(server)}`
  open.push(() => server.closeAllConnections())
  expect(await failure(exchangeWith()(get(url)))).toEqual({
    code: 'CLOUD_UNREACHABLE',
    network: 'DEPTH_ZERO_SELF_SIGNED_CERT',
  })
  expect((await exchangeWith({ extraCa: pem })(get(url))).body).toBe('hello')
})

test('a cloud without TLS on this port is named, with the settings to check', async () => {
  const address = await serve((_request, response) => void response.end())
  await expect(exchangeWith()(get(address.replace('http:', 'https:')))).rejects.toMatchObject({
    code: 'CLOUD_UNREACHABLE',
    message: `The cloud at ${new URL(address).host} cannot be reached: it does not use TLS on this port. Check the certificate of the cloud, tls.ca_file and the clock of this device.`,
  })
})

test.each([
  ['has expired', -DAY_MS],
  ['is not valid yet', 10 * DAY_MS],
])('a certificate that %s names the date of the device, which may be wrong', async (reason, untilMs) => {
  await using authority = await Authority.make()
  const { certificate, key } = await authority.certify(Date.now() + untilMs)
  const server = createTlsServer({ key, cert: certificate }, (_request, response) => response.end())
  const url = `https://127.0.0.1:${await listen(server)}`
  await expect(exchangeWith({ extraCa: authority.certificate })(get(url))).rejects.toThrow(
    new RegExp(`its certificate ${reason}\\. Check the clock of this device, which says \\d{4}-\\d{2}-\\d{2}, and the`),
  )
})
