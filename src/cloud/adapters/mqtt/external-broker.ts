/**
 * A broker that somebody else runs, such as Mosquitto or an EMQX cluster. The twin publishes to it as one client among
 * others; who may subscribe is that broker's business. While it is out of reach, publishing fails and nothing is kept here.
 */
import { getCACertificates } from 'node:tls'
import { type MqttClient, connect } from 'mqtt'
import { CodedError } from '../../../protocol/errors.ts'
import type { Broker } from '../../app/edge/publish-hints.ts'

export interface ExternalBrokerOptions {
  /** `mqtt://` or `mqtts://`. */
  readonly url: string
  readonly username: string | null
  readonly password: string | null
  /** Certificates in PEM that count besides those of the system; null for none. */
  readonly ca: string | null
  /** Differs from node to node: a broker lets a client id in once. */
  readonly clientId: string
  /** Called after each successful connection: there may be something to publish. */
  readonly onConnect: () => void
  readonly log: {
    info(fields: Record<string, unknown>, message: string): void
    warn(fields: Record<string, unknown>, message: string): void
  }
}

export interface ExternalBroker extends Broker {
  close(): Promise<void>
}

const RECONNECT_MS = 2_000

/** Longest wait for a connection, for an acknowledgement, and for an orderly end, ms. */
const CONNECT_TIMEOUT_MS = 10_000
const ACKNOWLEDGE_TIMEOUT_MS = 10_000
const END_TIMEOUT_MS = 1_000

/** Connects in the background. @throws CodedError CONFIG_INVALID for an address that no client understands */
export function openExternalBroker(options: ExternalBrokerOptions): ExternalBroker {
  const { log } = options
  const client = open(options)
  client.on('connect', () => {
    log.info({ url: options.url }, 'the broker of hints is connected')
    options.onConnect()
  })
  client.on('error', (error) => log.warn({ url: options.url, reason: error.message }, 'the broker of hints refuses'))
  return {
    async publish({ topic, payload, retain }) {
      if (!client.connected) throw new Error('the broker of hints is not connected')
      await within(ACKNOWLEDGE_TIMEOUT_MS, client.publishAsync(topic, payload, { qos: 1, retain }))
    },
    async close() {
      await within(END_TIMEOUT_MS, client.endAsync()).catch(() => client.end(true))
    },
  }
}

function open({ url, username, password, ca, clientId }: ExternalBrokerOptions): MqttClient {
  try {
    return connect(url, {
      // Retained messages and acknowledgements are all that is needed, and every broker speaks this version.
      protocolVersion: 4,
      clientId,
      clean: true,
      reconnectPeriod: RECONNECT_MS,
      connectTimeout: CONNECT_TIMEOUT_MS,
      // What cannot be sent now is in the outbox.
      queueQoSZero: false,
      ...(username === null ? {} : { username }),
      ...(password === null ? {} : { password }),
      ...(ca === null ? {} : { ca: [...getCACertificates('default'), ca] }),
    })
  } catch (cause) {
    throw new CodedError('CONFIG_INVALID', `push.url is ${url}, which no MQTT client understands.`, { cause })
  }
}

async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${ms} ms`)), ms)
  })
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}
