/** Publishes events to JetStream, which drops repeated ids within the duplicate window of its stream. Connects when needed. */
import { JetStreamApiError, type JetStreamClient, jetstream } from '@nats-io/jetstream'
import {
  type Authenticator,
  AuthorizationError,
  ConnectionError,
  type ConnectionOptions,
  InvalidArgumentError,
  type MsgHdrs,
  type NatsConnection,
  connect,
  credsAuthenticator,
  headers,
} from '@nats-io/transport-node'
import { authorities } from '../../../platform/outgoing.ts'
import type { EventGroup } from '../../../protocol/edge/events.ts'
import { CodedError, messageOf } from '../../../protocol/errors.ts'
import { tlsReason } from '../../../protocol/tls-reason.ts'
import type { OutgoingEvent } from '../../events/outgoing-event.ts'
import { BATCH_TIMEOUT_MS, EventsRejected, SEND_TIMEOUT_MS, type Sink } from '../../events/sink.ts'
import { NATS_SINK } from '../../events/sink-settings.ts'

export interface NatsOptions {
  /** `nats://host:port`, or `tls://` */
  readonly url: string
  readonly subject: string
  readonly groups: readonly EventGroup[]
  readonly username: string | null
  readonly password: string | null
  readonly credentials: string | null
  /** Additional CA certificates in PEM; null: none. */
  readonly extraCa: string | null
  readonly timeoutMs?: number
}

/** A slow line takes fewer of a device, one after the other: batches shrink until they are in time. */
const BATCH_MAX = 100

/** Name of the client's error when nothing responds, which it does not export. */
const NO_RESPONDER = 'JetStreamNotEnabled'

/** The server's code for a message that is larger than the stream takes. */
const MESSAGE_TOO_LARGE = 10_054

/** @throws CodedError CONFIG_INVALID for credentials that cannot be used */
export class NatsSink implements Sink {
  readonly kind = 'nats'
  readonly name = NATS_SINK
  readonly batchMax = BATCH_MAX
  readonly address: string
  readonly groups: readonly EventGroup[]
  readonly #options: NatsOptions
  readonly #authenticator: Authenticator | null
  readonly #closing = new AbortController()
  #connection: NatsConnection | null = null

  constructor(options: NatsOptions) {
    this.#options = options
    this.#authenticator = options.credentials === null ? null : authenticatorOf(options.credentials)
    this.groups = options.groups
    this.address = options.url
  }

  async send(events: readonly OutgoingEvent[], signal: AbortSignal): Promise<void> {
    const { timeoutMs = BATCH_TIMEOUT_MS } = this.#options
    const late = AbortSignal.timeout(timeoutMs)
    const end = AbortSignal.any([signal, this.#closing.signal, late])
    try {
      await until(end, this.#publishAll(events, end))
    } catch (error) {
      if (!late.aborted) throw error
      const what = events.length === 1 ? 'an event' : `${events.length} events`
      throw new Error(`${this.address} did not acknowledge ${what} within ${timeoutMs / 1_000} s`, { cause: error })
    }
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#connection?.close()
  }

  /** Publishes nothing more after the end: the next attempt begins again. */
  async #publishAll(events: readonly OutgoingEvent[], end: AbortSignal): Promise<void> {
    const client = jetstream(await this.#connected())
    // One after the other for each device, so that a repetition never changes their order.
    const outcomes = await Promise.allSettled(
      [...Map.groupBy(events, ({ key }) => key).values()].map(async (ofKey) => {
        for (const event of ofKey) {
          end.throwIfAborted()
          await this.#publish(client, event)
        }
      }),
    )
    const failures = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [errorOf(outcome.reason)] : []))
    // An outage comes first: the batch is repeated anyway.
    const failure = failures.find((each) => !(each instanceof EventsRejected)) ?? failures[0]
    if (failure !== undefined) throw failure
  }

  async #publish(client: JetStreamClient, { id, type, key, json }: OutgoingEvent): Promise<void> {
    const subject = `${this.#options.subject}.${type}.${key.replaceAll(/[^\w-]/g, '_')}`
    try {
      await client.publish(subject, json, { msgID: id, headers: contentType(), timeout: SEND_TIMEOUT_MS })
    } catch (error) {
      if (error instanceof Error && error.name === NO_RESPONDER) {
        throw new Error(`No stream takes ${subject}, or the server has no JetStream`, { cause: error })
      }
      const isTooLarge = error instanceof JetStreamApiError && error.code === MESSAGE_TOO_LARGE
      if (isTooLarge || error instanceof InvalidArgumentError) throw new EventsRejected(messageOf(error))
      if (error instanceof JetStreamApiError)
        throw new Error(`${this.address} refuses an event: ${error.message}`, { cause: error })
      const reason = `the connection ended, or the server is too busy (${messageOf(error)})`
      throw new Error(`${this.address} did not acknowledge an event: ${reason}`, { cause: error })
    }
  }

