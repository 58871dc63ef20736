import { once } from 'node:events'
import { createServer } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { type AddressInfo, type Socket, connect } from 'node:net'
import { join } from 'node:path'
import { connect as connectTls } from 'node:tls'
import { describe, expect, it, onTestFinished } from 'vitest'
import { FastPath, type FastPathOptions, plainHead } from '../../src/platform/fast-path.ts'
import { limitReading } from '../../src/platform/limit-reading.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { Authority } from '../support/certificates.ts'

const OPTIONS: FastPathOptions<string> = {
  targetOf: (method, url) => (method === 'POST' && url.startsWith('/access') ? url : undefined),
  uniqueHeaders: ['idempotency-key'],
  bodyBytesMax: 1_000,
  firstRequestMs: 60_000,
  accept: () => true,
  isEnding: () => false,
  serve: ({ target }, body, _socket, answer) =>
    answer({ status: 200, headers: ['X-Target', target], body: String(body) }),
}

const LINES = ['POST /access HTTP/1.1', 'Host: x', 'Content-Type: application/json', 'Content-Length: 12']
const headWith = (...more: string[]): string => [...LINES, ...more].join('\r\n')

const BODY = '{"count": 1}'
const REQUEST = `${headWith()}\r\n\r\n${BODY}`

async function serve(change: Partial<FastPathOptions<string>> = {}, keepAliveMs = 60_000): Promise<string> {
  const path = join(temporaryDirectory(), 'fast-path.sock')
  const server = createServer({ keepAliveTimeout: keepAliveMs, keepAliveTimeoutBuffer: 0 }, (_request, response) =>
    response.end('by Node'),
  )
  server.on('connection', (socket: Socket) => limitReading(socket, () => undefined))
  const fastPath = new FastPath(server, { ...OPTIONS, ...change })
  await once(server.listen(path), 'listening')
  onTestFinished(() => {
    fastPath.closeAll()
    server.closeAllConnections()
    server.close()
  })
  return path
}

function open(path: string): Socket {
  const socket = connect(path)
  socket.on('error', () => undefined)
  onTestFinished(() => void socket.destroy())
  return socket
}

/** Whether Node's server has it. */
const isAtServer = (socket: Socket | undefined): boolean => (socket?.listenerCount('drain') ?? 0) > 0

const nextOf = async (socket: Socket): Promise<string> => String((await once(socket, 'data'))[0])

