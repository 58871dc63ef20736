/** HTTP client for the cloud (TCP) and the agent (Unix socket). Follows no redirects and does not retry. */
import {
  Agent,
  type IncomingHttpHeaders,
  type IncomingMessage,
  request as overHttp,
  type RequestOptions,
} from 'node:http'
import { request as overHttps } from 'node:https'
import type { z } from 'zod'
import { hostOf } from '../platform/host-of.ts'
import { type ProxyVariables, onSwitch, openAgent, proxyFor, proxyRefusal } from '../platform/outgoing.ts'
import { CodedError, type ErrorCode, errorBody, firstProblem, isErrorCode } from '../protocol/errors.ts'
import { NETWORK_REASONS } from '../protocol/network-reasons.ts'
import { parseJson } from '../protocol/parse-json.ts'
import { retryAfterMs } from '../protocol/retry-after.ts'
import { certificateReason, tlsReason } from '../protocol/tls-reason.ts'
import type { Call } from './call.ts'

export interface ClientOptions {
  /** `http://host:port/prefix`, `https://...`, or `unix:/path/to.sock`. */
  readonly address: string
  readonly headers?: Readonly<Record<string, string>>
  readonly unreachable: ErrorCode
  /** PEM of an authority that is trusted besides those of the system. */
  readonly ca?: string
  /** HTTPS_PROXY, HTTP_PROXY and NO_PROXY. Default: direct connections. */
  readonly proxy?: ProxyVariables
  /** Maximum answer that is read as a whole, bytes. Default: unlimited. */
  readonly answerMax?: number
  /** Timeout for silence of the server, default 30 s. */
  readonly timeoutMs?: number
  /** Called for each response that takes longer than {@link SLOW_MS}, with the address. */
  readonly onSlow?: (from: string) => void
}

/** Of a response that a person waits for. */
const SLOW_MS = 3_000

export interface Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly text: string
  readonly from?: string
  /** Code for a gateway that gets no response of the service. */
  readonly unreachable?: ErrorCode
}

const GATEWAY: ReadonlySet<number> = new Set([502, 503, 504])

export class HttpClient implements Disposable {
  readonly #options: ClientOptions
  readonly #agent: Agent
  readonly #send: typeof overHttp
  readonly #target: RequestOptions
  readonly #prefix: string

  constructor(options: ClientOptions) {
    this.#options = options
    const pool = { keepAlive: true, maxSockets: 1 }
    if (options.address.startsWith('unix:')) {
      this.#target = { socketPath: options.address.slice('unix:'.length), host: 'localhost' }
      this.#prefix = ''
      this.#send = overHttp
      this.#agent = new Agent(pool)
    } else {
      const url = new URL(options.address)
      const { protocol, port, pathname } = url
      this.#target = { hostname: hostOf(url), port: port === '' ? null : Number(port) }
      this.#prefix = pathname.replace(/\/+$/, '')
      this.#send = protocol === 'https:' ? overHttps : overHttp
      this.#agent = openAgent(options.address, pool, { proxy: options.proxy ?? {}, extraCa: options.ca ?? null })
    }
  }

  /** The response with any status. @throws CodedError with the code `unreachable` if there is none. */
  async call(call: Call): Promise<Answer> {
    const response = await this.#open(call)
    return this.#answer(response)
  }

