/** Change notifications over MQTT 5, or 3.1.1. Each connection has a fresh token and a clean session. */
import { connect, type IClientOptions, type MqttClient } from 'mqtt'
import type { ClientOptions } from 'ws'
import { brokerAddress } from '../../../platform/broker-address.ts'
import { type Outgoing, authorities, openAgent, proxyFor, proxyRefusal } from '../../../platform/outgoing.ts'
import {
  brokerClosed,
  brokerFailure,
  refusedTopics,
  refusesVersion,
  topicsRefused,
} from '../../../protocol/broker-failure.ts'
import { PacketMeter } from '../../../protocol/mqtt-framing.ts'
import { deviceTopic, policyTopic, presence, presenceTopic } from '../../../protocol/push.ts'
import type { CodedError } from '../../../protocol/errors.ts'
import { backoff, type BackoffLimits } from '../../sync/backoff.ts'
import type { Push, PushOptions } from '../../sync/push.ts'

export interface MqttPushOptions extends Outgoing {
  /** For a broker with its own users; null: device id and device token. */
  readonly username: string | null
  readonly password: string | null
  readonly keepaliveS: number
  readonly connectTimeoutMs: number
  readonly backoff: BackoffLimits
  /** A connection that lasted this long, ms, resets the reconnect delay. */
  readonly stableMs: number
  readonly pause: (ms: number, signal: AbortSignal) => Promise<void>
  readonly fraction: () => number
  /** Monotonic, ms. */
  readonly now: () => number
}

export const MQTT_DEFAULTS = {
  proxy: {},
  username: null,
  password: null,
  keepaliveS: 60,
  connectTimeoutMs: 15_000,
  backoff: { baseMs: 1_000, capMs: 5 * 60_000 },
  stableMs: 60_000,
} as const satisfies Partial<MqttPushOptions>

/** Far above any notification; a longer message is truncated to nothing and counted as malformed. */
const MESSAGE_BYTES_MAX = 8 * 1024

/** Longest packet; on a longer one the agent disconnects before buffering it. */
const PACKET_BYTES_MAX = 64 * 1024

const RECEIVE_MAX = 16

/** How long a clean stop waits for the broker to acknowledge the goodbye and to close the connection, ms. */
const OFFLINE_TIMEOUT_MS = 1_000

type Version = 4 | 5

export function createMqttPush(options: MqttPushOptions): Push {
  return {
    async run(target, signal) {
      let version: Version = 5
      let failures = 0
      while (!signal.aborted) {
        const attempt = { version, password: options.password ?? (await target.password()) }
        const { versionRefused, lastedMs } = await holdConnection(options, target, attempt, signal)
        if (versionRefused) {
          version = 4
          continue
        }
        failures = lastedMs >= options.stableMs ? 1 : failures + 1
        await options.pause(backoff(failures, 0, options.fraction(), options.backoff), signal)
      }
    },
  }
}

interface Ended {
  readonly versionRefused: boolean
  /** How long the connection was usable, ms; 0 if it never was. */
  readonly lastedMs: number
}

const NEVER_USABLE: Ended = { versionRefused: false, lastedMs: 0 }

interface Attempt {
  readonly version: Version
  readonly password: string
}

async function holdConnection(
  options: MqttPushOptions,
  target: PushOptions,
  attempt: Attempt,
  signal: AbortSignal,
): Promise<Ended> {
  const client = connectOrNot(options, target, attempt)
  if (client === undefined) return NEVER_USABLE
  if (signal.aborted) {
    client.on('error', () => undefined).end(true)
    return NEVER_USABLE
  }
  return new BrokerConnection(options, target, client).untilClosed(attempt.version, signal)
}

class BrokerConnection {
  readonly #options: MqttPushOptions
  readonly #target: PushOptions
  readonly #client: MqttClient
  readonly #lateTimer: NodeJS.Timeout
  /** Since the broker confirmed subscriptions; null before that. */
  #usableSince: number | null = null
  #versionRefused = false
  #trouble: CodedError | null = null
  /** The agent ended the connection because of what the broker did: reported even after the connection was usable. */
  #isGivenUp = false

