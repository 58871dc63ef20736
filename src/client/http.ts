/**
 * One HTTP client for both services: the twin over TCP, the agent over its Unix socket. It keeps its connections, follows
 * no redirects and repeats nothing by itself: whether a request may be sent again is the caller's knowledge.
 */
import {
  Agent,
  type IncomingHttpHeaders,
  type IncomingMessage,
  request as overHttp,
  type RequestOptions,
} from 'node:http'
import { Agent as TlsAgent, request as overHttps } from 'node:https'
import type { z } from 'zod'
import { CodedError, type ErrorCode, ERRORS, errorBody, firstProblem } from '../protocol/errors.ts'
import { parseJson } from '../protocol/parse-json.ts'

export interface ClientOptions {
  /** `http://host:port/prefix`, `https://...`, or `unix:/path/of.sock`. */
  readonly address: string
  /** Sent with every request. */
  readonly headers?: Readonly<Record<string, string>>
  /** The code of the error when nobody answers. */
  readonly unreachable: ErrorCode
  /** Most connections at a time, default 1. */
  readonly connections?: number
  /** Longest silence before a call is given up, default 30 s. */
  readonly timeoutMs?: number
}

export interface Call {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  /** Below the address: `/api/v1.1/sessions`. */
  readonly path: string
  readonly headers?: Readonly<Record<string, string>>
  /** Sent as JSON. */
  readonly body?: unknown
}

export interface Answer {
  readonly status: number
  readonly text: string
}

export class HttpClient implements Disposable {
  readonly #options: ClientOptions
  readonly #agent: Agent
  readonly #send: typeof overHttp
  readonly #target: RequestOptions
  readonly #prefix: string

  constructor(options: ClientOptions) {
    this.#options = options
    const pool = { keepAlive: true, maxSockets: options.connections ?? 1 }
    if (options.address.startsWith('unix:')) {
      this.#target = { socketPath: options.address.slice('unix:'.length), host: 'localhost' }
      this.#prefix = ''
      this.#send = overHttp
      this.#agent = new Agent(pool)
    } else {
      const { protocol, hostname, port, pathname } = new URL(options.address)
      this.#target = { hostname: hostname.replace(/^\[(.*)\]$/, '$1'), port: port === '' ? null : Number(port) }
      this.#prefix = pathname.replace(/\/+$/, '')
      this.#send = protocol === 'https:' ? overHttps : overHttp
      this.#agent = protocol === 'https:' ? new TlsAgent(pool) : new Agent(pool)
    }
  }

  /** The answer, whatever its status. @throws CodedError with the code `unreachable` when there is none. */
  async call(call: Call): Promise<Answer> {
    const response = await this.#open(call)
    return { status: response.statusCode ?? 0, text: await this.#read(response) }
  }

  /**
   * A successful answer of any length, piece by piece. @throws CodedError as {@link HttpClient.text}; so do the pieces when
   * the connection ends before the answer does
   */
  async stream(call: Call): Promise<{ readonly headers: IncomingHttpHeaders; readonly pieces: AsyncIterable<Buffer> }> {
    const response = await this.#open(call)
    const status = response.statusCode ?? 0
    if (status >= 200 && status < 300) return { headers: response.headers, pieces: this.#pieces(response) }
    throw refusal(call, { status, text: await this.#read(response) })
  }

  /** The body of a successful answer, as text. @throws CodedError, with the service's own code where it gave one. */
  async text(call: Call): Promise<string> {
    const answer = await this.call(call)
    if (answer.status >= 200 && answer.status < 300) return answer.text
    throw refusal(call, answer)
  }

  /** The parsed body of a successful answer. @throws CodedError, as {@link HttpClient.text}, or ANSWER_UNEXPECTED */
  async json<T extends z.ZodType>(call: Call, schema: T): Promise<z.output<T>> {
    const text = await this.text(call)
    const body = parseJson(text)
    if (body === undefined) {
      throw new CodedError('ANSWER_UNEXPECTED', `${call.method} ${call.path} answered something else than JSON.`)
    }
    const parsed = schema.safeParse(body)
    if (parsed.success) return parsed.data
    throw new CodedError('ANSWER_UNEXPECTED', firstProblem(parsed.error, `${call.method} ${call.path}: answer`))
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
    return new Promise((resolve, reject) => {
      const request = this.#send(
        { ...this.#target, agent: this.#agent, method, path: `${this.#prefix}${call.path}`, headers },
        resolve,
      )
      request.on('error', (cause) => reject(this.#unreachable(cause)))
      request.setTimeout(this.#options.timeoutMs ?? 30_000, () => request.destroy(new Error('no answer in time')))
      request.end(body)
    })
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
    for await (const piece of this.#pieces(response)) pieces.push(piece)
    return Buffer.concat(pieces).toString('utf8')
  }

  #unreachable(cause: Error): CodedError {
    const { code } = cause as { code?: unknown }
    const reason = typeof code === 'string' ? (REASONS[code] ?? code) : cause.message
    return new CodedError(this.#options.unreachable, `${withoutCredentials(this.#options.address)}: ${reason}.`, {
      cause,
    })
  }
}

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such socket',
  ECONNREFUSED: 'nobody listens there',
  ECONNRESET: 'the connection was cut',
  EACCES: 'this user may not connect',
  ENOTFOUND: 'there is no such host',
}

/** An address may hold a password, and a message may end in a log. */
function withoutCredentials(address: string): string {
  return address.replace(/\/\/[^/?#]*@/, '//')
}

/** A refusing answer as an error. */
export function refusal({ method, path }: Call, { status, text }: Answer): CodedError {
  const parsed = errorBody.safeParse(parseJson(text))
  if (parsed.success && isErrorCode(parsed.data.code)) return new CodedError(parsed.data.code, parsed.data.message)
  const said = text === '' ? '' : `: ${text.slice(0, 500)}`
  return new CodedError('ANSWER_UNEXPECTED', `${method} ${path} answered ${status}${said}`)
}

function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERRORS, code)
}
