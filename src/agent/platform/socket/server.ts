/**
 * HTTP over a Unix socket for local applications. File permissions control who can connect. Each connection starts on
 * the fast path and moves to Node's server with its first request that is not plain.
 */
import { once } from 'node:events'
import { type IncomingMessage, type Server, type ServerResponse, createServer } from 'node:http'
import { Server as NetServer, type Socket } from 'node:net'
import type { CodedError } from '../../../protocol/errors.ts'
import {
  HEADERS_BYTES_MAX,
  NO_TUNNEL,
  TOO_MANY_AHEAD,
  bodyIncomplete,
  brokenHead,
  brokenRequest,
} from '../../../protocol/service/refusals.ts'
import { FastPath, replyText } from '../../../platform/fast-path.ts'
import { limitReading } from '../../../platform/limit-reading.ts'
import { CONNECTIONS_WAITING_MAX } from '../../../platform/open-connections.ts'
import { LOCAL_HEADERS } from '../../../protocol/local/headers.ts'
import { idempotencyHeader } from '../../../protocol/wire.ts'
import { Responses } from '../responses.ts'
import { claimPath } from './claim-path.ts'
import { STOPPING, TOO_MANY, refused, send } from './reply.ts'
import { type JsonBody, KnownBodies, readJson, route } from './parse-request.ts'
import { type AccessHead, type Answer, RequestHandler, type RequestHandlerDeps } from './request-handler.ts'
import { takesBody } from './session-requests.ts'

export interface SocketOptions extends RequestHandlerDeps {
  readonly path: string
  /**
   * Descriptor of an already listening socket (socket activation). It outlives this agent, so new clients wait for the
   * next one. Omitted: the agent creates the path and removes it at a stop.
   */
  readonly passed?: number
  readonly mode: number
  readonly bodyBytesMax: number
  readonly connectionsMax: number
  readonly requestTimeoutMs: number
}

const KEEP_ALIVE_MS = 75_000

/** How long a stop still serves open connections, ms. A busy client sends its next request within this time. */
const HAND_OVER_MS = 300

/** Longest wait for the first request of a connection accepted just before a stop, ms. */
const NEWCOMER_MS = 2_000

const LOOK_EVERY_MS = 20

/** @throws CodedError SOCKET_IN_USE or SOCKET_PATH_OCCUPIED */
export async function openSocket(options: SocketOptions): Promise<SocketServer> {
  const server = new SocketServer(options)
  await server.open()
  return server
}

export class SocketServer {
  readonly #options: SocketOptions
  readonly #server: Server
  readonly #handler: RequestHandler
  readonly #fastPath: FastPath<AccessHead['target']>
  readonly #responses = new Responses()
  /** Responses whose request bodies are still being read. */
  readonly #reading = new WeakSet<ServerResponse>()
  #release: () => void = () => undefined
  #stopped: Promise<void> | null = null