describe('a connection', () => {
  it('that is silent for too long before its first request is closed', async () => {
    const socket = open(await serve({ firstRequestMs: 20 }))
    socket.resume()
    await once(socket, 'close')
  })

  it('that is silent for too long after a request is closed', async () => {
    const socket = open(await serve({}, 20))
    socket.write(REQUEST)
    expect(await nextOf(socket)).toContain(BODY)
    socket.resume()
    await once(socket, 'close')
  })

  it('that waits for its answer is not silent', async () => {
    const gate = Promise.withResolvers<undefined>()
    const path = await serve({
      firstRequestMs: 20,
      serve: (_head, _body, _socket, answer) => {
        void gate.promise.then(() => answer({ status: 200, headers: [], body: '{"late":true}' }))
      },
    })
    const silent = open(path)
    const waiting = open(path)
    waiting.write(REQUEST)
    silent.resume()
    await once(silent, 'close')
    gate.resolve(undefined)
    expect(await nextOf(waiting)).toContain('{"late":true}')
  })

  it('that is not accepted is closed', async () => {
    const socket = open(await serve({ accept: () => false }))
    socket.resume()
    await once(socket, 'close')
  })

  it('ends after the response that announces its end', async () => {
    const socket = open(await serve({ isEnding: () => true }))
    socket.write(REQUEST)
    expect(await nextOf(socket)).toContain('Connection: close\r\n')
    await once(socket, 'close')
  })

  it('moves to the server with the first request that is not plain', async () => {
    const socket = open(await serve())
    for (const [line, answered] of [
      ['Accept: */*', BODY],
      ['Expect: 100-continue', 'by Node'],
      ['Accept: */*', 'by Node'],
    ] as const) {
      socket.write(`${headWith(line)}\r\n\r\n${BODY}`)
      let received = ''
      while (!received.includes(answered)) received += await nextOf(socket)
    }
  })

  it('whose client does not read its responses moves to the server, which reads no more of it', async () => {
    let served = 0
    const body = 'x'.repeat(64 * 1024)
    const sockets: Socket[] = []
    const path = await serve({
      serve: (_head, _body, socket, answer) => {
        served += 1
        if (!sockets.includes(socket)) sockets.push(socket)
        answer({ status: 200, headers: [], body })
      },
    })
    const silent = open(path)
    silent.pause()
    // Each request arrives alone: the next one is sent when this one was served.
    for (let sent = 1; served === sent - 1 && sent < 1_000; sent += 1) {
      silent.write(REQUEST)
      await expect.poll(() => served === sent || sockets[0]?.listenerCount('drain') !== 0, { interval: 1 }).toBe(true)
      if (sockets[0]?.listenerCount('drain') !== 0) break
    }
    expect(served).toBeLessThan(100)
  })

  it('whose client reads late gets every response', async () => {
    const sockets = new Set<Socket>()
    const path = await serve({
      serve: (_head, _body, socket, answer) => {
        sockets.add(socket)
        // More than the kernel takes.
        answer({ status: 200, headers: [], body: 'x'.repeat(1024 * 1024) })
      },
    })
    const late = open(path)
    late.write(REQUEST)
    await expect.poll(() => sockets.size).toBe(1)
    const [socket] = sockets
    late.write(REQUEST)
    await expect.poll(() => isAtServer(socket)).toBe(true)
    late.write(REQUEST)
    let received = ''
    while (received.split('by Node').length < 3) received += await nextOf(late)
  })

  it('that is destroyed while its next request waits does not move to the server', async () => {
    const gate = Promise.withResolvers<undefined>()
    const sockets = new Set<Socket>()
    const path = await serve({
      serve: (_head, _body, socket, answer) => {
        sockets.add(socket)
        void gate.promise.then(() => answer({ status: 200, headers: [], body: '{}' }))
      },
    })
    const client = open(path)
    client.write(REQUEST)
    await expect.poll(() => sockets.size).toBe(1)
    const [socket] = sockets
    client.write(REQUEST)
    await expect.poll(() => socket?.isPaused()).toBe(true)
    socket?.destroy()
    gate.resolve(undefined)
    await gate.promise
    expect(isAtServer(socket)).toBe(false)
  })

  it('over TLS keeps the order of what its client sends ahead', async () => {
    await using authority = await Authority.make()
    const { certificate: cert, key } = await authority.certify(Date.now() + 86_400_000)
    const server = createTlsServer({ cert, key }, (_request, response) => response.end('by Node'))
    const gate = Promise.withResolvers<undefined>()
    const sockets = new Set<Socket>()
    const fastPath = new FastPath(server, {
      ...OPTIONS,
      serve: (_head, _body, socket, answer) => {
        sockets.add(socket)
        void gate.promise.then(() => answer({ status: 200, headers: [], body: BODY }))
      },
    })
    await once(server.listen(0, '127.0.0.1'), 'listening')
    onTestFinished(() => {
      fastPath.closeAll()
      server.closeAllConnections()
      server.close()
    })
    const client = connectTls({
      port: (server.address() as AddressInfo).port,
      host: '127.0.0.1',
      ca: authority.certificate,
    })
    onTestFinished(() => void client.destroy())
    client.write(REQUEST)
    await expect.poll(() => sockets.size).toBe(1)
    // Two records, because one has at most 16 KiB.
    const long = 'x'.repeat(30_000)
    client.write(`${headWith('Accept: */*').replace('12', String(long.length))}\r\n\r\n${long}`)
    const [socket] = sockets
    await expect.poll(() => socket?.isPaused()).toBe(true)
    gate.resolve(undefined)
    let received = ''
    while (!received.includes('by Node')) received += await nextOf(client)
    expect(received).toMatch(/^HTTP\/1\.1 200 OK\r\n[^]*HTTP\/1\.1 200 OK\r\n/)
  })
})

