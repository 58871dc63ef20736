/**
 * HTTP over a Unix socket for local applications. File permissions control who can connect; the kernel's peer credentials
 * control what each caller may do; bearer tokens are ignored. No business rules here: it parses, limits, delegates and
 * replies. No input can end the process. Each connection starts on the fast path and moves to Node's server with its
 * first request that is not plain.
 */
import { type IncomingMessage, type Server, type ServerResponse, createServer } from 'node:http'
import { Server as NetServer, type Socket } from 'node:net'
import type { z } from 'zod'
import { CodedError } from '../../../protocol/errors.ts'
import type { KeptDecision } from '../../../protocol/local/decision.ts'
import type { keyRotation } from '../../../protocol/local/rotate-key.ts'
import type { AgentStatusWire } from '../../../protocol/local/status.ts'
import type { AccessAnswer, AccessCall } from '../../access/access.ts'
import { type Caller, callerName } from '../../access/callers/caller.ts'
import type { Callers, CallerQuota, CallerRole } from '../../access/callers/callers.ts'
import { claimPath } from './claim-path.ts'
import { NO_TUNNEL, brokenRefusal, expectationRefusal, hostRefusal } from './odd-requests.ts'
import type { FastPathHead } from './fast-path-head.ts'
import { FastPath } from './fast-path.ts'
import { idempotencyKeyOf } from './idempotency-key.ts'
import { type Reply, granted, plain, refused, traced } from './reply.ts'
import { replyText } from './reply-text.ts'
import { type JsonBody, readJson } from './request-body.ts'
import { type Route, route } from './routes.ts'
import { type SessionService, type SessionTarget, answerSession, takesBody } from './session-requests.ts'

export interface SocketOptions {
  readonly path: string
  /**
   * Descriptor of an already listening socket (socket activation). It outlives this agent, so new clients wait for the
   * next one. Omitted: the agent creates the path and removes it at a stop.
   */
  readonly passed?: number
  /** File mode of the socket. */
  readonly mode: number
  readonly bodyBytesMax: number
  /** Requests being decided or committed; further ones are refused with OVERLOADED. */
  readonly waitingMax: number
  readonly connectionsMax: number
  /** Time for a whole request to arrive, ms. */
  readonly requestTimeoutMs: number
  readonly access: (call: AccessCall) => Promise<AccessAnswer>
  /** Omitted: session paths return NOT_FOUND. */
  readonly sessions?: SessionService
  readonly status: () => AgentStatusWire
  /** For technicians. Omitted: these paths return NOT_FOUND. */
  readonly inspection?: {
    /** Null: not recorded. */
    readonly decision: (correlationId: string) => Promise<KeptDecision | null>
    readonly log: () => string
    /** Remembers a refusal that has no ledger entry; returns its correlation id. */
    readonly refused: (error: CodedError, request: string, caller: string | null) => string
  }
  /** Omitted: the path returns NOT_FOUND. */
  readonly rotateKey?: () => Promise<z.input<typeof keyRotation>>
  /** Omitted: every client has every role, and callers are not identified. */
  readonly callers?: {
    /** Null: unknown to the kernel. */
    readonly identify: (connection: Socket) => Caller | null
    readonly rules: Callers
  }
  /** Called for unexpected errors; the client receives INTERNAL. */
  readonly onFault: (error: unknown) => void
}

export interface SocketServer {
  /** Refuses new requests, waits up to `drainMs` for pending ones, and removes the path. Idempotent. */
  stop(drainMs: number): Promise<void>
}

const KEEP_ALIVE_MS = 75_000
const HEADER_BYTES_MAX = 16 * 1024

/** How long a stop still serves open connections, ms. A busy client sends its next request within this time. */
const HAND_OVER_MS = 300

/** Longest wait for the first request of a connection accepted just before a stop, ms. */
const NEWCOMER_MS = 2_000

const LOOK_EVERY_MS = 20

/** Accept queue length; the kernel caps it. */
const BACKLOG = 4_096

