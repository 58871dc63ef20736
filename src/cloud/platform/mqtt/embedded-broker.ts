/** MQTT broker inside a single-node cloud. State is lost at a restart, and only this process publishes. */
import { type Server, Socket, createServer } from 'node:net'
import { Duplex, Transform, type TransformCallback } from 'node:stream'
import { Server as TlsServer, createServer as createTlsServer } from 'node:tls'
import { Aedes, type AuthenticateHandler, type Client } from 'aedes'
import { CodedError } from '../../../protocol/errors.ts'
import { hostInUrl } from '../../../platform/host-of.ts'
import { listenOn } from '../../../platform/listen-on.ts'
import { CONNECTIONS_WAITING_MAX, HANDSHAKE_TIMEOUT_MS, openConnections } from '../../../platform/open-connections.ts'
import type { Certificate } from '../../../platform/read-certificate.ts'
import type { Broker, PushMessage } from '../../devices/publish-notifications.ts'
import { type SignedIn, mayPublish, maySubscribe } from './device-rights.ts'
import { Rarely } from '../../runtime/rarely.ts'
import { PacketMeter } from '../../../protocol/mqtt-framing.ts'
import type { Log } from '../../../protocol/log.ts'

export interface EmbeddedBrokerOptions {
  readonly host: string
  /** 0: any free port. */
  readonly port: number
  /** PEM; null: no TLS. */
  readonly tls: Certificate | null
  /** Resolves the device of a token. @throws CodedError for an invalid token */
  readonly signIn: (token: string) => Promise<SignedIn>
  readonly onPresence: (deviceId: string, online: boolean) => void
  readonly log: Pick<Log, 'info'>
  /** Of devices that are signed in, and of connections that are not: all devices may come back at once. */
  readonly connectionsMax?: number
}

export interface EmbeddedBroker extends Broker {
  readonly url: string
  drop(deviceId: string): void
  /** Serves a device that is connected in another way, such as over WebSocket. */
  accept(connection: Duplex): void
  renewCertificate(tls: Certificate): void
  close(): Promise<void>
}

/** Packet limit, bytes; the largest packet of a device is a CONNECT with a token. */
const PACKET_BYTES_MAX = 16 * 1024

/**
 * A device sends few: an acknowledgment of each notification, and a ping every minute. Each takes time from all clients, and
 * so does each topic of a subscription.
 */
const WINDOW_MS = 10_000
const WINDOW_PACKETS_MAX = 1_000
const WINDOW_BYTES_MAX = 64 * 1024

const CONNECTIONS_MAX = 10_000

const CLIENT_ID_SHOWN_MAX = 36

const CONNECT_TIMEOUT_MS = 10_000
const DRAIN_TIMEOUT_MS = 10_000

/** A device that does not read delays the notifications of others by no more than this, ms. */
const DELIVERY_MS_MAX = 100

/** MQTT 3.1.1 return codes. */
const IDENTIFIER_REJECTED = 2
const SERVER_UNAVAILABLE = 3
const BAD_USERNAME_OR_PASSWORD = 4

