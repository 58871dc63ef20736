/** Read-only HTTP server for browsers, monitoring and supervisors; it takes no body. */
import {
  type IncomingMessage,
  STATUS_CODES,
  type Server,
  type ServerResponse,
  createServer as createPlain,
} from 'node:http'
import { createServer as createTls } from 'node:https'
import type { Socket } from 'node:net'
import { Server as TlsServer, type SecureContextOptions, type TLSSocket } from 'node:tls'
import { CodedError } from '../../../protocol/errors.ts'
import { hostInUrl } from '../../../platform/host-of.ts'
import { listenOn } from '../../../platform/listen-on.ts'
import { HANDSHAKE_TIMEOUT_MS, openConnections } from '../../../platform/open-connections.ts'
import {
  HEADERS_BYTES_MAX,
  NO_TUNNEL,
  TOO_MANY_AHEAD,
  brokenHead,
  brokenRequest,
} from '../../../protocol/service/refusals.ts'
import type { DeviceReportWire, Readiness } from '../../../protocol/local/report.ts'
import { type StatusAuthOptions, requireReader } from './status-auth.ts'
import { Responses } from '../responses.ts'
import { limitReading } from '../../../platform/limit-reading.ts'
import { metricsText } from './metrics-text.ts'
import { PAGE_POLICY, statusPage } from './page.ts'

export interface StatusOptions {
  readonly port: number
  readonly auth: StatusAuthOptions
  readonly report: () => Promise<DeviceReportWire>
  readonly readiness: () => Promise<Readiness>
  readonly onFault: (error: unknown) => void
}

export interface StatusServer {
  readonly origin: string
  /** For new connections and requests. The host, and whether TLS and a client CA are used, cannot change. */
  renew(auth: StatusAuthOptions): void
  stop(): Promise<void>
}

const CONNECTIONS_MAX = 64
const REQUEST_TIMEOUT_MS = 10_000

/** @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED */
export async function openStatus(options: StatusOptions): Promise<StatusServer> {
  let { auth } = options
  const server = createServer(auth)
  server.maxConnections = CONNECTIONS_MAX
  const cut = openConnections(server)
  const responses = refuseBroken(server)
  server.on('request', (request, response) => {
    const refuse = (): void => send(request, response, refusal(brokenRequest(TOO_MANY_AHEAD)))
    if (!responses.takes(request, response, refuse)) return
    const broken = brokenHead(request)
    if (broken !== null) {
      response.shouldKeepAlive = false
      send(request, response, refusal(broken))
      return
    }
    answer(options, auth, request).then(
      (reply) => send(request, response, reply),
      (error: unknown) => {
        options.onFault(error)
        send(
          request,
          response,
          refusal(new CodedError('INTERNAL', 'the agent failed to handle the request; see its log')),
        )
      },
    )
  })
  server.on('secureConnection', (socket: TLSSocket) => {
    // Without a token, a client without a certificate of the client CA could never authenticate.
    if (isForCertifiedOnly(auth) && !socket.authorized) socket.destroy()
  })
  const { address, port } = await listenOn(server, { host: auth.host, port: options.port }, 'status.port')
  server.on('error', options.onFault)
  const scheme = auth.tls === null ? 'http' : 'https'
  return {
    origin: `${scheme}://${hostInUrl(address)}:${port}`,
    renew: (next) => {
      if (server instanceof TlsServer && next.tls !== null) server.setSecureContext(contextOf(next.tls))
      auth = next
    },
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        cut()
      }),
  }
}

/** Requests that cannot be read get a coded response as well. */
function refuseBroken(server: Server): Responses {
  const responses = new Responses()
  const refuse = (socket: Socket, cause: string | undefined): void => {
    if (responses.claim(socket)) responses.sendFinal(socket, httpText(refusal(brokenRequest(cause))))
  }
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => {
    if (error.code === 'ECONNRESET') socket.destroy()
    else refuse(socket, error.code)
  })
  server.on('connect', (_request: IncomingMessage, socket: Socket) => {
    // Node has stopped parsing.
    socket.removeAllListeners('data')
    refuse(socket, NO_TUNNEL)
  })
  // Refused like other heads.
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) =>
    server.emit('request', request, response),
  )
  server.on(server instanceof TlsServer ? 'secureConnection' : 'connection', (socket: Socket) =>
    limitReading(socket, () => refuse(socket, TOO_MANY_AHEAD)),
  )
  return responses
}

