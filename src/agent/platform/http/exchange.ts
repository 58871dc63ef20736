/** One HTTP request and its complete response, within limits; no redirects, no retries. */
import { type Agent, type IncomingMessage, request as requestPlain } from 'node:http'
import { request as requestTls } from 'node:https'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { type Outgoing, onSwitch, openAgent, proxyFor, proxyRefusal } from '../../../platform/outgoing.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { NETWORK_REASONS } from '../../../protocol/network-reasons.ts'
import { tlsReason } from '../../../protocol/tls-reason.ts'

export interface HttpRequest {
  readonly method: 'GET' | 'POST' | 'DELETE'
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | null
  /** The server accepts gzip; used for long bodies. */
  readonly compress: boolean
  readonly signal: AbortSignal
}

export interface HttpAnswer {
  readonly status: number
  /** Names in lower case; the first value of a repeated header. */
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly body: string
}

/** @throws CodedError CLOUD_UNREACHABLE, with the errno in the detail `network`, or ANSWER_UNEXPECTED for a body above the limit */
export type HttpExchange = (request: HttpRequest) => Promise<HttpAnswer>

export interface ExchangeOptions extends Outgoing {
  /** Longest silence of the server, including the time to connect, ms. */
  readonly silenceMs: number
  /** Longest duration, ms, in addition to the time for the bodies at {@link BYTES_PER_S_MIN}. */
  readonly durationMs: number
  readonly wholeMs: number
  readonly answerBytesMax: number
}

export const EXCHANGE_DEFAULTS: ExchangeOptions = {
  silenceMs: 30_000,
  durationMs: 60_000,
  wholeMs: 30 * 60_000,
  answerBytesMax: 16 * 1024 * 1024,
  proxy: {},
  extraCa: null,
}

/** A slow line that still carries a long body. */
const BYTES_PER_S_MIN = 1_024

const COMPRESS_FROM_BYTES = 2_048

const gzipped = promisify(gzip)

/** Idle timeout of kept connections, ms; shorter than that of servers and gateways. */
const IDLE_MS = 4_000

export interface Exchange {
  readonly exchange: HttpExchange
  readonly close: () => void
}

export function createExchange(options: ExchangeOptions): Exchange {
  const pool = { keepAlive: true, maxSockets: 4, timeout: IDLE_MS }
  const agents = new Map<string, Agent>()
  const agentOf = ({ url }: HttpRequest): Agent => {
    const { origin } = new URL(url)
    const agent = agents.get(origin) ?? openAgent(url, pool, options)
    agents.set(origin, agent)
    return agent
  }
  return {
    exchange: async (request) => {
      try {
        return await send(request, options, agentOf(request))
      } catch (cause) {
        if (cause instanceof CodedError) throw cause
        throw unreachable(request, options, cause)
      }
    },
    close: () => agents.forEach((agent) => agent.destroy()),
  }
}

async function send(request: HttpRequest, options: ExchangeOptions, agent: Agent): Promise<HttpAnswer> {
  const { method, url, signal } = request
  const { bytes, headers } = await encode(request)
  const common = { method, headers, signal, agent, timeout: options.silenceMs }
  const deadline = new Deadline(options, bytes?.byteLength ?? 0)
  const answered = new Promise<HttpAnswer>((resolve, reject) => {
    const take = (answer: IncomingMessage): void => {
      read(answer, options.answerBytesMax, deadline).then(resolve, (error: unknown) => {
        sending.destroy()
        reject(error instanceof Error ? error : new Error('the response was interrupted', { cause: error }))
      })
    }
    const sending = url.startsWith('https:') ? requestTls(url, common, take) : requestPlain(url, common, take)
    const giveUp = (reason: string): void =>
      void sending.destroy(Object.assign(new Error(reason), { code: 'ETIMEDOUT' }))
    sending.on('timeout', () => giveUp('silence'))
    onSwitch(sending, reject)
    sending.on('error', reject)
    deadline.start(() => giveUp('the exchange took too long'))
    sending.end(bytes ?? undefined)
  })
  return answered.finally(() => deadline.stop())
}