describe('the head of a plain request', () => {
  it('is understood', () => {
    const head = plainHead(headWith('Accept: */*', 'X-Name:app 1 ', 'connection: Keep-Alive'), OPTIONS)
    expect(head).toMatchObject({ target: '/access', bodyBytes: 12 })
    expect({ ...head?.headers }).toEqual({
      host: 'x',
      'content-type': 'application/json',
      'content-length': '12',
      accept: '*/*',
      'x-name': 'app 1',
      connection: 'Keep-Alive',
    })
  })

  it.each(['Application/JSON', 'application/json;charset=utf-8', 'application/json; charset=UTF-8'])(
    'may name the type %s',
    (type) => {
      expect(plainHead(headWith().replace('application/json', type), OPTIONS)?.target).toBe('/access')
    },
  )

  it('is read in a time proportional to its length', () => {
    expect(plainHead(headWith(`X-A:${' '.repeat(100_000)}\u0001`), OPTIONS)).toBeUndefined()
  }, 5_000)

  it('may have a header that is named like what every object has', () => {
    expect(plainHead(headWith('__proto__: x', 'constructor: y'), OPTIONS)?.headers).toMatchObject({ constructor: 'y' })
  })

  it.each([
    ['another method', headWith().replace('POST', 'PUT')],
    ['another version of HTTP', headWith().replace('HTTP/1.1', 'HTTP/1.0')],
    ['another address', headWith().replace('/access', '/livez')],
    ['a whole URL', headWith().replace('/access', `http://x/access`)],
    ['two spaces', headWith().replace('POST ', 'POST  ')],
    ['no host', headWith().replace('Host: x\r\n', '')],
    ['an invalid host', headWith().replace('Host: x', 'Host: x/y')],
    ['no type', headWith().replace('Content-Type: application/json\r\n', '')],
    ['another type', headWith().replace('application/json', 'text/plain')],
    ['another charset', headWith().replace('application/json', 'application/json; charset=latin1')],
    ['a compressed body', headWith('Content-Encoding: gzip')],
    ['no length', headWith().replace('\r\nContent-Length: 12', '')],
    ['no body', headWith().replace('12', '0')],
    ['a negative length', headWith().replace('12', '-1')],
    ['a length with a plus', headWith().replace('12', '+1')],
    ['a length beyond the limit', headWith().replace('12', '1001')],
    ['a length beyond all limits', headWith().replace('12', '9'.repeat(10))],
    ['two lengths', headWith('content-length: 12')],
    ['a header that comes twice', headWith('Accept: a', 'accept: b')],
    ['chunks', headWith('Transfer-Encoding: chunked')],
    ['an expectation', headWith('Expect: 100-continue')],
    ['an upgrade', headWith('Upgrade: h2c')],
    ['an end of the connection', headWith('Connection: close')],
    ['a connection with options', headWith('Connection: keep-alive, te')],
    ['a folded header', headWith('X-A: b', ' c')],
    ['a space before the colon', headWith('X-A : b')],
    ['a header without a name', headWith(': b')],
    ['a header without a colon', headWith('X-A')],
    ['a control character', headWith('X-A: a\u0001b')],
    ['a bare line feed', headWith('X-A: a\nTransfer-Encoding: chunked')],
    ['a bare carriage return', headWith('X-A: a\rb')],
    ['bytes beyond ASCII', headWith('X-A: \u00e9')],
    ['an empty line before it', `\r\n${headWith()}`],
  ])('with %s is left to the general parser', (_what, text) => {
    expect(plainHead(text, OPTIONS)).toBeUndefined()
  })
})