/** @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED */
export async function openEmbeddedBroker(options: EmbeddedBrokerOptions): Promise<EmbeddedBroker> {
  const devices = new SignedInClients()
  const sockets = new Set<Duplex>()
  const newcomers = new Newcomers(options.connectionsMax ?? CONNECTIONS_MAX)

  const aedes = await Aedes.createBroker({
    connectTimeout: CONNECT_TIMEOUT_MS,
    drainTimeout: DRAIN_TIMEOUT_MS,
    authenticate: authenticator(options, devices),
    authorizeSubscribe: (client, subscription, done) => {
      const device = devices.of(client)
      done(null, device !== undefined && maySubscribe(device, subscription.topic) ? subscription : null)
    },
    authorizePublish: (client, packet, done) => {
      const device = client === null ? undefined : devices.of(client)
      const may = device !== undefined && mayPublish(device, packet.topic, packet.payload)
      done(may ? null : new Error('devices may publish only their own presence'))
    },
  })
  aedes.on('clientReady', (client) => {
    newcomers.signedIn(client.conn)
    options.onPresence(client.id, true)
  })
  aedes.on('clientDisconnect', (client) => {
    devices.delete(client)
    // A newer connection of the device may exist.
    if (devices.clientsOf(client.id).size === 0) options.onPresence(client.id, false)
  })

  const accept = (socket: Duplex): void => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    socket.on('error', () => socket.destroy())
    const connection = limited(socket)
    newcomers.add(socket)
    newcomers.know(connection, socket)
    aedes.handle(connection).on('error', () => undefined)
  }
  const { tls } = options
  const server: Server =
    tls === null
      ? createServer(accept)
      : createTlsServer({ cert: tls.certificate, key: tls.key, handshakeTimeout: HANDSHAKE_TIMEOUT_MS }, accept)
  server.on('connection', (socket) => newcomers.add(socket))
  const cut = openConnections(server)
  const { host } = options
  const place = { host, port: options.port, backlog: CONNECTIONS_WAITING_MAX }
  const { port } = await listenOn(server, place, 'push.port').catch(async (error: unknown) => {
    // Its timers would keep the process alive after the error.
    await closed(aedes)
    throw error
  })

  return {
    url: `${tls === null ? 'mqtt' : 'mqtts'}://${hostInUrl(host)}:${port}`,
    isConnected: true,
    publish: (message) => publish(aedes, message),
    accept,
    drop(deviceId) {
      for (const client of devices.clientsOf(deviceId)) client.close()
    },
    renewCertificate({ certificate, key }) {
      if (server instanceof TlsServer) server.setSecureContext({ cert: certificate, key })
    },
    async close() {
      const serverClosed = closed(server)
      await closed(aedes)
      for (const socket of sockets) socket.destroy()
      cut()
      await serverClosed
    },
  }
}

/** By device too: all devices may disconnect at once. A device has two clients until the older one is closed. */
class SignedInClients {
  readonly #devices = new Map<Client, SignedIn>()
  readonly #clients = new Map<string, Set<Client>>()

  get size(): number {
    return this.#devices.size
  }

  of(client: Client): SignedIn | undefined {
    return this.#devices.get(client)
  }

  clientsOf(deviceId: string): ReadonlySet<Client> {
    return this.#clients.get(deviceId) ?? new Set()
  }

  add(client: Client, device: SignedIn): void {
    this.#devices.set(client, device)
    this.#clients.set(device.deviceId, new Set([...this.clientsOf(device.deviceId), client]))
  }

  delete(client: Client): void {
    const device = this.#devices.get(client)
    if (device === undefined) return
    this.#devices.delete(client)
    const others = this.#clients.get(device.deviceId)
    others?.delete(client)
    if (others?.size === 0) this.#clients.delete(device.deviceId)
  }
}

/**
 * Connections that have not signed in. A new one replaces the oldest: devices sign in at once, so that peers without a token
 * keep no device out.
 */
class Newcomers {
  readonly #max: number
  readonly #open = new Map<unknown, Duplex>()
  /** Of the connections that the MQTT library knows. */
  readonly #keys = new WeakMap<object, unknown>()

  constructor(max: number) {
    this.#max = max
  }

