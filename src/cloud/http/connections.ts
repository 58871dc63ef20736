/**
 * Connections on which a request cannot be read to its end: bytes that are not HTTP, bodies that break off, and Expect
 * headers. Responses to earlier requests of the connection go first. Otherwise the client would match this response to one
 * of them, and repeat a request that was charged.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { CodedError } from '../../protocol/errors.ts'
import { NO_TUNNEL, TOO_MANY_AHEAD, bodyIncomplete } from '../../protocol/service/refusals.ts'
import { Rarely } from '../runtime/rarely.ts'
import { connectionEvent } from '../../platform/fast-path.ts'
import { limitReading } from '../../platform/limit-reading.ts'
import { rawRefusal } from './answer-error.ts'
import { isLingering, linger } from './linger.ts'

interface ConnectionsDeps {
  readonly log: Pick<FastifyBaseLogger, 'info'>
  /** Called for each body that breaks off. */
  readonly onBrokenBody: () => void
}

export class Connections {
  readonly #deps: ConnectionsDeps
  /** Response to the last request read from each connection. */
  readonly #last = new WeakMap<Socket, ServerResponse>()
  /** Requests whose body broke before anything read it. */
  readonly #broken = new WeakMap<IncomingMessage, CodedError>()
  /** Sends `100 Continue` to clients that wait for it. */
  readonly #continue = new WeakMap<IncomingMessage, () => void>()
  readonly #ending = new WeakSet<Socket>()
  readonly #rarely = new Rarely(() => performance.now())

  constructor(deps: ConnectionsDeps) {
    this.#deps = deps
  }

  /** Call before registering routes. */
  watch(http: FastifyInstance): void {
    const { server } = http
    // Half-closed clients still receive a response, which may be a charge.
    Object.assign(server, { httpAllowHalfOpen: true })
    server.prependListener('request', (request, response) => this.#last.set(request.socket, response))
    server.on(connectionEvent(server), (socket: Socket) =>
      limitReading(socket, () =>
        this.refuse(Object.assign(new Error(TOO_MANY_AHEAD), { code: TOO_MANY_AHEAD }), socket),
      ),
    )
    server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      const keepAlive = response.shouldKeepAlive
      // A client that is refused may omit its body, so what it sends next cannot be read.
      response.shouldKeepAlive = false
      this.#continue.set(request, () => {
        response.writeContinue()
        response.shouldKeepAlive = keepAlive
      })
      server.emit('request', request, response)
    })
    // Refused before any operation.
    server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) =>
      server.emit('request', request, response),
    )
    server.on('connect', (_request: IncomingMessage, socket: Socket) => {
      // Node has stopped parsing, and listens for no more errors.
      socket.removeAllListeners('data').on('error', () => socket.destroy())
      this.refuse(Object.assign(new Error(NO_TUNNEL), { code: NO_TUNNEL }), socket)
    })
    http.addHook('onRequest', ({ raw }, reply, done) => {
      if (isLingering(raw.socket)) reply.hijack()
      else done()
    })
    // After the checks that need no body. No GET reads its body.
    http.addHook('preParsing', ({ raw }, _reply, _payload, done) => {
      const broken = raw.method === 'GET' ? undefined : this.#broken.get(raw)
      if (broken === undefined) this.#continue.get(raw)?.()
      done(broken)
    })
  }

  /** Whether no later request of its connection has been read: its response may close the connection. */
  isLast(request: IncomingMessage): boolean {
    const last = this.#last.get(request.socket)
    return last === undefined || last.req === request
  }

  /** Handles errors of Node's parser, its time limits and {@link TOO_MANY_AHEAD}. */
  readonly refuse = (error: NodeJS.ErrnoException, socket: Socket): void => {
    const last = this.#last.get(socket)
    const unread = last === undefined || last.req.complete ? undefined : last
    if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT' && unread?.headersSent === false) {
      // The reader of the body limits its time. Node does not look at this connection again.
      unread.shouldKeepAlive = false
      return
    }
    if (error.code === 'ECONNRESET' || !socket.writable) {
      if (unread !== undefined) this.#breakOff(unread)
      socket.destroy()
      return
    }
    if (this.#ending.has(socket)) return
    this.#ending.add(socket)
    linger(socket)
    if (unread !== undefined) {
      // The broken bytes are the body of this request, which has one response only.
      unread.shouldKeepAlive = false
      if (unread.writableFinished) socket.destroySoon()
      else unread.once('finish', () => socket.destroySoon())
      this.#breakOff(unread)
    } else if (last === undefined || last.writableFinished) end(socket, error.code)
    // Before Node's own listener, which may end a half-closed connection.
    else last.prependOnceListener('finish', () => end(socket, error.code))
  }

  /** Makes the reader of the body respond; later readers are refused. */
  #breakOff({ req, headersSent }: ServerResponse): void {
    if (headersSent || this.#broken.has(req)) return
    const error = bodyIncomplete()
    this.#broken.set(req, error)
    this.#deps.onBrokenBody()
    this.#rarely.log('broken', (requests) =>
      this.#deps.log.info({ requests }, 'connections ended before the body of their request was complete'),
    )
    if (req.listenerCount('error') > 0) req.emit('error', error)
  }
}

function end(socket: Socket, cause: string | undefined): void {
  if (socket.writable) socket.write(rawRefusal(cause))
  socket.destroySoon()
}
