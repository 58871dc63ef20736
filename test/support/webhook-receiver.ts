// A receiver of events over real HTTP. It checks the signature of each request by itself, and tests choose its responses.
import { type IncomingHttpHeaders, type IncomingMessage, type ServerResponse, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { randomBytes, webcrypto } from 'node:crypto'

export interface ReceivedEvent {
  readonly id: string
  readonly type: string
  readonly subject: string
  readonly time: string
  readonly sequence: string
  readonly data: Readonly<Record<string, unknown>>
  readonly [attribute: string]: unknown
}

export interface Delivery {
  readonly headers: IncomingHttpHeaders
  readonly body: string
  readonly events: readonly ReceivedEvent[]
  /** Whether the signature fits the secret. */
  readonly signed: boolean
}

/** A status, with a text and headers; or `HANG`: no response. */
type Response = number | readonly [status: number, text: string, headers?: Readonly<Record<string, string>>] | 'HANG'

export class WebhookReceiver implements AsyncDisposable {
  readonly url: string
  readonly secret = `whsec_${randomBytes(32).toString('base64')}`
  readonly deliveries: Delivery[] = []
  readonly #server: ReturnType<typeof createServer>
  /** Of each request. */
  respond: (delivery: Delivery) => Response | Promise<Response> = () => 204

  private constructor(server: ReturnType<typeof createServer>) {
    this.#server = server
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/events`
    server.on('request', (request, response) => void this.#receive(request, response))
  }

  static async start(): Promise<WebhookReceiver> {
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return new WebhookReceiver(server)
  }

  /** Acknowledged events, in order of arrival. */
  get ids(): readonly string[] {
    return this.deliveries.flatMap(({ events }) => events.map(({ id }) => id))
  }

  get events(): readonly ReceivedEvent[] {
    return this.deliveries.flatMap(({ events }) => events)
  }

  async #receive(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let body = ''
    for await (const piece of request) body += String(piece)
    const { headers } = request
    const events = JSON.parse(body) as readonly ReceivedEvent[]
    const delivery = { headers, body, events, signed: await this.#isSigned(headers, body) }
    this.deliveries.push(delivery)
    const answer = await this.respond(delivery)
    if (answer === 'HANG') return
    const [status, text, responded = {}] = typeof answer === 'number' ? [answer, ''] : answer
    const added = status === 101 ? { connection: 'upgrade', upgrade: 'other' } : responded
    response.writeHead(status, added).end(text)
  }

  /** As https://www.standardwebhooks.com says, by another implementation of the MAC than the cloud's. */
  async #isSigned(headers: IncomingHttpHeaders, body: string): Promise<boolean> {
    const bytes = Buffer.from(this.secret.slice('whsec_'.length), 'base64')
    const key = await webcrypto.subtle.importKey('raw', bytes, { name: 'HMAC', hash: 'SHA-256' }, false, ['verify'])
    const signed = Buffer.from(`${String(headers['webhook-id'])}.${String(headers['webhook-timestamp'])}.${body}`)
    for (const each of String(headers['webhook-signature']).split(' ')) {
      const signature = Buffer.from(each.replace(/^v1,/, ''), 'base64')
      if (await webcrypto.subtle.verify('HMAC', key, signature, signed)) return true
    }
    return false
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }
}