  constructor(options: SocketOptions) {
    this.#options = options
    this.#handler = new RequestHandler(options)
    this.#server = createServer({
      maxHeaderSize: HEADERS_BYTES_MAX,
      requestTimeout: options.requestTimeoutMs,
      headersTimeout: options.requestTimeoutMs,
      keepAliveTimeout: KEEP_ALIVE_MS,
      connectionsCheckingInterval: Math.min(options.requestTimeoutMs, 5_000),
      // Node would refuse a missing Host without a body.
      requireHostHeader: false,
    })
    this.#server.maxConnections = options.connectionsMax
    // Half-closed clients such as nc and socat still receive a response: their request is charged.
    Object.assign(this.#server, { httpAllowHalfOpen: true })
    this.#server.on('request', this.#serve)
    this.#server.on('checkExpectation', this.#serve)
    this.#server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      if (brokenHead(request) === null) response.writeContinue()
      this.#serve(request, response)
    })
    this.#server.on('connect', (_request: IncomingMessage, socket: Socket) => {
      // Node has stopped to parse it.
      socket.removeAllListeners('data')
      this.#answerLast(socket, NO_TUNNEL)
    })
    this.#server.on('clientError', this.#giveUp)
    this.#server.on('timeout', (socket: Socket) => {
      if (!this.#handler.isBound(socket)) socket.destroy()
    })
    this.#server.on('connection', (socket: Socket) =>
      limitReading(socket, () => this.#answerLast(socket, TOO_MANY_AHEAD)),
    )
    this.#fastPath = this.#openFastPath()
  }

  #openFastPath(): FastPath<AccessHead['target']> {
    const handler = this.#handler
    const bodies = new KnownBodies()
    return new FastPath(this.#server, {
      targetOf: (method, url) => {
        const target = route(method, url)
        return target.to === 'access' ? target : undefined
      },
      uniqueHeaders: [LOCAL_HEADERS.request, idempotencyHeader],
      bodyBytesMax: this.#options.bodyBytesMax,
      firstRequestMs: KEEP_ALIVE_MS,
      accept: (socket) => handler.acceptConnection(socket),
      isEnding: () => handler.phase !== 'SERVING',
      serve: (head, body, socket, answer) => {
        if (handler.phase === 'STOPPING') answer(STOPPING)
        else handler.access(head, bodies.parse(body), socket, answer)
      },
    })
  }

  async open(): Promise<void> {
    const { path, passed, mode } = this.#options
    if (passed === undefined) this.#release = await claimPath(this.#server, path, mode)
    else await once(this.#server.listen({ fd: passed }, CONNECTIONS_WAITING_MAX), 'listening')
  }

  /** Refuses new requests, waits up to `drainMs` for pending ones, and removes the path. Idempotent. */
  stop(drainMs: number): Promise<void> {
    return (this.#stopped ??= this.#stop(drainMs))
  }

  async #stop(drainMs: number): Promise<void> {
    this.#handler.phase = this.#options.passed === undefined ? 'STOPPING' : 'HANDING_OVER'
    const deadline = setTimeout(() => {
      this.#fastPath.closeAll()
      this.#server.closeAllConnections()
    }, drainMs)
    if (this.#options.passed !== undefined) await this.#handOver(drainMs)
    this.#release()
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve())
    })
    this.#fastPath.closeIdle()
    await closed
    clearTimeout(deadline)
  }

  /**
   * Serves requests that clients have already sent before the stop, each as the last of its connection. Busy clients
   * then reconnect to the next agent without losing a request.
   */
  async #handOver(drainMs: number): Promise<void> {
    const queue = { isEmpty: false }
    // Stops listening only: Node's HTTP server would also close idle connections.
    NetServer.prototype.close.call(this.#server, () => {
      queue.isEmpty = true
    })
    const last = Math.min(drainMs, NEWCOMER_MS)
    for (let waited = 0; waited < last && !queue.isEmpty; waited += LOOK_EVERY_MS) {
      if (waited >= HAND_OVER_MS && !this.#fastPath.hasNewcomer()) break
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS))
    }
    this.#handler.phase = 'STOPPING'
  }

  readonly #serve = (request: IncomingMessage, response: ServerResponse): void => {
    const refuse = (): void => {
      response.sendDate = false
      send(response, TOO_MANY)
    }
    if (!this.#responses.takes(request, response, refuse)) return
    const answer = this.#answerOf(request, response)
    if (this.#handler.phase === 'STOPPING') {
      answer(STOPPING)
      return
    }
    const refusal = brokenHead(request)
    // Node drops data right behind some upgrade requests, so later responses would be matched to the wrong request.
    if (refusal !== null || request.headers.upgrade !== undefined) this.#closeAfter(request.socket, response)
    if (refusal !== null) {
      answer(refused(refusal))
      return
    }
    const target = route(request.method ?? '', request.url ?? '')
    switch (target.to) {
      case 'access':
        this.#readBody(request, response, (body) =>
          this.#handler.access({ target, headers: request.headers }, body, request.socket, answer),
        )
        break
      case 'session':
        if (takesBody(target)) {
          this.#readBody(request, response, (body) => this.#handler.session(target, request, body, answer))
        } else this.#handler.session(target, request, null, answer)
        break
      default:
        this.#handler.other(target, request.socket, answer)
    }
  }

  #answerOf(request: IncomingMessage, response: ServerResponse): Answer {
    response.sendDate = false
    return (reply) => {
      if (this.#handler.phase !== 'SERVING') {
        // Requests behind this one may be charged already.
        if (this.#responses.lastOf(request.socket) === response) this.#closeAfter(request.socket, response)
      }
      // A client that receives a Keep-Alive timeout closes the connection after it, which would end its session.
      else if (response.shouldKeepAlive && this.#handler.isBound(request.socket)) {
        response.setHeader('Connection', 'keep-alive')
      }
      send(response, reply)
    }
  }

  #closeAfter(socket: Socket, response: ServerResponse): void {
    this.#responses.takeNoMore(socket)
    response.shouldKeepAlive = false
  }

  #readBody(request: IncomingMessage, response: ServerResponse, done: (body: JsonBody | CodedError) => void): void {
    this.#reading.add(response)
    readJson(request, this.#options.bodyBytesMax, (body) => {
      if (this.#reading.delete(response)) done(body)
    })
  }

  readonly #giveUp = (error: NodeJS.ErrnoException, socket: Socket): void => {
    if (error.code === 'ECONNRESET') socket.destroy()
    else this.#answerLast(socket, error.code)
  }

  /** @param cause code of Node's error */
  #answerLast(socket: Socket, cause: string | undefined): void {
    if (!this.#responses.claim(socket)) return
    const last = this.#responses.lastOf(socket)
    if (last?.req.complete === false && this.#reading.delete(last)) {
      // The error is in this request's own body.
      last.shouldKeepAlive = false
      send(last, refused(cause === 'ERR_HTTP_REQUEST_TIMEOUT' ? brokenRequest(cause) : bodyIncomplete()))
      return
    }
    // The last request has its response, and no request behind it gets one.
    const isAnswered = last !== undefined && !(last.req.complete && last.shouldKeepAlive)
    this.#responses.sendFinal(socket, isAnswered ? '' : replyText(refused(brokenRequest(cause)), null).text)
  }
}
