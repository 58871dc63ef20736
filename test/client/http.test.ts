import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { createServer, type RequestListener, type Server } from 'node:http'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest'
import { HttpClient } from '../../src/client/http.ts'

let directory: string
let servers: Server[]
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-client-'))
  servers = []
})
afterEach(async () => {
  for (const server of servers) {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  }
  rmSync(directory, { recursive: true })
})

async function serve(where: 'tcp' | 'unix', listener: RequestListener): Promise<string> {
  const server = createServer(listener)
  servers.push(server)
  const path = join(directory, 'service.sock')
  await new Promise<void>((resolve) =>
    where === 'unix' ? server.listen(path, resolve) : server.listen(0, '127.0.0.1', resolve),
  )
  return where === 'unix' ? `unix:${path}` : `http://127.0.0.1:${(server.address() as AddressInfo).port}/prefix/`
}

const echo: RequestListener = (request, response) => {
  let body = ''
  request.on('data', (chunk: Buffer) => (body += chunk.toString()))
  request.on('end', () => {
    const { method, url, headers } = request
    response.end(
      JSON.stringify({ method, url, authorization: headers.authorization, type: headers['content-type'], body }),
    )
  })
}

test.skipIf(process.getuid?.() !== 0)('a socket that the user may not open is no agent that is missing', async () => {
  const address = await serve('unix', echo)
  chmodSync(join(directory, 'service.sock'), 0o600)
  chmodSync(directory, 0o755)
  process.seteuid?.(65_534)
  try {
    using client = new HttpClient({ address, unreachable: 'AGENT_UNREACHABLE' })
    await expect(client.text({ method: 'GET', path: '/' })).rejects.toMatchObject({
      code: 'SOCKET_NOT_PERMITTED',
      message: expect.stringContaining('this user may not connect') as string,
    })
  } finally {
    process.seteuid?.(0)
  }
})

test('a response that takes longer than 3 s is reported while the call waits for it', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  onTestFinished(() => void vi.useRealTimers())
  const slow: string[] = []
  const waits = [2_999, 3_000]
  const address = await serve('tcp', (_request, response) => {
    vi.advanceTimersByTime(waits.shift() ?? 0)
    response.end(String(slow.length))
  })
  using client = new HttpClient({ address, unreachable: 'SERVICE_UNREACHABLE', onSlow: (from) => slow.push(from) })
  expect(await client.text({ method: 'GET', path: '/' })).toBe('0')
  expect(await client.text({ method: 'GET', path: '/' })).toBe('1')
  vi.advanceTimersByTime(60_000)
  expect(slow).toEqual([address])
})

test.each([
  ['tcp', '/prefix/a?b=c'],
  ['unix', '/a?b=c'],
] as const)('a call over %s carries method, path, headers and JSON', async (where, url) => {
  using client = new HttpClient({
    address: await serve(where, echo),
    headers: { authorization: 'Bearer t' },
    unreachable: 'AGENT_UNREACHABLE',
  })
  const text = await client.text({ method: 'POST', path: '/a?b=c', body: { n: 'ü' } })
  expect(JSON.parse(text)).toEqual({
    method: 'POST',
    url,
    authorization: 'Bearer t',
    type: 'application/json',
    body: '{"n":"ü"}',
  })
})

