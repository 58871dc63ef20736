/** Metrics reveal sales and load: without a token, only local clients read them at the cloud's own address. */
import { hash, timingSafeEqual } from 'node:crypto'
import { type IncomingHttpHeaders, type IncomingMessage, type ServerResponse, createServer } from 'node:http'
import type { Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { z } from 'zod'
import { hostInUrl } from '../../../platform/host-of.ts'
import { isLoopback, isLoopbackName } from '../../../platform/is-loopback.ts'
import { listenOn } from '../../../platform/listen-on.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { brokenHead } from '../../../protocol/service/refusals.ts'
import type { AccessResponse } from '../../../protocol/service/access-request.ts'
import type { ApiVersion } from '../../../protocol/service/status.ts'
import { answerError, rawRefusal } from '../../http/answer-error.ts'
import { declaredAnswers } from '../../http/declared-answers.ts'
import type { Operation } from '../../http/operation.ts'
import type { Metrics, MetricsSource } from './metrics.ts'

export const METRICS_PATH = '/metrics'

const MEDIA_TYPE = 'text/plain'

export function countDecisions(operations: readonly Operation[], metrics: Metrics): readonly Operation[] {
  const counted = (operation: Operation): Operation => ({
    ...operation,
    handle: async (call) => {
      const answer = await operation.handle(call)
      const { requestedItems = [] } = (answer.body ?? {}) as Partial<AccessResponse>
      for (const { status } of requestedItems) metrics.decision(call.version as ApiVersion, status.code)
      return answer
    },
  })
  return operations.map((operation) => (operation.decides === true ? counted(operation) : operation))
}

/** On the cloud's own server. @param token null: local clients only */
export function registerMetrics(http: FastifyInstance, metrics: MetricsSource, token: string | null): void {
  const form = { description: 'The text format of Prometheus.', body: z.string(), mediaType: MEDIA_TYPE }
  const answers = declaredAnswers('GET', { 200: form }, [])
  http.get(METRICS_PATH, { config: { answers } }, async (request, reply) => {
    try {
      requireReader(request.headers, request.socket.remoteAddress, token)
      const text = await metrics.text()
      void reply.type(metrics.contentType).send(text)
    } catch (error) {
      answerError(error, request, reply)
    }
    return reply
  })
}

/**
 * Without TLS, for a monitoring network.
 * @param token null: every client that reaches the address may read, except for web pages on a loopback address
 * @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED
 */
export async function listenForMetrics(
  place: { readonly host: string; readonly port: number },
  metrics: MetricsSource,
  token: string | null,
  onFault: (error: unknown) => void,
): Promise<{ readonly origin: string; readonly close: () => Promise<void> }> {
  const server = createServer({
    requestTimeout: 10_000,
    headersTimeout: 10_000,
    maxHeaderSize: 16 * 1024,
    // Refused with a code instead.
    requireHostHeader: false,
  })
  server.maxConnections = 64
  const receive = (request: IncomingMessage, response: ServerResponse): void => {
    answer(request, place.host, metrics, token).then(
      ({ status, type, text }) => response.writeHead(status, { 'content-type': type }).end(text),
      (error: unknown) => {
        onFault(error)
        response.writeHead(500).end()
      },
    )
  }
  server.on('request', receive).on('checkExpectation', receive)
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => {
    if (error.code === 'ECONNRESET' || !socket.writable) socket.destroy()
    else socket.end(rawRefusal(error.code))
  })
  const { address, port } = await listenOn(server, place, 'metrics.listen')
  server.on('error', onFault)
  return {
    origin: `http://${hostInUrl(address)}:${port}`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

async function answer(
  request: IncomingMessage,
  host: string,
  metrics: MetricsSource,
  token: string | null,
): Promise<{ readonly status: number; readonly type: string; readonly text: string }> {
  const { method, url = '', headers } = request
  try {
    const broken = brokenHead(request)
    if (broken !== null) throw broken
    if (method !== 'GET' || url.split('?', 1)[0] !== METRICS_PATH) {
      throw new CodedError('OPERATION_UNKNOWN', `Metrics are at GET ${METRICS_PATH}.`)
    }
    if (token !== null) requireToken(headers, token)
    else if (isLoopback(host)) requireLoopbackName(headers)
    return { status: 200, type: metrics.contentType, text: await metrics.text() }
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    const { message, code } = error
    return { status: error.httpStatus, type: 'application/json', text: JSON.stringify({ message, code }) }
  }
}

/** Headers that reveal a forwarded request. */
const FORWARDED = ['forwarded', 'x-forwarded-for', 'x-real-ip', 'via']

function requireReader(headers: IncomingHttpHeaders, peer: string | undefined, token: string | null): void {
  if (token !== null) {
    requireToken(headers, token)
    return
  }
  const isLocal = peer !== undefined && isLoopback(peer)
  if (isLocal && FORWARDED.every((name) => headers[name] === undefined)) {
    requireLoopbackName(headers)
    return
  }
  throw new CodedError(
    'TOKEN_MISSING',
    'Metrics are available on this machine, or with the token in metrics.token_file.',
  )
}

function requireLoopbackName({ host }: IncomingHttpHeaders): void {
  if (isLoopbackName(host)) return
  throw new CodedError(
    'BAD_REQUEST',
    'The Host header does not name this machine. Use 127.0.0.1 or localhost, or set metrics.token_file and send the token.',
  )
}

function requireToken({ authorization }: IncomingHttpHeaders, token: string): void {
  const given = /^Bearer +(\S+)$/i.exec(authorization ?? '')?.[1]
  if (given === undefined)
    throw new CodedError('TOKEN_MISSING', 'Send the token in metrics.token_file as a bearer token.')
  if (!timingSafeEqual(hash('sha256', given, 'buffer'), hash('sha256', token, 'buffer'))) {
    throw new CodedError('TOKEN_INVALID', 'The token is wrong. Use the token in metrics.token_file.')
  }
}