/** @throws CodedError SOCKET_IN_USE or SOCKET_PATH_OCCUPIED */
export async function openSocket(options: SocketOptions): Promise<SocketServer> {
  const door = new UnixSocketServer(options)
  await door.open()
  return door
}

class UnixSocketServer implements SocketServer {
  readonly #options: SocketOptions
  readonly #server: Server
  readonly #fastPath: FastPath
  /** Connections bound to a session; exempt from the idle timeout. */
  readonly #bound = new WeakSet<Socket>()
  readonly #callers = new WeakMap<Socket, Caller>()
  /** Number of open connections by caller name. */
  readonly #connected = new Map<string, number>()
  /** Response to the last request read from each connection. */
  readonly #responses = new WeakMap<Socket, ServerResponse>()
  /** Responses whose request bodies are still being read. */
  readonly #reading = new WeakSet<ServerResponse>()
  /** Connections whose last response is being sent; no longer read. */
  readonly #ending = new WeakSet<Socket>()
  #waiting = 0
  #isStopping = false
  /** During a stop: still serves requests on open connections. */
  #isHandingOver = false
  #release: () => void = () => undefined
  #stopped: Promise<void> | null = null

  constructor(options: SocketOptions) {
    this.#options = options
    this.#server = createServer({
      maxHeaderSize: HEADER_BYTES_MAX,
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
    this.#server.on('request', this.#take)
    this.#server.on('checkExpectation', this.#refuseExpectation)
    this.#server.on('connect', (_request: IncomingMessage, socket: Socket) => this.#answerLast(socket, NO_TUNNEL))
    this.#server.on('clientError', this.#giveUp)
    this.#server.on('timeout', (socket: Socket) => {
      if (!this.#bound.has(socket)) socket.destroy()
    })
    this.#fastPath = new FastPath({
      bodyBytesMax: options.bodyBytesMax,
      keepAliveMs: KEEP_ALIVE_MS,
      take: this.#takeFast,
      isStopping: () => this.#isStopping,
      handOver: divert(this.#server, (socket) => this.#enter(socket)),
    })
  }

  async open(): Promise<void> {
    const { path, passed, mode } = this.#options
    if (passed === undefined) this.#release = await claimPath(this.#server, path, mode)
    else await listenOn(this.#server, passed)
  }

  stop(drainMs: number): Promise<void> {
    this.#stopped ??= this.#stop(drainMs)
    return this.#stopped
  }

  async #stop(drainMs: number): Promise<void> {
    this.#isStopping = true
    const deadline = setTimeout(() => {
      this.#fastPath.closeAll()
      this.#server.closeAllConnections()
    }, drainMs)
    if (this.#options.passed !== undefined) await this.#handOver(drainMs)
    // Stops new connections by path while open ones finish.
    this.#release()
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve())
    })
    this.#fastPath.closeIdle()
    await closed
    clearTimeout(deadline)
  }

  /**
   * Serves requests that clients have already sent before the stop, each as the last of its connection. Busy clients then
   * reconnect to the next agent without losing a request.
   */
  async #handOver(drainMs: number): Promise<void> {
    this.#isHandingOver = true
    const seen = { isEmpty: false }
    // Stops listening only: Node's HTTP server would also close idle connections.
    NetServer.prototype.close.call(this.#server, () => {
      seen.isEmpty = true
    })
    const last = Math.min(drainMs, NEWCOMER_MS)
    for (let waited = 0; waited < last && !seen.isEmpty; waited += LOOK_EVERY_MS) {
      if (waited >= HAND_OVER_MS && !this.#fastPath.hasNewcomer()) break
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS))
    }
    this.#isHandingOver = false
  }

  /** Accepts a connection, or closes it when its caller has too many. */
  #enter(socket: Socket): void {
    const caller = this.#callerAt(socket)
    if (caller === null) {
      this.#fastPath.enter(socket)
      return
    }
    const name = callerName(caller)
    const open = this.#connected.get(name) ?? 0
    const max = this.#options.callers?.rules.quotaOf(caller)?.connectionsMax ?? null
    if (max !== null && open >= max) {
      socket.destroy()
      return
    }
    this.#connected.set(name, open + 1)
    socket.once('close', () => {
      const left = (this.#connected.get(name) ?? 1) - 1
      if (left === 0) this.#connected.delete(name)
      else this.#connected.set(name, left)
    })
    this.#fastPath.enter(socket)
  }

  /** Queries the kernel once per connection. Null: callers are not identified, or the kernel does not know. */
  #callerAt(connection: Socket): Caller | null {
    const known = this.#callers.get(connection)
    if (known !== undefined) return known
    const found = this.#options.callers?.identify(connection) ?? null
    if (found !== null) this.#callers.set(connection, found)
    return found
  }

  /** Handles a request whose head Node's server has parsed. */
  readonly #take = (request: IncomingMessage, response: ServerResponse): void => {
    const answer = this.#answerOf(request, response)
    if (this.#isStopping && !this.#isHandingOver) {
      answer(STOPPING)
      return
    }
    const refusal = hostRefusal(request)
    if (refusal !== null) {
      answer(refusal)
      return
    }
    const target = route(request.method ?? '', request.url ?? '')
    switch (target.to) {
      case 'access':
        this.#readBody(request, response, (body) => this.#access(target, request.headers, body, answer, request.socket))
        break
      case 'session':
        if (takesBody(target)) {
          this.#readBody(request, response, (body) => this.#session(target, request, body, answer))
        } else this.#session(target, request, null, answer)
        break
      case 'status':
        answer(this.#status(request.socket))
        break
      case 'decision':
        this.#decision(target.correlationId, request.socket, answer)
        break
      case 'log':
        answer(this.#observed(request.socket, () => this.#options.inspection?.log() ?? '', 'application/x-ndjson'))
        break
      case 'rotate-key':
        this.#rotateKey(request.socket, answer)
        break
      case 'live':
        answer(plain('{"live":true}'))
        break
      case 'malformed':
        answer(refused(new CodedError('BAD_REQUEST', 'the id in the path is not a UUID')))
        break
      case 'nowhere':
        answer(NOWHERE)
    }
  }

  readonly #refuseExpectation = (request: IncomingMessage, response: ServerResponse): void => {
    this.#answerOf(request, response)(expectationRefusal(request))
  }

  /** The reply function for a request on Node's server. */
  #answerOf(request: IncomingMessage, response: ServerResponse): Answer {
    response.sendDate = false
    this.#responses.set(request.socket, response)
    return (reply) => {
      if (this.#isStopping) response.shouldKeepAlive = false
      // A client that receives a Keep-Alive timeout closes the connection after it, which would end its session.
      else if (this.#bound.has(request.socket)) response.setHeader('Connection', 'keep-alive')
      // Node drops data right behind an upgrade request, so later responses would be matched to the wrong request.
      else if (request.headers.upgrade !== undefined) response.shouldKeepAlive = false
      send(response, reply)
    }
  }

  #readBody(request: IncomingMessage, response: ServerResponse, done: (body: JsonBody | CodedError) => void): void {
    this.#reading.add(response)
    readJson(request, this.#options.bodyBytesMax, (body) => {
      if (this.#reading.delete(response)) done(body)
    })
  }

  /** Handles parser errors and timeouts. */
  readonly #giveUp = (error: NodeJS.ErrnoException, socket: Socket): void => {
    if (error.code === 'ECONNRESET') socket.destroy()
    else this.#answerLast(socket, brokenRefusal(error.code))
  }

  /**
   * Sends a final response for the last request. Earlier pending responses go first: otherwise the client would match this
   * one to an earlier request, retry it and be charged again.
   */
  #answerLast(socket: Socket, reply: Reply): void {
    if (this.#ending.has(socket)) return
    this.#ending.add(socket)
    // After CONNECT nothing else listens for errors, and a stop would wait for a client's half-open connection.
    socket.on('error', () => socket.destroy())
    const end = (): void => {
      if (socket.writable) socket.write(replyText(reply, null))
      socket.destroySoon()
    }
    const last = this.#responses.get(socket)
    if (last === undefined || last.closed) end()
    else if (!last.req.complete && this.#reading.delete(last)) {
      // The error is in this request's own body.
      last.shouldKeepAlive = false
      send(last, reply)
    } else last.once('close', end)
  }

  /** Handles an access request from the fast path. */
  readonly #takeFast = (
    { target, headers }: FastPathHead,
    body: JsonBody | CodedError,
    answer: Answer,
    connection: Socket,
  ): void => {
    if (this.#isStopping && !this.#isHandingOver) answer(STOPPING)
    else this.#access(target, headers, body, answer, connection)
  }

  #access(
    target: AccessTarget,
    headers: SessionHeaders,
    body: JsonBody | CodedError,
    answer: Answer,
    connection: Socket,
  ): void {
    const refuse = (error: unknown): void => {
      const { apiVersion, instanceId } = target
      answer(this.#refusal(error, `POST ${apiVersion} access-request of ${instanceId}`, connection))
    }
    const admitted = this.#admit(connection, 'use')
    if (admitted instanceof CodedError) {
      refuse(admitted)
      return
    }
    const call = body instanceof CodedError ? body : callOf(target, headers, body, admitted)
    if (call instanceof CodedError) {
      refuse(call)
      return
    }
    this.#wait(answer, () => this.#options.access(call), granted, refuse)
  }

  #session(target: SessionTarget, request: IncomingMessage, body: JsonBody | CodedError | null, answer: Answer): void {
    const refuse = (error: unknown): void => {
      const { apiVersion, operation, sessionId } = target
      answer(this.#refusal(error, `${operation} ${apiVersion} session ${sessionId}`.trimEnd(), request.socket))
    }
    if (body instanceof CodedError) {
      refuse(body)
      return
    }
    const { sessions } = this.#options
    if (sessions === undefined) {
      answer(NOWHERE)
      return
    }
    const { headers, url = '', socket } = request
    const admitted = this.#admit(socket, 'use')
    if (admitted instanceof CodedError) {
      refuse(admitted)
      return
    }
    const onDisconnect = (call: () => void): void => {
      this.#bound.add(socket)
      if (socket.destroyed) call()
      else socket.once('close', call)
    }
    const { owner, quota } = admitted
    const administers = this.#administers(socket)
    const asked = { target, url, headers, body, owner, administers, ...(quota === null ? {} : { quota }), onDisconnect }
    this.#wait(
      answer,
      () => answerSession(sessions, asked),
      (reply) => reply,
      refuse,
    )
  }

  #wait<T>(
    answer: Answer,
    work: () => Promise<T>,
    replyTo: (result: T) => Reply,
    refuse: (error: unknown) => void,
  ): void {
    const { waitingMax } = this.#options
    if (this.#waiting >= waitingMax) {
      refuse(new CodedError('OVERLOADED', `the agent already has ${waitingMax} pending requests (socket.waiting_max)`))
      return
    }
    this.#waiting += 1
    work().then(
      (result) => {
        this.#waiting -= 1
        answer(replyTo(result))
      },
      (error: unknown) => {
        this.#waiting -= 1
        refuse(error)
      },
    )
  }

  /** Identifies the caller and checks its role and limits. */
  #admit(connection: Socket, role: CallerRole): Admission | CodedError {
    const { callers } = this.#options
    if (callers === undefined) return ANYBODY
    const { rules } = callers
    const caller = this.#callerAt(connection)
    if (caller === null) return new CodedError('CALLER_NOT_ALLOWED', 'the kernel did not identify the calling process')
    try {
      rules.require(caller, role)
    } catch (error) {
      if (error instanceof CodedError) return error
      throw error
    }
    return { owner: callerName(caller), quota: rules.quotaOf(caller) }
  }

  /** Whether an admitted caller has the administrator role. */
  #administers(connection: Socket): boolean {
    const caller = this.#callers.get(connection)
    return caller === undefined || this.#options.callers?.rules.isIn(caller, 'administer') === true
  }

  #status(connection: Socket): Reply {
    return this.#observed(connection, () => JSON.stringify(this.#options.status()))
  }

  /** Reply for callers with the observer role. */
  #observed(connection: Socket, read: () => string, type?: string): Reply {
    const admitted = this.#admit(connection, 'observe')
    if (admitted instanceof CodedError) return refused(admitted)
    try {
      return plain(read(), type)
    } catch (error) {
      return this.#failure(error)
    }
  }

  #decision(correlationId: string, connection: Socket, answer: Answer): void {
    const { inspection } = this.#options
    const admitted = this.#admit(connection, 'observe')
    if (inspection === undefined || admitted instanceof CodedError) {
      answer(admitted instanceof CodedError ? refused(admitted) : NOWHERE)
      return
    }
    this.#wait(
      answer,
      async () => {
        const kept = await inspection.decision(correlationId)
        if (kept !== null) return plain(JSON.stringify(kept))
        return refused(new CodedError('DECISION_UNKNOWN', `this device has no record of decision ${correlationId}`))
      },
      (reply) => reply,
      (error) => answer(this.#failure(error)),
    )
  }

  #rotateKey(connection: Socket, answer: Answer): void {
    const { rotateKey } = this.#options
    const admitted = this.#admit(connection, 'administer')
    if (rotateKey === undefined || admitted instanceof CodedError) {
      answer(admitted instanceof CodedError ? refused(admitted) : NOWHERE)
      return
    }
    this.#wait(
      answer,
      rotateKey,
      (standing) => plain(JSON.stringify(standing)),
      (error) => answer(this.#failure(error)),
    )
  }

  /** A refusal without a ledger entry: stores it under a correlation id that the response carries. */
  #refusal(error: unknown, request: string, connection: Socket): Reply {
    const reply = this.#failure(error)
    const { inspection } = this.#options
    if (inspection === undefined) return reply
    const caller = this.#callers.get(connection)
    const coded =
      error instanceof CodedError
        ? error
        : new CodedError('INTERNAL', 'the agent failed to handle the request; see its log')
    return traced(reply, inspection.refused(coded, request, caller === undefined ? null : callerName(caller)))
  }

  #failure(error: unknown): Reply {
    if (error instanceof CodedError) return refused(error)
    this.#options.onFault(error)
    return refused(new CodedError('INTERNAL', 'the agent failed to handle the request; see its log', { cause: error }))
  }
}