  async #connected(): Promise<NatsConnection> {
    if (this.#connection !== null && !this.#connection.isClosed()) return this.#connection
    const connection = await connect(this.#connectionOptions()).catch((cause: unknown) => {
      throw new Error(this.#refusal(cause), { cause })
    })
    if (this.#closing.signal.aborted) await connection.close()
    this.#connection = connection
    return connection
  }

  #refusal(cause: unknown): string {
    const { address } = this
    if (cause instanceof AuthorizationError)
      return `${address} refuses the cloud: check its user name and password, or its credentials (events.nats_…)`
    const reason = tlsReason(cause)
    // The client then uses TLS without `events.ca_file`.
    if (reason !== null && address.startsWith('nats:'))
      return `${address} requires TLS: write tls:// in events.nats_url`
    const text = isClosedEarly(cause) ? CLOSED_EARLY : messageOf(cause)
    return `${address} cannot be reached: ${reason ?? text}`
  }

  #connectionOptions(): ConnectionOptions & { readonly tls?: { readonly ca: string } } {
    const { url, username, password, extraCa } = this.#options
    const isSecure = url.startsWith('tls:')
    return {
      servers: url.replace(/^tls:/, 'nats:'),
      name: 'tallygate',
      timeout: SEND_TIMEOUT_MS,
      maxReconnectAttempts: -1,
      ...(username === null ? {} : { user: username }),
      ...(password === null ? {} : { pass: password }),
      ...(this.#authenticator === null ? {} : { authenticator: this.#authenticator }),
      ...(isSecure ? { tls: { ca: authorities(extraCa).join('\n') } } : {}),
    }
  }
}

const CLOSED_EARLY =
  'the connection was closed before a NATS server responded: the server is starting or stopping, or another program listens there'

/** The client then has no error, and reports that. */
function isClosedEarly(cause: unknown): boolean {
  return cause instanceof ConnectionError && cause.message.endsWith('undefined error')
}

function authenticatorOf(credentials: string): Authenticator {
  const authenticator = credsAuthenticator(Buffer.from(credentials))
  try {
    authenticator('any nonce')
    return authenticator
  } catch {
    // The error may contain a part of the secret.
    throw new CodedError(
      'CONFIG_INVALID',
      'events.nats_credentials_file must contain a JWT and a seed, as `nsc generate creds` prints them.',
    )
  }
}

function contentType(): MsgHdrs {
  const made = headers()
  made.set('content-type', 'application/cloudevents+json')
  return made
}

function errorOf(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error(messageOf(reason))
}

async function until<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  const stopped = Promise.withResolvers<never>()
  const stop = (): void => stopped.reject(new Error('stopped'))
  signal.addEventListener('abort', stop, { once: true })
  if (signal.aborted) stop()
  try {
    return await Promise.race([work, stopped.promise])
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