  constructor(options: MqttPushOptions, target: PushOptions, client: MqttClient) {
    this.#options = options
    this.#target = target
    this.#client = client
    this.#lateTimer = setTimeout(() => {
      this.#giveUp(LATE)
      client.end(true)
    }, options.connectTimeoutMs)
  }

  untilClosed(version: Version, signal: AbortSignal): Promise<Ended> {
    const client = this.#client
    const { url, deviceId, onMessage } = this.#target
    const leave = (): void => void publishOffline(client, deviceId)
    signal.addEventListener('abort', leave, { once: true })
    this.#limitPackets()
    client.on('connect', () => this.#subscribe())
    client.on('message', (topic, payload) => {
      onMessage(topic, payload.byteLength > MESSAGE_BYTES_MAX ? '' : payload.toString('utf8'))
    })
    client.on('error', (error) => {
      this.#versionRefused ||= version === 5 && refusesVersion(error)
      if (!this.#versionRefused) this.#trouble = brokerFailure(url, error)
    })
    // Errors of a WebSocket reach only the stream.
    client.stream.on('error', (error: Error) => {
      this.#trouble ??= brokerFailure(url, withProxy(url, this.#options, error))
    })
    return new Promise((resolve) => {
      client.on('close', () => {
        signal.removeEventListener('abort', leave)
        resolve(this.#close(signal))
      })
    })
  }

  #limitPackets(): void {
    const { stream } = this.#client
    const meter = new PacketMeter(PACKET_BYTES_MAX)
    stream.on('data', (chunk: Buffer) => {
      if (this.#isGivenUp || meter.take(chunk)) return
      this.#giveUp(FLOODED)
      stream.destroy()
    })
  }

  #giveUp(reason: Error): void {
    this.#isGivenUp = true
    this.#trouble = brokerFailure(this.#target.url, reason)
  }

  #subscribe(): void {
    const { url, deviceId, instanceIds } = this.#target
    const topics = [deviceTopic(deviceId), ...instanceIds.map(policyTopic)]
    this.#client.subscribe(topics, { qos: 1 }, (error, _granted, packet) => {
      if (this.#isGivenUp) return
      const granted = packet?.granted ?? []
      const refused = refusedTopics(topics, granted)
      if (refused.length > 0) {
        this.#trouble = granted.length > 0 ? topicsRefused(url, refused) : brokerFailure(url, error)
      }
      if (refused.length === topics.length) this.#client.end(true)
      else this.#becomeUsable()
    })
  }

  #becomeUsable(): void {
    const { deviceId, onConnection, onTrouble } = this.#target
    clearTimeout(this.#lateTimer)
    this.#usableSince = this.#options.now()
    this.#client.publish(presenceTopic(deviceId), presenceOf(true), { qos: 1, retain: true })
    onConnection(true)
    if (this.#trouble !== null) onTrouble(this.#trouble)
  }

  #close(signal: AbortSignal): Ended {
    const { url, onConnection, onTrouble } = this.#target
    const usableSince = this.#usableSince
    const versionRefused = this.#versionRefused
    clearTimeout(this.#lateTimer)
    this.#client.end(true)
    if (usableSince !== null) onConnection(false)
    const hasFailed = usableSince === null && !versionRefused && !signal.aborted
    if (this.#isGivenUp || hasFailed) onTrouble(this.#trouble ?? brokerClosed(url))
    return { versionRefused, lastedMs: usableSince === null ? 0 : this.#options.now() - usableSince }
  }
}

const LATE = Object.assign(new Error('the broker does not confirm the subscriptions'), { code: 'ETIMEDOUT' })
const FLOODED = new Error(`the broker sends packets larger than ${PACKET_BYTES_MAX} bytes`)

function withProxy(url: string, { proxy }: Outgoing, error: Error): Error {
  const used = proxyFor(url, proxy)
  if (used === null) return error
  const reason = proxyRefusal(error) ?? error.message
  return Object.assign(new Error(`${reason}, through the proxy ${used.host}`, { cause: error }), {
    code: (error as { code?: unknown }).code,
  })
}

/** Undefined for an address that the MQTT client does not understand. */
function connectOrNot(options: MqttPushOptions, target: PushOptions, attempt: Attempt): MqttClient | undefined {
  try {
    return connect(clientOptions(options, target, attempt))
  } catch (error) {
    target.onTrouble(brokerFailure(target.url, error))
    return undefined
  }
}

function clientOptions(
  { proxy, extraCa, username, keepaliveS, connectTimeoutMs }: MqttPushOptions,
  { url, deviceId }: PushOptions,
  { version, password }: Attempt,
): IClientOptions {
  return {
    ...brokerAddress(url),
    protocolVersion: version,
    clientId: deviceId,
    username: username ?? deviceId,
    password,
    clean: true,
    keepalive: keepaliveS,
    connectTimeout: connectTimeoutMs,
    // This module reconnects itself: each attempt needs a fresh token.
    reconnectPeriod: 0,
    resubscribe: false,
    queueQoSZero: false,
    // Its cache of all packet ids takes 9 MiB.
    writeCache: false,
    will: { topic: presenceTopic(deviceId), payload: Buffer.from(presenceOf(false)), qos: 1, retain: true },
    ...(url.startsWith('mqtts:') ? { ca: authorities(extraCa) } : {}),
    ...(/^wss?:/.test(url) ? { wsOptions: webSocketOptions(url, { proxy, extraCa }) } : {}),
    ...(version === 5 ? { properties: { receiveMaximum: RECEIVE_MAX, maximumPacketSize: 2 * MESSAGE_BYTES_MAX } } : {}),
  }
}

/** Only this way leads through a proxy: networks with one rarely permit other ports than 443. */
function webSocketOptions(url: string, outgoing: Outgoing): ClientOptions {
  return { agent: openAgent(url, {}, outgoing), maxPayload: PACKET_BYTES_MAX, perMessageDeflate: false }
}

/** A clean disconnect does not trigger the last will, so the agent publishes it. */
async function publishOffline(client: MqttClient, deviceId: string): Promise<void> {
  if (!client.connected) {
    client.end(true)
    return
  }
  // A second end would have no effect while the first one waits for the broker to close its side.
  const giveUp = setTimeout(() => client.stream.destroy(), OFFLINE_TIMEOUT_MS)
  try {
    await client.publishAsync(presenceTopic(deviceId), presenceOf(false), { qos: 1, retain: true })
    await client.endAsync()
  } catch {
    client.end(true)
  } finally {
    clearTimeout(giveUp)
  }
}

function presenceOf(online: boolean): string {
  return JSON.stringify(presence.parse({ online }))
}
