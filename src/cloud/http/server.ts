/** The cloud's HTTP server without routes: bodies, limits, errors, log lines. */
import { Server as TlsServer } from 'node:tls'
import Fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  LogController,
} from 'fastify'
import { HANDSHAKE_TIMEOUT_MS } from '../../platform/open-connections.ts'
import type { Certificate } from '../../platform/read-certificate.ts'
import { answerError, closeAfter } from './answer-error.ts'
import { checkAnswers } from './check-answers.ts'
import { Connections } from './connections.ts'
import type { Answered } from './operation.ts'
import { pathPattern } from './path-pattern.ts'
import { PlainRequests, stopping } from './plain-requests.ts'
import { Rarely } from '../runtime/rarely.ts'
import {
  PATH_SEGMENT_MAX,
  allowedMethods,
  brokenHead,
  noOperation,
  withoutOrigin,
  wrongMethod,
} from '../../protocol/service/refusals.ts'

export interface ServerOptions {
  /** Bytes. */
  readonly bodyMax: number
  /** Path prefix of the service; calls without it get a message that names it. */
  readonly prefix: string
  /** Maximum time for a complete request to arrive, ms. */
  readonly requestTimeoutMs: number
  readonly logger: FastifyBaseLogger
  readonly newId: () => string
  /** PEM; null: plain HTTP. */
  readonly tls: Certificate | null
  /** Called for each undeclared response, which is sent as an internal error. Null: no checks. */
  readonly onWrongAnswer: ((error: Error) => void) | null
  /** Called for each request whose connection ends before its body is complete. */
  readonly onBrokenBody: () => void
  /** Called for each response. */
  readonly onAnswered: (answered: Answered) => void
}

export interface Server {
  readonly http: FastifyInstance
  /** Also serves operations that are added here, unless a request is unusual. */
  readonly plain: PlainRequests
  readonly closeIdle: () => void
  /** Refuses new requests with STOPPING; requests in progress continue. */
  readonly stopAccepting: () => void
  /** For new HTTPS connections. */
  readonly renewCertificate: (tls: Certificate) => void
}

/** Maximum time for request headers to arrive, ms. */
const HEAD_TIMEOUT_MS_MAX = 10_000

/** Check interval for slow requests, ms. */
const ARRIVALS_CHECKED_EVERY_MS_MAX = 5_000

/** Operations check bodies by themselves. */
function compileNothing(): never {
  throw new Error('invariant: routes have no schemas of Fastify')
}

function openFastify(options: ServerOptions, connections: Connections): FastifyInstance {
  const { requestTimeoutMs } = options
  const arrival = {
    headersTimeout: Math.min(requestTimeoutMs, HEAD_TIMEOUT_MS_MAX),
    connectionsCheckingInterval: Math.min(requestTimeoutMs, ARRIVALS_CHECKED_EVERY_MS_MAX),
    // Node would refuse a missing Host without a body.
    requireHostHeader: false,
  }
  return Fastify({
    bodyLimit: options.bodyMax,
    loggerInstance: options.logger,
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: options.newId,
    // HEAD must not trigger the effect of GET heartbeat.
    exposeHeadRoutes: false,
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: PATH_SEGMENT_MAX },
    frameworkErrors: (error, request, reply) => answerError(error, request, reply),
    requestTimeout: requestTimeoutMs,
    // Loading the compilers takes longer than the rest of the start.
    schemaController: { compilersFactory: { buildValidator: compileNothing, buildSerializer: compileNothing } },
    clientErrorHandler: connections.refuse,
    ...(options.tls === null
      ? { http: arrival }
      : {
          https: {
            ...arrival,
            handshakeTimeout: HANDSHAKE_TIMEOUT_MS,
            cert: options.tls.certificate,
            key: options.tls.key,
          },
        }),
  })
}

