/**
 * The twin's HTTP server without any route: bodies, limits, errors, log lines. Routes are registered by whoever composes it.
 */
import { Server as TlsServer } from 'node:tls'
import Fastify, { type FastifyBaseLogger, type FastifyInstance, LogController } from 'fastify'
import { CodedError } from '../../../protocol/errors.ts'
import { answerError, rawBadRequest } from './answer-error.ts'
import { checkAnswers } from './check-answers.ts'
import { parseJson } from './json.ts'

export interface ServerOptions {
  /** Largest body, bytes. */
  readonly bodyMax: number
  /** Requests under way at once; more are answered with OVERLOADED. */
  readonly requestsMax: number
  readonly logger: FastifyBaseLogger
  readonly newId: () => string
  /** PEM; null: plain HTTP. */
  readonly tls: { readonly certificate: string; readonly key: string } | null
  /** Hears of each answer that its operation does not declare, which leaves as an internal error. Null: nobody looks. */
  readonly onWrongAnswer: ((error: Error) => void) | null
}

export interface Server {
  readonly http: FastifyInstance
  /** No new requests from here on: they are answered with STOPPING. Those under way go on. */
  readonly stopAccepting: () => void
  /** For connections from here on; only of a server that speaks HTTPS. */
  readonly renewCertificate: (tls: { readonly certificate: string; readonly key: string }) => void
}

export function createServer(options: ServerOptions): Server {
  const http = Fastify({
    bodyLimit: options.bodyMax,
    loggerInstance: options.logger,
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: options.newId,
    // GET of a heartbeat has an effect.
    exposeHeadRoutes: false,
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 1_024 },
    frameworkErrors: (error, request, reply) => answerError(error, request, reply),
    clientErrorHandler: (_error, socket) => {
      if (socket.writable) socket.end(rawBadRequest())
      else socket.destroy()
    },
    ...(options.tls === null ? {} : { https: { cert: options.tls.certificate, key: options.tls.key } }),
  }) as unknown as FastifyInstance
  let stopping = false
  let underWay = 0

  http.removeAllContentTypeParsers()
  http.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => {
    try {
      done(null, body.length === 0 ? undefined : parseJson(body as Buffer))
    } catch (error) {
      done(error as Error)
    }
  })
  http.setErrorHandler((error, request, reply) => answerError(error, request, reply))
  http.setNotFoundHandler((request, reply) =>
    answerError(new CodedError('NOT_FOUND', `There is no ${request.method} on this path.`), request, reply),
  )
  http.addHook('onRequest', async (_request, reply) => {
    underWay += 1
    reply.raw.once('close', () => {
      underWay -= 1
    })
    if (stopping) throw new CodedError('STOPPING', 'The service is shutting down.')
    if (underWay > options.requestsMax) {
      throw new CodedError('OVERLOADED', `More than ${options.requestsMax} requests are under way.`)
    }
  })
  http.addHook('onSend', async (_request, reply) => {
    if (stopping) void reply.header('connection', 'close')
  })
  if (options.onWrongAnswer !== null) checkAnswers(http, options.onWrongAnswer)
  http.addHook('onResponse', async (request, reply) => {
    const { method, routeOptions } = request
    request.log.debug({ method, route: routeOptions.url, status: reply.statusCode, ms: reply.elapsedTime }, 'request')
  })
  return {
    http,
    stopAccepting: () => {
      stopping = true
    },
    renewCertificate: ({ certificate, key }) => {
      if (http.server instanceof TlsServer) http.server.setSecureContext({ cert: certificate, key })
    },
  }
}