/** Moves on with each byte of the bodies, up to the longest duration. */
class Deadline {
  readonly #options: ExchangeOptions
  readonly #startedAt = performance.now()
  #bytes: number
  #timer: NodeJS.Timeout | undefined

  constructor(options: ExchangeOptions, bytes: number) {
    this.#options = options
    this.#bytes = bytes
  }

  start(onPassed: () => void): void {
    const { durationMs, wholeMs } = this.#options
    const allowedMs = Math.min(wholeMs, durationMs + (this.#bytes / BYTES_PER_S_MIN) * 1_000)
    const leftMs = Math.ceil(allowedMs - (performance.now() - this.#startedAt))
    if (leftMs <= 0) onPassed()
    else this.#timer = setTimeout(() => this.start(onPassed), leftMs)
  }

  received(bytes: number): void {
    this.#bytes += bytes
  }

  stop(): void {
    clearTimeout(this.#timer)
  }
}

async function encode({ body, headers, compress }: HttpRequest) {
  if (body === null) return { bytes: null, headers }
  const plain = Buffer.from(body, 'utf8')
  if (!compress || plain.byteLength < COMPRESS_FROM_BYTES) {
    return { bytes: plain, headers: { ...headers, 'content-length': String(plain.byteLength) } }
  }
  const bytes = await gzipped(plain)
  return {
    bytes,
    headers: { ...headers, 'content-encoding': 'gzip', 'content-length': String(bytes.byteLength) },
  }
}

async function read(answer: IncomingMessage, most: number, deadline: Deadline): Promise<HttpAnswer> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    size += chunk.byteLength
    deadline.received(chunk.byteLength)
    if (size > most) {
      throw new CodedError('ANSWER_UNEXPECTED', `The response is larger than ${most} bytes.`, {
        details: { limit: most },
      })
    }
    chunks.push(chunk)
  }
  if (!answer.complete) throw Object.assign(new Error('the response is incomplete'), { code: 'ECONNRESET' })
  const headers: Record<string, string | undefined> = {}
  for (const [name, values] of Object.entries(answer.headersDistinct)) headers[name] = values?.[0]
  return { status: answer.statusCode ?? 0, headers, body: Buffer.concat(chunks).toString('utf8') }
}

function unreachable({ url, signal }: HttpRequest, { proxy }: Outgoing, cause: unknown): CodedError {
  const { host } = new URL(url)
  const network = signal.aborted ? 'ABORTED' : errnoOf(cause)
  const used = proxyFor(url, proxy)
  const way = used === null ? '' : ` through the proxy ${used.host}`
  return new CodedError('CLOUD_UNREACHABLE', `The cloud at ${host} ${problemOf(cause, way, network)}`, {
    cause,
    details: { host, network, ...(used === null ? {} : { proxy: used.host }) },
  })
}

const OUTSIDE_OF_ITS_TIME = ['CERT_NOT_YET_VALID', 'CERT_HAS_EXPIRED']

/** @param way through a proxy; empty: direct */
function problemOf(cause: unknown, way: string, network: string): string {
  const refusal = proxyRefusal(cause)
  if (refusal !== null) {
    return `cannot be reached${way}: ${refusal}. Check proxy.url, proxy.credentials_file and HTTPS_PROXY.`
  }
  const tls = tlsReason(cause)
  if (tls !== null) {
    // A device that starts with a wrong clock, for example without a battery, has the same error.
    const check = OUTSIDE_OF_ITS_TIME.includes(network)
      ? `the clock of this device, which says ${new Date().toISOString().slice(0, 10)}, and the certificate of the cloud`
      : 'the certificate of the cloud, tls.ca_file and the clock of this device'
    return `cannot be reached${way}: ${tls}. Check ${check}.`
  }
  const known = NETWORK_REASONS[network]
  const problem = known === undefined ? `does not respond${way}` : `cannot be reached${way}: ${known}`
  return `${problem} (${network}).${way === '' ? '' : ' Check the proxy.'}`
}

function errnoOf(error: unknown): string {
  for (let at = error; at instanceof Error; at = at.cause) {
    const { code } = at as { code?: unknown }
    if (typeof code === 'string') return code
    if (at.name === 'TimeoutError') return 'ETIMEDOUT'
  }
  return error instanceof Error ? error.name : 'unknown'
}