export function createServer(options: ServerOptions): Server {
  const connections = new Connections({ log: options.logger, onBrokenBody: options.onBrokenBody })
  const http = openFastify(options, connections)
  http.decorate('rarely', new Rarely(() => performance.now()))
  connections.watch(http)
  http.removeAllContentTypeParsers()
  // Parsed by the operation: an error here would end the connection.
  http.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => {
    done(null, body.length === 0 ? undefined : body)
  })
  http.setErrorHandler((error, request, reply) => answerError(error, request, reply))
  const state = { isStopping: false }
  const isStopping = (): boolean => state.isStopping
  refuseRequests(http, connections, { ...options, isStopping })
  if (options.onWrongAnswer !== null) checkAnswers(http, options.onWrongAnswer)
  const onAnswered = (answered: Answered, log: FastifyBaseLogger): void => {
    log.debug(answered, 'request')
    options.onAnswered(answered)
  }
  http.addHook('onResponse', ({ method, routeOptions, log }, reply, done) => {
    onAnswered({ method, route: routeOptions.url, status: reply.statusCode, ms: reply.elapsedTime }, log)
    done()
  })
  const plain = new PlainRequests(http, {
    ...options,
    isStopping,
    onAnswered: (answered) => onAnswered(answered, options.logger),
  })
  const closeIdle = (): void => {
    http.server.closeIdleConnections()
    plain.closeIdle()
  }
  return {
    http,
    plain,
    closeIdle,
    stopAccepting: () => {
      state.isStopping = true
    },
    renewCertificate: ({ certificate, key }) => {
      if (http.server instanceof TlsServer) http.server.setSecureContext({ cert: certificate, key })
    },
  }
}

interface RefusalOptions extends Pick<ServerOptions, 'prefix'> {
  readonly isStopping: () => boolean
}

/** Refuses requests without a route, or while it stops. */
function refuseRequests(http: FastifyInstance, connections: Connections, { prefix, isStopping }: RefusalOptions): void {
  const methods = new PathMethods()
  http.addHook('onRoute', ({ url, method }) => methods.add(url, [method].flat()))
  http.setNotFoundHandler((request, reply) => answerUnrouted(prefix, methods, request, reply))
  http.addHook('onRequest', (request, reply, done) => {
    const refusal = brokenHead(request.raw)
    // Node drops data right behind some upgrade requests, so later responses would be matched to the wrong request.
    if (refusal !== null || request.raw.headers.upgrade !== undefined) closeAfter(request, reply)
    if (isStopping()) done(stopping())
    else if (refusal !== null) done(refusal)
    // Before the body is read: no handler needs it.
    else if (request.is404) answerUnrouted(prefix, methods, request, reply)
    else done()
  })
  http.addHook('onSend', ({ raw }, reply, payload, done) => {
    if (isStopping() && connections.isLast(raw)) void reply.header('connection', 'close')
    done(null, payload)
  })
}

function answerUnrouted(
  prefix: string,
  methods: PathMethods,
  request: FastifyRequest,
  reply: FastifyReply,
): FastifyReply {
  const { method } = request
  const target = withoutOrigin(request.url)
  const allowed = methods.at(target)
  if (allowed.length === 0) {
    const place = target.startsWith(`${prefix}/`) ? '' : ` The service is below ${prefix}.`
    answerError(noOperation(method, place), request, reply)
    return reply
  }
  void reply.header('allow', allowedMethods(allowed))
  if (method === 'OPTIONS') return reply.code(204).send()
  answerError(wrongMethod(method), request, reply)
  return reply
}

/** Methods by path, to distinguish a wrong method from a wrong path. Reads paths as the router does. */
class PathMethods {
  readonly #routes: { readonly pattern: RegExp; readonly methods: readonly string[] }[] = []

  add(route: string, methods: readonly string[]): void {
    this.#routes.push({ pattern: pathPattern(withoutSlash(route), '[^/]+'), methods })
  }

  /** @param target of a request, without an origin, with the query; the router has refused malformed ones */
  at(target: string): readonly string[] {
    const path = withoutSlash(decodeURI(target.replace(/[?#].*$/s, '')))
    const fitting = this.#routes.filter(({ pattern }) => pattern.test(path))
    return [...new Set(fitting.flatMap(({ methods }) => methods))]
  }
}

function withoutSlash(path: string): string {
  return path.replace(/\/$/, '')
}