  /** @throws CodedError as {@link HttpClient.text}; the iteration also throws if the connection ends early */
  async stream(call: Call): Promise<{ readonly headers: IncomingHttpHeaders; readonly pieces: AsyncIterable<Buffer> }> {
    const response = await this.#open(call)
    const status = response.statusCode ?? 0
    if (status >= 200 && status < 300) return { headers: response.headers, pieces: this.#pieces(response) }
    throw refusal(call, await this.#answer(response))
  }

  /** The text of a successful response. @throws CodedError with the service's code if it sent one. */
  async text(call: Call): Promise<string> {
    return successText(call, await this.call(call))
  }

  /** The parsed body of a successful response. @throws CodedError, as {@link HttpClient.text}, or ANSWER_UNEXPECTED */
  async json<T extends z.ZodType>(call: Call, schema: T): Promise<z.output<T>> {
    return parsedBody(call, await this.call(call), schema)
  }

  [Symbol.dispose](): void {
    this.#agent.destroy()
  }

  async #open(call: Call): Promise<IncomingMessage> {
    const body = call.body === undefined ? undefined : JSON.stringify(call.body)
    const headers = {
      ...this.#options.headers,
      ...(body === undefined ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
      ...call.headers,
    }
    const { method } = call
    const { onSlow } = this.#options
    const slow = onSlow === undefined ? undefined : setTimeout(() => onSlow(this.#from()), SLOW_MS)
    return new Promise<IncomingMessage>((resolve, reject) => {
      const request = this.#send(
        { ...this.#target, agent: this.#agent, method, path: `${this.#prefix}${call.path}`, headers },
        resolve,
      )
      request.on('error', (cause) => reject(this.#unreachable(cause)))
      onSwitch(request, (cause) => reject(this.#unreachable(cause)))
      const limitMs = call.timeoutMs ?? this.#options.timeoutMs ?? 30_000
      request.setTimeout(limitMs, () => request.destroy(new Error(`no response within ${limitMs / 1_000} s`)))
      request.end(body)
    }).finally(() => clearTimeout(slow))
  }

  async #answer(response: IncomingMessage): Promise<Answer> {
    const { statusCode: status = 0, headers } = response
    const text = await this.#read(response)
    return { status, headers, text, from: this.#from(), unreachable: this.#options.unreachable }
  }

  async *#pieces(response: IncomingMessage): AsyncGenerator<Buffer> {
    try {
      for await (const piece of response) yield piece as Buffer
    } catch (cause) {
      throw this.#unreachable(cause as Error)
    }
  }

  async #read(response: IncomingMessage): Promise<string> {
    const pieces: Buffer[] = []
    let length = 0
    for await (const piece of this.#pieces(response)) {
      length += piece.length
      if (length > (this.#options.answerMax ?? Infinity)) {
        throw this.#unreachable(new Error(`the response is larger than ${this.#options.answerMax} bytes`))
      }
      pieces.push(piece)
    }
    return Buffer.concat(pieces).toString('utf8')
  }

  /** `https://cloud.example/prefix through the proxy 10.0.0.1:3128` */
  #from(): string {
    const { address, proxy = {} } = this.#options
    const used = address.startsWith('unix:') ? null : proxyFor(address, proxy)
    return `${withoutCredentials(address)}${used === null ? '' : ` through the proxy ${used.host}`}`
  }

  #unreachable(cause: Error): CodedError {
    const { code } = cause as { code?: unknown }
    const refused = certificateReason(cause)
    const isNoHttp = typeof code === 'string' && code.startsWith('HPE_')
    const { address, unreachable } = this.#options
    const isLocal = address.startsWith('unix:')
    const known = isNoHttp ? 'the server does not speak HTTP there' : (isLocal ? SOCKET_REASONS : REASONS)[String(code)]
    const reason = proxyRefusal(cause) ?? tlsReason(cause) ?? known ?? (typeof code === 'string' ? code : cause.message)
    const isForbidden = code === 'EACCES' && isLocal
    const own = isForbidden ? 'SOCKET_NOT_PERMITTED' : unreachable
    return new CodedError(refused === null ? own : 'CERTIFICATE_REFUSED', `${this.#from()}: ${reason}.`, { cause })
  }
}

const REASONS: Readonly<Record<string, string>> = {
  ...NETWORK_REASONS,
  ENOENT: 'the socket does not exist',
  ENOTDIR: 'the socket does not exist',
  ELOOP: 'the symbolic links of its path lead in a circle',
  EACCES: 'this user may not connect',
}

const CLOSED_EARLY =
  'the connection was closed without a complete response: if the agent runs, socket.connections_max may be reached'

const SOCKET_REASONS: typeof REASONS = {
  ...REASONS,
  ECONNRESET: CLOSED_EARLY,
  EPIPE: CLOSED_EARLY,
  EINVAL: 'its path is too long for a socket',
  EAGAIN: 'the process that listens there accepts no connection, and as many as it permits are waiting',
}

function withoutCredentials(address: string): string {
  return address.replace(/\/\/[^/?#]*@/, '//')
}

function successText(call: Call, answer: Answer): string {
  if (answer.status >= 200 && answer.status < 300) return answer.text
  throw refusal(call, answer)
}

export function parsedBody<T extends z.ZodType>(call: Call, answer: Answer, schema: T): z.output<T> {
  const body = parseJson(successText(call, answer))
  if (body === undefined) {
    throw new CodedError('ANSWER_UNEXPECTED', `The response to ${requestText(call, answer)} is not JSON.`)
  }
  const parsed = schema.safeParse(body)
  if (parsed.success) return parsed.data
  throw new CodedError('ANSWER_UNEXPECTED', firstProblem(parsed.error, `${requestText(call, answer)}: answer`))
}

/** The detail `retryAfterMs` is the wait that the service asks for. */
export function refusal(call: Call, answer: Omit<Answer, 'headers'> & Partial<Answer>): CodedError {
  const { status, text, headers = {}, unreachable = 'ANSWER_UNEXPECTED' } = answer
  const waitMs = retryAfterMs(headers['retry-after'], Date.now())
  const options = waitMs === undefined ? {} : { details: { retryAfterMs: waitMs } }
  const parsed = errorBody.safeParse(parseJson(text))
  if (parsed.success && isErrorCode(parsed.data.code)) {
    const { code, message } = parsed.data
    const isUnknown = code === 'OPERATION_UNKNOWN'
    return new CodedError(code, isUnknown ? `${requestText(call, answer)}: ${message}` : message, options)
  }
  const detail = text === '' ? '' : `: ${text.slice(0, 500)}`
  const to =
    headers.location === undefined
      ? ''
      : `, a redirect to ${withoutCredentials(headers.location).replace(/[?#].*/s, '')}`
  const message = `${requestText(call, answer)} failed with HTTP status ${status}${to}${detail}`
  return new CodedError(GATEWAY.has(status) ? unreachable : 'ANSWER_UNEXPECTED', message, options)
}

function requestText({ method, path }: Call, { from }: Pick<Answer, 'from'>): string {
  return `${method} ${path}${from === undefined ? '' : ` at ${from}`}`
}