function createServer({ tls }: StatusAuthOptions): Server {
  const limits = {
    requestTimeout: REQUEST_TIMEOUT_MS,
    headersTimeout: REQUEST_TIMEOUT_MS,
    maxHeaderSize: HEADERS_BYTES_MAX,
    // Node would refuse a missing Host without a body.
    requireHostHeader: false,
  }
  if (tls === null) return createPlain(limits)
  return createTls({
    ...limits,
    ...contextOf(tls),
    handshakeTimeout: HANDSHAKE_TIMEOUT_MS,
    requestCert: tls.clientCa !== null,
    // Checked after the handshake: the token that may replace a certificate can be set or removed at any time.
    rejectUnauthorized: false,
  })
}

function contextOf({ certificate, key, clientCa }: NonNullable<StatusAuthOptions['tls']>): SecureContextOptions {
  return { cert: certificate, key, minVersion: 'TLSv1.2', ...(clientCa === null ? {} : { ca: clientCa }) }
}

function isForCertifiedOnly({ tls, token }: StatusAuthOptions): boolean {
  return tls !== null && tls.clientCa !== null && token === null
}

interface Reply {
  readonly status: number
  readonly type: string
  readonly body: string
  readonly headers?: Readonly<Record<string, string>>
}

const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

async function answer(
  options: StatusOptions,
  auth: StatusAuthOptions,
  { method, url = '', headers, socket }: IncomingMessage,
): Promise<Reply> {
  try {
    const path = url.split('?', 1)[0]
    if (method !== 'GET' && method !== 'HEAD') throw nothingHere()
    // For supervisors; neither response contains data about callers.
    if (path === '/livez') return json(200, { live: true })
    if (path === '/readyz') {
      const readiness = await options.readiness()
      return json(readiness.ready ? 200 : 503, readiness)
    }
    if (path !== '/' && path !== '/status' && path !== '/metrics') throw nothingHere()
    requireReader(auth, headers, (socket as Partial<TLSSocket>).authorized === true)
    const report = await options.report()
    if (path === '/status') return json(200, report)
    if (path === '/metrics') {
      return { status: 200, type: METRICS_TYPE, body: metricsText(report, await options.readiness()) }
    }
    return {
      status: 200,
      type: 'text/html; charset=utf-8',
      body: statusPage(report),
      headers: { 'content-security-policy': PAGE_POLICY, 'referrer-policy': 'no-referrer' },
    }
  } catch (error) {
    if (error instanceof CodedError) return refusal(error)
    throw error
  }
}

function nothingHere(): CodedError {
  return new CodedError('OPERATION_UNKNOWN', 'No such path for this method.')
}

function json(status: number, body: unknown): Reply {
  return { status, type: 'application/json', body: JSON.stringify(body) }
}

function refusal(error: CodedError): Reply {
  const reply = json(error.httpStatus, { message: error.message, code: error.code })
  if (error.httpStatus !== 401) return reply
  return { ...reply, headers: { 'www-authenticate': 'Basic realm="tallygate", charset="UTF-8"' } }
}

function send({ method }: IncomingMessage, response: ServerResponse, reply: Reply): void {
  response.writeHead(reply.status, headersOf(reply))
  response.end(method === 'HEAD' ? undefined : reply.body)
}

function headersOf({ type, body, headers }: Reply): Readonly<Record<string, string>> {
  return {
    'content-type': type,
    'content-length': String(Buffer.byteLength(body)),
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
    ...headers,
  }
}

/** The complete last response of a connection. */
function httpText(reply: Reply): string {
  const headers = Object.entries({ ...headersOf(reply), connection: 'close' })
  const head = [
    `HTTP/1.1 ${reply.status} ${STATUS_CODES[reply.status] ?? ''}`,
    ...headers.map((pair) => pair.join(': ')),
  ]
  return `${head.join('\r\n')}\r\n\r\n${reply.body}`
}