  /** Also before the TLS handshake: the same peer has another socket behind it. */
  add(socket: Duplex): void {
    const key = keyOf(socket)
    if (this.#open.has(key)) return
    this.#open.set(key, socket)
    socket.once('close', () => this.#open.delete(key))
    const [oldest] = this.#open
    if (this.#open.size <= this.#max || oldest === undefined) return
    this.#open.delete(oldest[0])
    oldest[1].destroy()
  }

  know(connection: object, socket: Duplex): void {
    this.#keys.set(connection, keyOf(socket))
  }

  signedIn(connection: object): void {
    this.#open.delete(this.#keys.get(connection))
  }
}

function keyOf(socket: Duplex): unknown {
  return socket instanceof Socket ? `${socket.remoteAddress} ${socket.remotePort}` : socket
}

/** Destroys the socket when it sends too much. */
function limited(socket: Duplex): Duplex {
  const limit = new PacketLimit(PACKET_BYTES_MAX)
  limit.on('error', () => socket.destroy())
  const sides = { readable: socket.pipe(limit), writable: socket }
  // The library types accept only web streams here; Node also takes its own.
  return Duplex.from(sides as unknown as Iterable<never>).on('error', () => socket.destroy())
}

function publish(aedes: Aedes, { topic, payload, retain }: PushMessage): Promise<void> {
  return new Promise((resolve, reject) => {
    const late = setTimeout(resolve, DELIVERY_MS_MAX)
    aedes.publish({ cmd: 'publish', dup: false, qos: 1, topic, payload, retain }, (error) => {
      clearTimeout(late)
      if (error) reject(error)
      else resolve()
    })
  })
}

function authenticator(
  { signIn, log, connectionsMax = CONNECTIONS_MAX }: EmbeddedBrokerOptions,
  devices: SignedInClients,
): AuthenticateHandler {
  const rarely = new Rarely(() => performance.now())
  return (client, username, password, done) => {
    const refuse = (returnCode: number, reason: string): void => {
      rarely.log(reason, (times) =>
        log.info(
          { clientId: client.id.slice(0, CLIENT_ID_SHOWN_MAX), reason, times },
          'devices were refused at the broker',
        ),
      )
      done(Object.assign(new Error(reason), { returnCode }), false)
    }
    // A second connection with a client id takes over the first: only the same device may do that.
    if (username === undefined || username !== client.id || !client.clean) {
      refuse(IDENTIFIER_REJECTED, 'client id and user name must be the device id, and the session must be clean')
      return
    }
    signIn(password?.toString('utf8') ?? '').then(
      (device) => {
        if (device.deviceId !== username) {
          refuse(BAD_USERNAME_OR_PASSWORD, 'the token belongs to another device')
          return
        }
        // A connected device takes over from its own connection.
        if (devices.size >= connectionsMax && devices.clientsOf(username).size === 0) {
          refuse(SERVER_UNAVAILABLE, 'the broker has reached its limit of devices')
          return
        }
        // The library reports no disconnection of a client that left before.
        if (client.closed) return
        devices.add(client, device)
        client.conn.once('close', () => devices.delete(client))
        done(null, true)
      },
      (error: unknown) => {
        if (error instanceof CodedError && error.httpStatus < 500) refuse(BAD_USERNAME_OR_PASSWORD, error.code)
        else refuse(SERVER_UNAVAILABLE, error instanceof CodedError ? error.code : 'the token could not be checked')
      },
    )
  }
}

function closed(one: { close(done: () => void): unknown }): Promise<void> {
  return new Promise((resolve) => one.close(resolve))
}

/** Of the size of each packet, of their number, and of their bytes. */
export class PacketLimit extends Transform {
  readonly #meter: PacketMeter
  /** Packets before the window of time. */
  #before = 0
  /** Within it. */
  #bytes = 0
  #since = performance.now()

  constructor(bytesMax: number) {
    super()
    this.#meter = new PacketMeter(bytesMax)
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    const now = performance.now()
    if (now - this.#since >= WINDOW_MS) {
      this.#since = now
      this.#before = this.#meter.packets
      this.#bytes = 0
    }
    this.#bytes += chunk.length
    if (!this.#meter.take(chunk)) done(new Error('an MQTT packet is larger than the limit'))
    else if (this.#meter.packets - this.#before > WINDOW_PACKETS_MAX || this.#bytes > WINDOW_BYTES_MAX)
      done(new Error('there are too many MQTT packets'))
    else done(null, chunk)
  }
}
