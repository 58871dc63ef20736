/**
 * The agent's door for local applications: HTTP on a Unix socket. Who may knock is decided by the file's permissions; a
 * bearer token is neither asked for nor looked at. It holds no rule of the product: it reads, bounds, passes on, and turns
 * outcomes into answers. Nothing that a peer sends ends the process.
 */
import { type IncomingMessage, STATUS_CODES, type Server, type ServerResponse, createServer } from 'node:http'
import type { Socket } from 'node:net'
import { CodedError, ERRORS, type ErrorCode } from '../../../protocol/errors.ts'
import type { AgentStatusWire } from '../../../protocol/local/status.ts'
import type { AccessAnswer, AccessCall } from '../../app/access.ts'
import { claimPath } from './claim-path.ts'
import { type JsonBody, readJson } from './request-body.ts'
import { type Route, route } from './routes.ts'

export interface SocketOptions {
  readonly path: string
  /** Permission bits of the socket file. */
  readonly mode: number
  readonly bodyBytesMax: number
  /** Requests that are being decided or wait for their commit; more are turned away. */
  readonly waitingMax: number
  readonly connectionsMax: number
  /** For all of a request to arrive, ms. */
  readonly requestTimeoutMs: number
  readonly access: (call: AccessCall) => Promise<AccessAnswer>
  readonly status: () => AgentStatusWire
  /** An error that is no expected outcome; its request is answered with INTERNAL. */
  readonly onFault: (error: unknown) => void
}

export interface SocketServer {
  /** Takes no more requests, lets those under way end for at most so many ms, and removes the path. Idempotent. */
  stop(drainMs: number): Promise<void>
}

const KEEP_ALIVE_MS = 75_000
const HEADER_BYTES_MAX = 16 * 1024
const RETRY_AFTER_S = 1

/** Name of an application session: what a header may carry without quoting. */
const SESSION = /^[\x21-\x7e]{1,128}$/
const REQUEST_NUMBER = /^[1-9]\d{0,14}$/

/** @throws CodedError SOCKET_IN_USE or SOCKET_PATH_OCCUPIED */
export async function openSocket(options: SocketOptions): Promise<SocketServer> {
  const door = new Door(options)
  await door.open()
  return door
}

