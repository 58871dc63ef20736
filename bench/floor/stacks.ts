/**
 * Transports of the baseline. Each reads a request, waits until its row is durable, and sends a response of the
 * configured size.
 */
import { createServer as createHttpServer } from 'node:http'
import { createServer as createNetServer } from 'node:net'
import { once } from 'node:events'
import Fastify from 'fastify'
import { openSocket } from '../../src/agent/platform/socket/server.ts'
import { ONLY_ACCESS } from '../../test/agent/platform/socket/only-access.ts'
import type { AccessAnswer } from '../../src/agent/access/access.ts'
import type { FloorStack } from './options.ts'

type WriteRow = (done: () => void) => void

/** Resolves when the socket accepts connections. */
type Stack = (socketPath: string, answer: string, record: WriteRow) => Promise<void>

const TYPE = 'application/json'

const MORE_HEADERS = [
  ['x-floor-durability', 'durable'],
  ['x-floor-policy-revision', '1'],
] as const

export const STACKS: Readonly<Record<FloorStack, Stack>> = {
  /** The agent's own socket server without the agent. It parses JSON bodies, as for the agent. */
  'agent-socket': async (socketPath, answer, record) => {
    const granted: AccessAnswer = {
      operable: true,
      status: 200,
      body: answer,
      policyRevision: 1,
      warnings: [],
      durability: 'durable',
    }
    await openSocket({
      path: socketPath,
      mode: 0o600,
      bodyBytesMax: 65_536,
      waitingMax: 4_096,
      connectionsMax: 1_024,
      requestTimeoutMs: 30_000,
      access: {
        request: () =>
          new Promise((resolve) => {
            record(() => resolve(granted))
          }),
      },
      ...ONLY_ACCESS,
      onFault: (error) => {
        throw error
      },
    })
  },

  'node-http': async (socketPath, answer, record) => {
    const headers = ['Content-Type', TYPE, 'Content-Length', String(Buffer.byteLength(answer)), ...MORE_HEADERS.flat()]
    const server = createHttpServer((request, response) => {
      response.sendDate = false
      request.resume()
      request.on('end', () => {
        record(() => {
          response.writeHead(200, headers)
          response.end(answer)
        })
      })
    })
    await once(server.listen(socketPath), 'listening')
  },

  fastify: async (socketPath, answer, record) => {
    const app = Fastify()
    app.removeAllContentTypeParsers()
    app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
    app.post('*', (_request, reply) => {
      record(() => void reply.type(TYPE).headers(Object.fromEntries(MORE_HEADERS)).send(answer))
      return reply
    })
    await app.listen({ path: socketPath })
  },

  /** Minimal HTTP/1.1: one request at a time, framed by Content-Length. */
  net: async (socketPath, answer, record) => {
    const whole = Buffer.from(
      `HTTP/1.1 200 OK\r\nContent-Type: ${TYPE}\r\nContent-Length: ${Buffer.byteLength(answer)}\r\n` +
        `${MORE_HEADERS.map((header) => `${header.join(': ')}\r\n`).join('')}\r\n${answer}`,
    )
    const server = createNetServer((socket) => {
      let held: Buffer | undefined
      socket.on('data', (bytes: Buffer) => {
        const all = held === undefined ? bytes : Buffer.concat([held, bytes])
        held = all
        const headEnd = all.indexOf('\r\n\r\n')
        if (headEnd < 0) return
        const length = Number(/\r\ncontent-length: *(\d+)/i.exec(all.toString('latin1', 0, headEnd))?.[1] ?? 0)
        if (all.length < headEnd + 4 + length) return
        held = undefined
        record(() => void socket.write(whole))
      })
      socket.on('error', () => socket.destroy())
    })
    await once(server.listen(socketPath), 'listening')
  },
}
