/** Client of an external MQTT broker. While it is unreachable, notifications stay in the outbox. */
import { type IClientOptions, type MqttClient, connect } from 'mqtt'
import { brokerAddress } from '../../../platform/broker-address.ts'
import { authorities } from '../../../platform/outgoing.ts'
import {
  brokerClosed,
  brokerFailure,
  refusedTopics,
  refusesMessage,
  refusesVersion,
  topicsRefused,
} from '../../../protocol/broker-failure.ts'
import { CodedError, type ErrorCode } from '../../../protocol/errors.ts'
import { EVERY_PRESENCE } from '../../../protocol/push.ts'
import { within } from '../system/within.ts'
import type { Broker } from '../../devices/publish-notifications.ts'
import type { Log } from '../../../protocol/log.ts'

export interface ExternalBrokerOptions {
  readonly url: string
  readonly username: string | null
  readonly password: string | null
  readonly ca: string | null
  /** Unique per node: a broker allows one connection per client id. */
  readonly clientId: string
  /** Called after each connection: notifications may be waiting. */
  readonly onConnect: () => void
  /** Called for presence messages, which any client may have sent. */
  readonly onPresence: (topic: string, payload: Uint8Array) => void
  readonly acknowledgeTimeoutMs?: number
  /** Uniform in [0, 1). */
  readonly fraction: () => number
  readonly log: Pick<Log, 'info' | 'warn'>
}

/** Base of the random reconnect delay, which doubles up to the cap. A cloud has few nodes, so the cap can be short. */
const BACKOFF_BASE_MS = 1_000
const BACKOFF_CAP_MS = 5_000

const CONNECT_TIMEOUT_MS = 10_000
const ACKNOWLEDGE_TIMEOUT_MS = 10_000
const END_TIMEOUT_MS = 1_000

/** Limits for incoming data, far above any legitimate message. */
const RECEIVE_MAX = 100
const PACKET_BYTES_MAX = 4_096

/** Connects in the background. @throws CodedError CONFIG_INVALID for an invalid address */
export class ExternalBroker implements Broker {
  readonly #options: ExternalBrokerOptions
  readonly #closing = Promise.withResolvers<never>()
  #client: MqttClient
  #version: 4 | 5 = 5
  #failures = 0
  /** The problem already logged since the last successful connection. */
  #logged: ErrorCode | null = null
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(options: ExternalBrokerOptions) {
    this.#options = options
    this.#closing.promise.catch(() => undefined)
    this.#client = this.#connect()
  }

  get isConnected(): boolean {
    return !this.#isClosed && this.#client.connected
  }

  /** Resolves also if the broker refuses the message: others behind it may be permitted, and devices have their timers. */
  async publish({ topic, payload, retain }: Parameters<Broker['publish']>[0]): Promise<void> {
    if (!this.isConnected) throw new Error('the push broker is not connected')
    const client = this.#client
    const sent = client.publishAsync(topic, payload, { qos: 1, retain }).catch((error: unknown) => {
      if (!refusesMessage(error)) throw error
      this.#report(topicsRefused(this.#options.url, [topic]))
    })
    sent.catch(() => undefined)
    const { acknowledgeTimeoutMs = ACKNOWLEDGE_TIMEOUT_MS } = this.#options
    await within(acknowledgeTimeoutMs, Promise.race([sent, this.#closing.promise]), () => {
      // The connection is dead, but the network does not say so: connect again.
      client.stream.destroy()
    })
  }

  /** Ends within about a second; unacknowledged messages are rejected. */
  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    clearTimeout(this.#timer)
    const client = this.#client
    if (client.connected) await within(END_TIMEOUT_MS, client.endAsync()).catch(() => undefined)
    // A second end would have no effect while the first one waits for the broker to close its side.
    client.stream.destroy()
    this.#closing.reject(new Error('the cloud is stopping'))
  }

  #connect(): MqttClient {
    const { log, url, onPresence, onConnect } = this.#options
    const client = this.#open()
    let versionRefused = false
    let isUsable = false
    let isExplained = false
    client.on('connect', () => {
      client.subscribe(EVERY_PRESENCE, { qos: 1 }, (_error, _granted, packet) => {
        // The connection ended first.
        if (packet === undefined) return
        isUsable = true
        this.#failures = 0
        const level = this.#logged === null ? 'info' : 'warn'
        this.#logged = null
        log[level]({ url, mqtt: this.#version }, 'connected to the push broker')
        const refused = refusedTopics([EVERY_PRESENCE], packet.granted)
        if (refused.length > 0) this.#report(topicsRefused(url, refused))
      })
      onConnect()
    })
    client.on('message', onPresence)
    const explain = (error: Error): void => {
      isExplained = true
      if (!versionRefused) this.#report(brokerFailure(url, error))
    }
    client.on('error', (error) => {
      versionRefused ||= this.#version === 5 && refusesVersion(error)
      explain(error)
    })
    // Errors of a WebSocket reach only the stream.
    client.stream.on('error', explain)
    client.on('close', () => {
      client.end(true)
      if (this.#isClosed || client !== this.#client) return
      if (!isUsable && !isExplained) this.#report(brokerClosed(url))
      if (versionRefused) this.#version = 4
      this.#connectAgain(versionRefused ? 0 : this.#nextBackoffMs())
    })
    return client
  }

  #nextBackoffMs(): number {
    this.#failures += 1
    return Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** (this.#failures - 1))
  }

  /** After a random part of this time. */
  #connectAgain(withinMs: number): void {
    const connectNow = (): void => void (this.#client = this.#connect())
    this.#timer = setTimeout(connectNow, Math.floor(this.#options.fraction() * withinMs))
  }

  #report({ code, details, message }: CodedError): void {
    if (this.#logged === code || this.#isClosed) return
    this.#logged = code
    this.#options.log.warn({ code, ...details }, message)
  }

  #open(): MqttClient {
    const { url, username, password, ca, clientId } = this.#options
    const options: IClientOptions = {
      protocolVersion: this.#version,
      clientId,
      clean: true,
      // Reconnection is done here, to spread it over time.
      reconnectPeriod: 0,
      connectTimeout: CONNECT_TIMEOUT_MS,
      // The outbox keeps unsent notifications.
      queueQoSZero: false,
      // Its cache of all packet ids takes 9 MiB.
      writeCache: false,
      ...(this.#version === 5
        ? { properties: { receiveMaximum: RECEIVE_MAX, maximumPacketSize: PACKET_BYTES_MAX } }
        : {}),
      ...(username === null ? {} : { username }),
      ...(password === null ? {} : { password }),
      ...(/^(mqtts|wss):/.test(url) ? { ca: authorities(ca) } : {}),
    }
    try {
      return connect({ ...brokerAddress(url), ...options })
    } catch (cause) {
      throw new CodedError(
        'CONFIG_INVALID',
        `push.url is ${url}, which is not a valid MQTT address. Use an address such as mqtts://host:port or wss://host/path.`,
        { cause },
      )
    }
  }
}