class Door implements SocketServer {
  readonly #options: SocketOptions
  readonly #server: Server
  #waiting = 0
  #isStopping = false
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
    })
    this.#server.maxConnections = options.connectionsMax
    this.#server.on('request', this.#take)
    this.#server.on('clientError', answerBrokenRequest)
  }

  async open(): Promise<void> {
    this.#release = await claimPath(this.#server, this.#options.path, this.#options.mode)
  }

  stop(drainMs: number): Promise<void> {
    this.#stopped ??= this.#stop(drainMs)
    return this.#stopped
  }

  async #stop(drainMs: number): Promise<void> {
    this.#isStopping = true
    // Nobody comes in any more by this name, while those inside finish.
    this.#release()
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve())
    })
    const deadline = setTimeout(() => this.#server.closeAllConnections(), drainMs)
    await closed
    clearTimeout(deadline)
  }

  readonly #take = (request: IncomingMessage, response: ServerResponse): void => {
    response.sendDate = false
    if (this.#isStopping) {
      response.shouldKeepAlive = false
      refuse(response, new CodedError('STOPPING', 'the agent is shutting down'))
      return
    }
    const target = route(request.method ?? '', request.url ?? '')
    switch (target.to) {
      case 'access':
        this.#takeAccess(request, response, target)
        break
      case 'status':
        this.#answerStatus(response)
        break
      case 'live':
        send(response, 200, '{"live":true}')
        break
      case 'malformed':
        refuse(response, new CodedError('BAD_REQUEST', 'the instance id in the path is not a UUID'))
        break
      case 'nowhere':
        refuse(response, new CodedError('NOT_FOUND', 'there is nothing at this address for this method'))
    }
  }

  #answerStatus(response: ServerResponse): void {
    try {
      send(response, 200, JSON.stringify(this.#options.status()))
    } catch (error) {
      this.#fail(response, error)
    }
  }

  #takeAccess(request: IncomingMessage, response: ServerResponse, target: Extract<Route, { to: 'access' }>): void {
    const { waitingMax, bodyBytesMax } = this.#options
    readJson(request, bodyBytesMax, (body) => {
      const call = body instanceof CodedError ? body : callOf(request, target, body)
      if (call instanceof CodedError) {
        refuse(response, call)
        return
      }
      if (this.#waiting >= waitingMax) {
        refuse(response, new CodedError('OVERLOADED', `${waitingMax} requests are waiting`))
        return
      }
      this.#waiting += 1
      this.#options.access(call).then(
        (answer) => {
          this.#waiting -= 1
          this.#answerAccess(response, answer)
        },
        (error: unknown) => {
          this.#waiting -= 1
          this.#fail(response, error)
        },
      )
    })
  }

  #answerAccess(response: ServerResponse, { body, policyRevision, caveats }: AccessAnswer): void {
    if (this.#isStopping) response.shouldKeepAlive = false
    const headers = [
      'Content-Type',
      'application/json',
      'Content-Length',
      String(Buffer.byteLength(body)),
      'x-tallygate-durability',
      'durable',
      'x-tallygate-policy-revision',
      String(policyRevision),
    ]
    if (caveats.length > 0) headers.push('x-tallygate-caveats', caveats.join(', '))
    response.writeHead(200, headers)
    response.end(body)
  }

  #fail(response: ServerResponse, error: unknown): void {
    if (this.#isStopping) response.shouldKeepAlive = false
    if (error instanceof CodedError) {
      refuse(response, error)
      return
    }
    this.#options.onFault(error)
    refuse(response, new CodedError('INTERNAL', 'the request met a fault in the agent', { cause: error }))
  }
}

function callOf(
  request: IncomingMessage,
  { apiVersion, instanceId }: Extract<Route, { to: 'access' }>,
  { text, value }: JsonBody,
): AccessCall | CodedError {
  const { 'x-tallygate-session': session, 'x-tallygate-request': number } = request.headers
  if (session === undefined && number === undefined) return { apiVersion, instanceId, text, body: value, repeat: null }
  if (typeof session !== 'string' || !SESSION.test(session)) {
    return new CodedError(
      'BAD_REQUEST',
      'x-tallygate-session: 1 to 128 visible ASCII characters, with x-tallygate-request',
    )
  }
  if (typeof number !== 'string' || !REQUEST_NUMBER.test(number)) {
    return new CodedError('BAD_REQUEST', 'x-tallygate-request: a whole number from 1, with x-tallygate-session')
  }
  return { apiVersion, instanceId, text, body: value, repeat: { session, n: Number(number) } }
}

function send(response: ServerResponse, status: number, body: string, more: readonly string[] = []): void {
  response.writeHead(status, [
    'Content-Type',
    'application/json',
    'Content-Length',
    String(Buffer.byteLength(body)),
    ...more,
  ])
  response.end(body)
}

function refuse(response: ServerResponse, error: CodedError): void {
  const headers = ERRORS[error.code].retry === 'later' ? ['Retry-After', String(RETRY_AFTER_S)] : []
  send(response, error.httpStatus, bodyOf(error.code, error.message), headers)
}

function bodyOf(code: ErrorCode, message: string): string {
  return JSON.stringify({ message, code })
}

/** What the HTTP parser gives up on. */
function answerBrokenRequest(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy()
    return
  }
  const status = error.code === 'HPE_HEADER_OVERFLOW' ? 431 : error.code === 'ERR_HTTP_REQUEST_TIMEOUT' ? 408 : 400
  const reason = STATUS_CODES[status] ?? ''
  const body = bodyOf('BAD_REQUEST', `this is not an HTTP request that the agent takes: ${reason}`)
  socket.end(
    `HTTP/1.1 ${status} ${reason}\r\nConnection: close\r\nContent-Type: application/json\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  )
}
