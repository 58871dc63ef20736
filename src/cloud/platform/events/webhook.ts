/** Sends batches of CloudEvents with a signature of Standard Webhooks (https://www.standardwebhooks.com). */
import { createHmac, hash } from 'node:crypto'
import { type Agent, type IncomingMessage, request as plainRequest } from 'node:http'
import { request as tlsRequest } from 'node:https'
import { onSwitch, openAgent, type Outgoing, proxyRefusal } from '../../../platform/outgoing.ts'
import type { EventGroup } from '../../../protocol/edge/events.ts'
import type { OutgoingEvent } from '../../events/outgoing-event.ts'
import { EventsRejected, SEND_TIMEOUT_MS, SinkUnavailable, type Sink } from '../../events/sink.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import { retryAfterMs } from '../../../protocol/retry-after.ts'
import { printable } from '../../../protocol/sign-in.ts'
import { tlsReason } from '../../../protocol/tls-reason.ts'

export interface WebhookOptions extends Outgoing {
  readonly name: string
  readonly url: string
  readonly groups: readonly EventGroup[]
  readonly secrets: readonly Uint8Array[]
  readonly token: string | null
  readonly now: () => number
  readonly timeoutMs?: number
}

/** The receiver has read the events and will never take them. All other responses but 2xx can end without a change of the event. */
const REJECTING: ReadonlySet<number> = new Set([400, 409, 410, 413, 422])

/** Also the limit of other receivers, such as Lago. */
const BATCH_MAX = 100

const DIGEST_SHOWN = 16

const RESPONSE_BYTES_READ = 1_024
const RESPONSE_SHOWN = 200

/** A longer response ends its connection. */
const RESPONSE_BYTES_MAX = 64 * 1_024

/** Shorter values of a query are no secrets, and part of many words. */
const HIDDEN_LENGTH_MIN = 8

const SECRET_BYTES_MIN = 24
const SECRETS_MAX = 5

/** Lines `whsec_<base64>`. @throws CodedError CONFIG_INVALID, which does not show them */
export function parseSecrets(text: string, file: string): readonly Uint8Array[] {
  const lines = text.split('\n').map((line) => line.trim())
  const given = lines.filter((line) => line !== '')
  const secrets = given.map((line) => (/^whsec_[A-Za-z0-9+/]+={0,2}$/.test(line) ? line.slice('whsec_'.length) : ''))
  const keys = secrets.map((secret) => Buffer.from(secret, 'base64'))
  if (keys.length >= 1 && keys.length <= SECRETS_MAX && keys.every(({ length }) => length >= SECRET_BYTES_MIN))
    return keys
  throw new CodedError(
    'CONFIG_INVALID',
    `${file} must contain one to ${SECRETS_MAX} lines, each with whsec_ and the base64 of at least ${SECRET_BYTES_MIN} random bytes.`,
  )
}

/** @throws CodedError CONFIG_INVALID for a proxy that cannot be used */
export class WebhookSink implements Sink {
  readonly kind = 'webhook'
  readonly batchMax = BATCH_MAX
  readonly name: string
  readonly address: string
  readonly groups: readonly EventGroup[]
  readonly #options: WebhookOptions
  readonly #agent: Agent
  /** Not shown, although a response may repeat them. */
  readonly #hidden: readonly string[]

  constructor(options: WebhookOptions) {
    this.#options = options
    this.name = options.name
    const { origin, pathname, search, searchParams } = new URL(options.url)
    // A query may be a secret.
    this.address = `${origin}${pathname}`
    const written = search.slice(1).split('&')
    const values = [...searchParams.values(), ...written.map((each) => each.replace(/^[^=]*=/, ''))]
    const secrets = [...values, options.token ?? ''].filter(({ length }) => length >= HIDDEN_LENGTH_MIN)
    // Longest first: one may begin with another.
    this.#hidden = secrets.toSorted((a, b) => b.length - a.length)
    this.groups = options.groups
    this.#agent = openAgent(options.url, { keepAlive: true, maxSockets: 1 }, options)
  }