describe('a missing response has the caller’s code:', () => {
  test('without the password that its address may hold', async () => {
    using client = new HttpClient({ address: 'http://ann:secret@127.0.0.1:1/x', unreachable: 'CLOUD_UNREACHABLE' })
    await expect(client.text({ method: 'GET', path: '/' })).rejects.toMatchObject({
      message: 'http://127.0.0.1:1/x: no process is listening there.',
    })
  })

  test('a server without TLS', async () => {
    const plain = (await serve('tcp', echo)).replace('http:', 'https:')
    using secure = new HttpClient({ address: plain, unreachable: 'CLOUD_UNREACHABLE' })
    await expect(secure.call({ method: 'GET', path: '/' })).rejects.toMatchObject({
      message: expect.stringContaining('it does not use TLS on this port') as string,
    })
  })

  test.each([
    'SSH-2.0-OpenSSH_9.2\r\n',
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n',
  ])('a server that responds with %j', async (text) => {
    const other = createTcpServer((socket) => void socket.once('data', () => socket.end(text)))
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve))
    const { port } = other.address() as AddressInfo
    using client = new HttpClient({ address: `http://127.0.0.1:${port}`, unreachable: 'CLOUD_UNREACHABLE' })
    await expect(client.call({ method: 'GET', path: '/' })).rejects.toMatchObject({
      message: `http://127.0.0.1:${port}: the server does not speak HTTP there.`,
    })
    other.close()
  })

  test.each([
    ['no.sock', 'the socket does not exist'],
    [`${'x'.repeat(108)}.sock`, 'its path is too long for a socket'],
  ])('no such socket: %s', async (name, reason) => {
    using client = new HttpClient({ address: `unix:${directory}/${name}`, unreachable: 'AGENT_UNREACHABLE' })
    await expect(client.call({ method: 'GET', path: '/' })).rejects.toMatchObject({
      code: 'AGENT_UNREACHABLE',
      message: `unix:${directory}/${name}: ${reason}.`,
    })
  })

  test('a connection cut in the middle of the answer', async () => {
    const address = await serve('unix', (_request, response) => {
      response.writeHead(200, { 'content-length': 100 })
      response.write('half', () => response.destroy())
    })
    using client = new HttpClient({ address, unreachable: 'CLOUD_UNREACHABLE' })
    await expect(client.call({ method: 'GET', path: '/' })).rejects.toMatchObject({ code: 'CLOUD_UNREACHABLE' })
  })

  test('a socket that closes connections at once, because it has too many', async () => {
    const server = createTcpServer((socket) => socket.destroy()).listen(`${directory}/full.sock`)
    using client = new HttpClient({ address: `unix:${directory}/full.sock`, unreachable: 'AGENT_UNREACHABLE' })
    await expect(client.call({ method: 'GET', path: '/' })).rejects.toMatchObject({
      code: 'AGENT_UNREACHABLE',
      message: expect.stringContaining('socket.connections_max may be reached') as string,
    })
    server.close()
  })

  test('silence for longer than the limit', async () => {
    const address = await serve('tcp', () => undefined)
    using client = new HttpClient({ address, unreachable: 'CLOUD_UNREACHABLE', timeoutMs: 20 })
    await expect(client.call({ method: 'GET', path: '/' })).rejects.toMatchObject({
      code: 'CLOUD_UNREACHABLE',
      message: expect.stringContaining('no response within 0.02 s') as string,
    })
  })
})

test('a gateway without a response of the service is reported as such, and a redirect with its target', async () => {
  const address = await serve('tcp', (request, response) => {
    const status = Number(request.url?.split('/').at(-1))
    response
      .writeHead(status, status === 301 ? { location: 'https://ann:secret@portal.example/login?ticket=secret' } : {})
      .end('<html>')
  })
  using client = new HttpClient({ address, unreachable: 'SERVICE_UNREACHABLE' })
  for (const status of [502, 503, 504]) {
    await expect(client.text({ method: 'GET', path: `/${status}` })).rejects.toMatchObject({
      code: 'SERVICE_UNREACHABLE',
      message: `GET /${status} at ${address} failed with HTTP status ${status}: <html>`,
    })
  }
  await expect(client.text({ method: 'GET', path: '/301' })).rejects.toMatchObject({
    code: 'ANSWER_UNEXPECTED',
    message: `GET /301 at ${address} failed with HTTP status 301, a redirect to https://portal.example/login: <html>`,
  })
})

test('a refusal with a known code becomes that error, any other answer is unexpected', async () => {
  const address = await serve('tcp', (request, response) => {
    response.statusCode = request.url === '/prefix/coded' ? 404 : 500
    response.end(request.url === '/prefix/coded' ? '{"code":"NOT_FOUND","message":"No such thing."}' : '<html>')
  })
  using client = new HttpClient({ address, unreachable: 'CLOUD_UNREACHABLE' })
  await expect(client.text({ method: 'GET', path: '/coded' })).rejects.toMatchObject({
    code: 'NOT_FOUND',
    message: 'No such thing.',
  })
  await expect(client.text({ method: 'GET', path: '/other' })).rejects.toMatchObject({
    code: 'ANSWER_UNEXPECTED',
    message: `GET /other at ${address} failed with HTTP status 500: <html>`,
  })
})
