import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Certificate } from '../../../platform/read-certificate.ts'
import { readAuthorityFile } from '../../../platform/read-setting-file.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { Authenticator } from '../../service-api/authenticate.ts'
import { type DevicePresence, Presence } from '../../devices/presence.ts'
import { type Broker, NotificationPublisher } from '../../devices/publish-notifications.ts'
import { NOTIFICATION_LOOK_MS } from '../../devices/limits.ts'
import type { Timers } from '../../runtime/run-repeatedly.ts'
import type { Store } from '../../storage/store.ts'
import type { CloudSettings } from '../../settings.ts'
import type { SignedIn } from './device-rights.ts'
import { openEmbeddedBroker } from './embedded-broker.ts'
import { ExternalBroker } from './external-broker.ts'
import type { Log } from '../../../protocol/log.ts'

export interface PushDeps {
  readonly settings: CloudSettings['push']
  /** Certificate of the cloud, also used by the embedded broker. */
  readonly tls: Certificate | null
  /** One for each cell. */
  readonly stores: readonly Store[]
  readonly authenticator: Pick<Authenticator, 'authenticate'>
  readonly now: () => number
  readonly newId: () => string
  readonly timers: Timers
  readonly log: Pick<Log, 'info' | 'warn'>
}

export interface Push {
  /** Address of the broker for this process; null: push is off. */
  readonly local: string | null
  readonly url: string | null
  /** Null: unknown. */
  presence(deviceId: string): DevicePresence | null
  /** Disconnects a device from this node once pending notifications are sent, at most a second later. */
  drop(deviceId: string): void
  /** Connects a device to the embedded broker; null: the broker is another one. */
  readonly accept: ((connection: Duplex) => void) | null
  /** Replaces the embedded broker's TLS certificate for new connections. */
  renewCertificate(tls: Certificate): void
  close(): Promise<void>
}

const LAST_NOTIFICATION_MS = 1_000

/** @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED, CONFIG_INVALID, CONFIG_UNREADABLE */
export async function openPush(deps: PushDeps): Promise<Push> {
  switch (deps.settings.broker) {
    case 'embedded':
      return openEmbedded(deps)
    case 'external':
      return openExternal(deps)
    case 'off':
      return openNone(deps)
  }
}

const NOT_EMBEDDED = { drop: () => undefined, accept: null, renewCertificate: () => undefined } as const

async function openEmbedded(deps: PushDeps): Promise<Push> {
  const { settings, tls, log } = deps
  const presence = new Presence(deps.now)
  const broker = await openEmbeddedBroker({
    host: settings.host,
    port: settings.port,
    tls,
    log,
    signIn: (token) => signIn(deps, token),
    onPresence: (deviceId, online) => presence.set(deviceId, online),
  })
  const publisher = publish(deps, broker)
  // Retained notifications are lost at a restart.
  publisher.announcePolicies()
  await publisher.idle()
  return {
    local: broker.url,
    url: settings.publicUrl ?? broker.url,
    presence: (deviceId) => presence.of(deviceId),
    drop(deviceId) {
      // Lets the device receive the notification about its command before it is disconnected.
      const notified = Promise.race([publisher.idle(), sleep(LAST_NOTIFICATION_MS, undefined, { ref: false })])
      void notified.then(() => broker.drop(deviceId))
    },
    accept: (connection) => broker.accept(connection),
    renewCertificate: (renewed) => broker.renewCertificate(renewed),
    async close() {
      await publisher.stop()
      await broker.close()
    },
  }
}

function openExternal(deps: PushDeps): Push {
  const { settings, newId, log } = deps
  const { url, username, password, caFile } = settings
  if (url === null) throw new Error('invariant: an external broker has an address')
  const presence = new Presence(deps.now)
  const waiting: { publisher?: Publishers } = {}
  const broker = new ExternalBroker({
    url,
    username,
    password: password?.reveal() ?? null,
    ca: caFile === null ? null : readAuthorityFile('push.ca_file', caFile),
    clientId: `tallygate-twin-${newId()}`,
    // A broker that restarted may have lost its retained messages.
    onConnect: () => waiting.publisher?.announcePolicies(),
    onPresence: (topic, payload) => presence.hear(topic, payload),
    fraction: Math.random,
    log,
  })
  const publisher = publish(deps, broker)
  waiting.publisher = publisher
  return {
    local: url,
    url: settings.publicUrl ?? url,
    presence: (deviceId) => presence.of(deviceId),
    ...NOT_EMBEDDED,
    async close() {
      // Do not wait for a broker that acknowledges nothing.
      const stopped = publisher.stop()
      await broker.close()
      await stopped
    },
  }
}

function openNone(deps: PushDeps): Push {
  const publisher = publish(deps, { isConnected: true, publish: async () => undefined })
  return {
    local: null,
    url: null,
    presence: () => null,
    ...NOT_EMBEDDED,
    close: () => publisher.stop(),
  }
}

type Publishers = Pick<NotificationPublisher, 'announcePolicies' | 'idle' | 'stop'>

function publish({ stores, now, timers, log }: PushDeps, broker: Broker): Publishers {
  const lookEveryMs = NOTIFICATION_LOOK_MS
  const all = stores.map((store) => {
    const publisher = new NotificationPublisher({ store, broker, now, timers, log, lookEveryMs })
    publisher.start()
    return publisher
  })
  return {
    announcePolicies: () => all.forEach((each) => each.announcePolicies()),
    idle: async () => void (await Promise.all(all.map((each) => each.idle()))),
    stop: async () => void (await Promise.all(all.map((each) => each.stop()))),
  }
}

async function signIn({ authenticator, now }: PushDeps, token: string): Promise<SignedIn> {
  const principal = await authenticator.authenticate(`Bearer ${token}`, now())
  if (principal.kind !== 'DEVICE') {
    throw new CodedError('ACCESS_KIND_WRONG', 'The broker accepts device tokens only.')
  }
  return { deviceId: principal.deviceId, instanceIds: [...principal.instances] }
}
