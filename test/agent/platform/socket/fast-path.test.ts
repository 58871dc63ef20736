// Both ways through the socket: a request that comes in one piece takes the fast path, the same bytes in two pieces take
// Node's server. Both give the same responses.
import { once } from 'node:events'
import { type Socket, connect } from 'node:net'
import { join } from 'node:path'
import fc from '../../../support/fast-check.ts'
import { describe, expect, it, onTestFinished } from 'vitest'
import { type SocketServer, openSocket } from '../../../../src/agent/platform/socket/server.ts'
import type { AccessAnswer, AccessCall } from '../../../../src/agent/access/access.ts'
import { CodedError } from '../../../../src/protocol/errors.ts'
import { temporaryDirectory } from '../../harness.ts'
import { ONLY_ACCESS } from './only-access.ts'
import { INSTANCE } from '../../sync/fake-cloud.ts'

const PATH = `/v1.0/instances/${INSTANCE}/access-request`

function post(body: string, ...headers: string[]): Buffer {
  const type = headers.some((header) => /^content-type:/i.test(header)) ? [] : ['Content-Type: application/json']
  const head = [`POST ${PATH} HTTP/1.1`, 'Host: x', ...type, `Content-Length: ${Buffer.byteLength(body)}`, ...headers]
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`)
}

/** Answers with what it was asked, after as many turns as the body says. */
class Echo {
  readonly calls: AccessCall[] = []
  readonly path = join(temporaryDirectory(), 'agent.sock')

  async open(answer?: (call: AccessCall) => Promise<AccessAnswer>): Promise<SocketServer> {
    const server = await openSocket({
      path: this.path,
      mode: 0o600,
      bodyBytesMax: 1_000,
      waitingMax: 100,
      connectionsMax: 100,
      requestTimeoutMs: 5_000,
      access: {
        request: (call) => {
          this.calls.push(call)
          return answer?.(call) ?? Promise.resolve(echoed(call))
        },
      },
      ...ONLY_ACCESS,
      onFault: () => undefined,
    })
    onTestFinished(() => server.stop(0))
    return server
  }

  connect(): Socket {
    const socket = connect(this.path)
    socket.on('error', () => undefined)
    onTestFinished(() => void socket.destroy())
    return socket
  }
}

function echoed({ body, idempotencyKey }: AccessCall): AccessAnswer {
  return {
    operable: true,
    status: 200,
    body: JSON.stringify({ body, idempotencyKey }),
    policyRevision: 3,
    warnings: ['CLOCK_UNDECIDED_ALLOWED'],
    durability: 'durable',
  }
}

/** Reads until this many answers with a body of their declared length have come, or the end. */
async function answers(socket: Socket, count: number): Promise<string[]> {
  let received = Buffer.alloc(0)
  const found: string[] = []
  for await (const bytes of socket as AsyncIterable<Buffer>) {
    received = Buffer.concat([received, bytes])
    for (;;) {
      const headEnd = received.indexOf('\r\n\r\n')
      const length = Number(/content-length: (\d+)/i.exec(received.toString('latin1', 0, headEnd))?.[1])
      if (headEnd < 0 || received.length < headEnd + 4 + length) break
      found.push(received.toString('utf8', 0, headEnd + 4 + length))
      received = received.subarray(headEnd + 4 + length)
    }
    if (found.length >= count) break
  }
  return found
}

const bodyOf = (answer: string): unknown => JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)) as unknown

describe('a request in one piece', () => {
  it('gets the same response, byte for byte, as in two pieces', async () => {
    const echo = new Echo()
    await echo.open(async (call) => {
      const { fail } = call.body as { fail?: boolean }
      if (fail === true) throw new CodedError('NOT_RECORDED', 'the disk is full \u00fc')
      return echoed(call)
    })
    const body = fc.oneof(
      fc
        .dictionary(fc.string({ unit: 'grapheme' }), fc.string({ unit: 'grapheme' }))
        .map((value) => JSON.stringify(value)),
      fc.constantFrom('{"fail":true}', '', '{', 'null', '[]', '"\ud83d\ude00"', '['.repeat(80) + ']'.repeat(80)),
      fc.constant(JSON.stringify('x'.repeat(1_500))),
    )
    const header = fc.constantFrom(
      'Accept: */*',
      'User-Agent: x',
      'X-Tallygate-Session: app',
      'X-Tallygate-Request: 12',
      'Content-Type: text/plain',
      'Content-Type: application/json; charset=utf-8',
      'Content-Encoding: gzip',
      'Connection: keep-alive',
    )
    const request = fc.record({
      body,
      headers: fc.uniqueArray(header, { maxLength: 4, selector: (text) => text.split(':')[0] }),
    })
    await fc.assert(
      fc.asyncProperty(request, fc.nat(), async ({ body, headers }, seed) => {
        const bytes = post(body, ...headers)
        const whole = echo.connect()
        whole.write(bytes)
        const [one] = await answers(whole, 1)
        const pieces = echo.connect()
        const cut = 1 + (seed % (bytes.length - 1))
        pieces.write(bytes.subarray(0, cut), () => pieces.write(bytes.subarray(cut)))
        const [other] = await answers(pieces, 1)
        expect(one).toBe(other)
        whole.destroy()
        pieces.destroy()
      }),
      { numRuns: 60 },
    )
  })

  it('is charged only with a response, whatever it offers and however the bytes of its connection are split', async () => {
    const echo = new Echo()
    await echo.open()
    const header = fc.constantFrom(
      ...['Accept: a', 'Connection: close', 'Connection: upgrade', 'Upgrade: h2c', 'Expect: 100-continue'],
      ...['Host: y', 'Content-Encoding: gzip', 'Content-Length: 9', 'Transfer-Encoding: chunked', 'X-Folded: a\r\n b'],
    )
    const request = fc
      .record({ n: fc.nat(), headers: fc.array(header, { maxLength: 2 }) })
      .map(({ n, headers }) => post(JSON.stringify({ n }), ...headers))
    const requests = fc.array(request, { minLength: 1, maxLength: 4 })
    await fc.assert(
      fc.asyncProperty(requests, fc.array(fc.double({ min: 0, max: 1, noNaN: true })), async (all, places) => {
        const bytes = Buffer.concat(all)
        const cuts = places.map((place) => Math.floor(place * bytes.length)).toSorted((a, b) => a - b)
        echo.calls.length = 0
        const socket = echo.connect()
        // Also what the agent does not read any more: it may have closed the connection.
        for (const [index, from] of [0, ...cuts].entries()) socket.write(bytes.subarray(from, cuts[index]))
        const received: Buffer[] = []
        socket.on('data', (chunk: Buffer) => received.push(chunk)).end()
        await once(socket, 'close')
        if (socket.errored === null) {
          expect(String(Buffer.concat(received)).match(/HTTP\/1\.1 200 /g) ?? []).toHaveLength(echo.calls.length)
        }
      }),
      { numRuns: 300 },
    )
  })

  it('is followed by any number of others on its connection, plain or not', async () => {
    const echo = new Echo()
    await echo.open()
    const socket = echo.connect()
    const chunked = Buffer.from(
      `POST ${PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n` +
        '7\r\n{"n":3}\r\n0\r\n\r\n',
    )
    const received: unknown[] = []
    for (const bytes of [post('{"n":1}'), post('{"n":2}', 'Accept: a', 'Accept: b'), chunked, post('{"n":4}')]) {
      socket.write(bytes)
      socket.resume()
      received.push(JSON.parse(await nextBody(socket)))
    }
    expect(received).toMatchObject([{ body: { n: 1 } }, { body: { n: 2 } }, { body: { n: 3 } }, { body: { n: 4 } }])
  })

  it('with others right behind it is answered first, and they in their order', async () => {
    const echo = new Echo()
    const gate = Promise.withResolvers<undefined>()
    await echo.open(async (call) => {
      await gate.promise
      return echoed(call)
    })
    const socket = echo.connect()
    socket.write(post('{"n":1}'))
    await expect.poll(() => echo.calls.length).toBe(1)
    socket.write(Buffer.concat([post('{"n":2}'), post('{"n":3}').subarray(0, 50)]))
    socket.write(post('{"n":3}').subarray(50))
    // A later client is served while they wait.
    const other = echo.connect()
    other.write('GET /livez HTTP/1.1\r\nHost: x\r\n\r\n')
    expect((await answers(other, 1))[0]).toContain('{"live":true}')
    expect(echo.calls.length).toBe(1)
    gate.resolve(undefined)
    const received = (await answers(socket, 3)).map(bodyOf)
    expect(received).toMatchObject([{ body: { n: 1 } }, { body: { n: 2 } }, { body: { n: 3 } }])
  })

  it('is answered also when the client closes its side after it', async () => {
    const echo = new Echo()
    await echo.open()
    const socket = echo.connect()
    socket.end(post('{"n":1}'))
    const [answer] = await answers(socket, 2)
    expect(bodyOf(answer ?? '')).toMatchObject({ body: { n: 1 } })
  })

  it('is not read with the head of the request before it', async () => {
    const echo = new Echo()
    await echo.open()
    for (const n of [1, 2, 3]) {
      const socket = echo.connect()
      socket.write(post('{}', 'X-Tallygate-Session: 5b0b7f1c-3c1e-4d0a-9d6f-0d4b8a0c7e11', `X-Tallygate-Request: ${n}`))
      await answers(socket, 1)
    }
    expect(echo.calls.map(({ idempotencyKey }) => idempotencyKey?.n)).toEqual([1, 2, 3])
  })
})

/** Body of the one answer that comes next. */
async function nextBody(socket: Socket): Promise<string> {
  let received = ''
  for (;;) {
    const [bytes] = (await once(socket, 'data')) as [Buffer]
    received += bytes.toString()
    const headEnd = received.indexOf('\r\n\r\n')
    const length = Number(/content-length: (\d+)/i.exec(received.slice(0, headEnd))?.[1])
    if (headEnd >= 0 && received.length >= headEnd + 4 + length) return received.slice(headEnd + 4)
  }
}