function listenOn(server: Server, fd: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen({ fd }, BACKLOG, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** Diverts new connections to `enter`; returns a function that passes one back to the server. */
function divert(server: Server, enter: (socket: Socket) => void): (socket: Socket) => void {
  const own = server.listeners('connection') as ((socket: Socket) => void)[]
  server.removeAllListeners('connection').on('connection', enter)
  return (socket) => {
    for (const listener of own) listener.call(server, socket)
  }
}

interface Admission {
  readonly owner: string | null
  readonly quota: CallerQuota | null
}

const ANYBODY: Admission = { owner: null, quota: null }

type Answer = (reply: Reply) => void
type AccessTarget = Extract<Route, { to: 'access' }>
type SessionHeaders = Readonly<Record<string, string | readonly string[] | undefined>>

const NOWHERE = refused(new CodedError('NOT_FOUND', 'no such path for this method'))
const STOPPING = refused(new CodedError('STOPPING', 'the agent is shutting down'))

function callOf(
  { apiVersion, instanceId }: AccessTarget,
  headers: SessionHeaders,
  { text, value }: JsonBody,
  { owner, quota }: Admission,
): AccessCall | CodedError {
  try {
    const call = { apiVersion, instanceId, text, body: value, idempotencyKey: idempotencyKeyOf(headers, owner) }
    return quota === null ? call : { ...call, quota }
  } catch (error) {
    if (error instanceof CodedError) return error
    throw error
  }
}

const NO_CONTENT = 204

function send(response: ServerResponse, reply: Reply): void {
  const { status, headers, body } = reply
  if (status === NO_CONTENT) {
    response.writeHead(status, [...headers])
    response.end()
    return
  }
  const length = String(Buffer.byteLength(body))
  const type = reply.type ?? 'application/json'
  response.writeHead(status, ['Content-Type', type, 'Content-Length', length, ...headers])
  response.end(body)
}