  async send(events: readonly OutgoingEvent[], signal: AbortSignal): Promise<void> {
    const [first, last] = [events[0], events.at(-1)]
    if (first === undefined || last === undefined) return
    const body = `[${events.map(({ json }) => json).join(',')}]`
    // Positions alone do not name a body: the settings decide which events between them are sent.
    const id = `${this.name}-${first.position}-${last.position}-${hash('sha256', body).slice(0, DIGEST_SHOWN)}`
    const { now, timeoutMs = SEND_TIMEOUT_MS } = this.#options
    const end = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)])
    const { status, text, retryAfter } = await this.#post(body, this.#headersOf(id, body), end)
    if (isAccepted(status)) return
    const problem = `${this.address} responded with ${status}${text === '' ? '' : `: ${text}`}`
    if (REJECTING.has(status)) throw new EventsRejected(problem)
    throw new SinkUnavailable(problem, retryAfterMs(retryAfter, now()) ?? 0)
  }

  async close(): Promise<void> {
    this.#agent.destroy()
  }

  #headersOf(id: string, body: string): Readonly<Record<string, string>> {
    const { now, secrets, token } = this.#options
    const timestamp = Math.floor(now() / 1_000)
    const signed = `${id}.${timestamp}.${body}`
    const signatures = secrets.map((secret) => createHmac('sha256', secret).update(signed).digest('base64'))
    return {
      'content-type': 'application/cloudevents-batch+json; charset=utf-8',
      'content-length': String(Buffer.byteLength(body)),
      'user-agent': 'tallygate',
      'webhook-id': id,
      'webhook-timestamp': String(timestamp),
      'webhook-signature': signatures.map((signature) => `v1,${signature}`).join(' '),
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
    }
  }

  #post(body: string, headers: Readonly<Record<string, string>>, signal: AbortSignal): Promise<Responded> {
    const { url } = this.#options
    const send = url.startsWith('https:') ? tlsRequest : plainRequest
    return new Promise((resolve, reject) => {
      let status = 0
      const fail = (error: Error): void => {
        if (isAccepted(status)) resolve({ status, text: '', retryAfter: undefined })
        else reject(this.#failure(error, signal))
      }
      const request = send(url, { method: 'POST', agent: this.#agent, headers, signal }, (response) => {
        status = response.statusCode ?? 0
        const retryAfter = response.headers['retry-after']
        readStart(response, this.#hidden).then((text) => resolve({ status, text, retryAfter }), fail)
      })
      request.on('error', fail)
      onSwitch(request, reject)
      request.end(body)
    })
  }

  #failure(cause: Error, signal: AbortSignal): Error {
    if (signal.aborted) return new Error(`${this.address} did not respond in time`, { cause })
    const reason = proxyRefusal(cause) ?? tlsReason(cause) ?? messageOf(cause)
    return new Error(`${this.address} cannot be reached: ${reason}`, { cause })
  }
}

interface Responded {
  readonly status: number
  readonly text: string
  readonly retryAfter: string | undefined
}

/** The receiver has the events, also if the text of its response does not come. */
function isAccepted(status: number): boolean {
  return status >= 200 && status < 300
}

/** The rest is read, so that the connection can be used again, but neither kept nor read without end. */
async function readStart(response: IncomingMessage, hidden: readonly string[]): Promise<string> {
  const pieces: Buffer[] = []
  let size = 0
  for await (const piece of response as AsyncIterable<Buffer>) {
    if (size < RESPONSE_BYTES_READ) pieces.push(piece.subarray(0, RESPONSE_BYTES_READ - size))
    size += piece.length
    if (size > RESPONSE_BYTES_MAX) break
  }
  const text = Buffer.concat(pieces).toString('utf8')
  return printable(hidden.reduce(withoutSecret, text), RESPONSE_SHOWN)
}

/** Also without the start of a secret at the end of the text, which may be cut. */
function withoutSecret(text: string, secret: string): string {
  const rest = text.replaceAll(secret, '…')
  for (let length = Math.min(secret.length, rest.length); length >= HIDDEN_LENGTH_MIN; length -= 1) {
    if (rest.endsWith(secret.slice(0, length))) return `${rest.slice(0, -length)}…`
  }
  return rest
}
