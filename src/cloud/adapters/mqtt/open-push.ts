/** Push as the settings ask for it: a broker, and what carries the hints of the outbox to it. */
import { setTimeout as sleep } from 'node:timers/promises'
import { readFileSync } from 'node:fs'
import { CodedError } from '../../../protocol/errors.ts'
import type { Authenticator } from '../../app/authenticate.ts'
import { type DevicePresence, Presence } from '../../app/edge/presence.ts'
import { type Broker, HintPublisher, announcePolicies } from '../../app/edge/publish-hints.ts'
import type { Timers } from '../../app/repeat.ts'
import type { Store } from '../../app/store.ts'
import type { CloudSettings } from '../../settings.ts'
import type { SignedIn } from './device-rights.ts'
import { openEmbeddedBroker } from './embedded-broker.ts'
import { openExternalBroker } from './external-broker.ts'

export interface PushParts {
  readonly settings: CloudSettings['push']
  /** Of the twin; the embedded broker speaks TLS with the same certificate. */
  readonly tls: { readonly certificate: string; readonly key: string } | null
  readonly store: Store
  readonly authenticator: Authenticator
  /** POSIX ms. */
  readonly now: () => number
  readonly newId: () => string
  readonly timers: Timers
  readonly log: {
    info(fields: Record<string, unknown>, message: string): void
    warn(fields: Record<string, unknown>, message: string): void
  }
}

export interface Push {
  /** Where the broker is, as this process sees it; null when there is no push. */
  readonly local: string | null
  /** Where devices connect. */
  readonly url: string | null
  /** Null: nothing was heard of the device. */
  presence(deviceId: string): DevicePresence | null
  /** Ends the connection of a device where this node holds it, as soon as the hints that wait are out, a second later at most. */
  drop(deviceId: string): void
  /** Of an embedded broker that speaks TLS, for connections from here on. */
  renewCertificate(tls: { readonly certificate: string; readonly key: string }): void
  close(): Promise<void>
}

/** How often to look for hints that were not published, or that another node has left behind. */
const LOOK_EVERY_MS = 10_000

/** How long the end of a connection waits for hints that are on their way to the broker. */
const LAST_HINT_MS = 1_000

/** @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED, CONFIG_INVALID, CONFIG_UNREADABLE */
export async function openPush(parts: PushParts): Promise<Push> {
  switch (parts.settings.broker) {
    case 'embedded':
      return openEmbedded(parts)
    case 'external':
      return openExternal(parts)
    case 'off':
      return openNone(parts)
  }
}

async function openEmbedded(parts: PushParts): Promise<Push> {
  const { settings, tls, store, log } = parts
  const { host, port } = settings
  const presence = new Presence(parts.now)
  const broker = await openEmbeddedBroker({
    host,
    port,
    tls,
    signIn: (token) => signIn(parts, token),
    onPresence: (deviceId, online) => presence.set(deviceId, online),
    log,
  })
  // It keeps no retained hint over a restart.
  try {
    await announcePolicies(store, broker)
  } catch (error) {
    await broker.close()
    throw error
  }
  const publisher = publish(parts, broker)
  return {
    local: broker.url,
    url: settings.publicUrl ?? broker.url,
    presence: (deviceId) => presence.of(deviceId),
    drop(deviceId) {
      // It is to hear why before it is refused: the hint that goes with the order brings it to the twin.
      const hinted = Promise.race([publisher.idle(), sleep(LAST_HINT_MS, undefined, { ref: false })])
      void hinted.then(() => broker.drop(deviceId))
    },
    renewCertificate: (renewed) => broker.renewCertificate(renewed),
    async close() {
      await publisher.stop()
      await broker.close()
    },
  }
}

function openExternal(parts: PushParts): Push {
  const { settings, newId, log } = parts
  const { url, username, password, caFile } = settings
  if (url === null) {
    throw new CodedError('CONFIG_INVALID', 'push.broker is "external", so push.url must say where it is.')
  }
  const presence = new Presence(parts.now)
  const waiting: { publisher?: HintPublisher } = {}
  const broker = openExternalBroker({
    url,
    username,
    password: password?.reveal() ?? null,
    ca: caFile === null ? null : readCa(caFile),
    clientId: `tallygate-twin-${newId()}`,
    onConnect: () => waiting.publisher?.wake(),
    onPresence: (topic, payload) => presence.hear(topic, payload),
    fraction: Math.random,
    log,
  })
  const publisher = publish(parts, broker)
  waiting.publisher = publisher
  return {
    local: url,
    url: settings.publicUrl ?? url,
    presence: (deviceId) => presence.of(deviceId),
    drop: () => undefined,
    renewCertificate: () => undefined,
    async close() {
      // A broker that acknowledges nothing does not hold up the stop.
      const stopped = publisher.stop()
      await broker.close()
      await stopped
    },
  }
}

/** Nobody waits for hints: they leave the outbox all the same. */
function openNone(parts: PushParts): Push {
  const publisher = publish(parts, { publish: async () => undefined })
  return {
    local: null,
    url: null,
    presence: () => null,
    drop: () => undefined,
    renewCertificate: () => undefined,
    close: () => publisher.stop(),
  }
}

function publish({ store, now, timers, log }: PushParts, broker: Broker): HintPublisher {
  const publisher = new HintPublisher({ store, broker, now, timers, log, lookEveryMs: LOOK_EVERY_MS })
  publisher.start()
  return publisher
}

async function signIn({ authenticator, now }: PushParts, token: string): Promise<SignedIn> {
  const { deviceId, instances } = await authenticator.authenticate(`Bearer ${token}`, now())
  if (deviceId === null) throw new CodedError('ACCESS_KIND_WRONG', 'The broker takes the tokens of devices only.')
  return { deviceId, instanceIds: [...(instances ?? [])] }
}

function readCa(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    throw new CodedError('CONFIG_UNREADABLE', `${path} cannot be read.`, { cause })
  }
}
