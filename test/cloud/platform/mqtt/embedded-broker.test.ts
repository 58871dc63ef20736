import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { connect as connectSocket } from 'node:net'
import { duplexPair } from 'node:stream'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { openEmbeddedBroker } from '../../../../src/cloud/platform/mqtt/embedded-broker.ts'
import { fileText } from '../../../../src/platform/file-text.ts'
import { deviceTopic, policyTopic, presenceTopic } from '../../../../src/protocol/push.ts'
import { Authority } from '../../../support/certificates.ts'
import { silentPeer } from '../../../support/silent-peer.ts'
import { DAY, type Twin, openTwin, pick } from '../../harness.ts'
import { EDGE, EdgeClient } from '../../devices/edge-client.ts'
import { Listener } from './listener.ts'

/** State of a connection in `/proc/net/tcp`. */
const ESTABLISHED = '01'

let twin: Twin
let instanceId: string
let client: EdgeClient
beforeEach(async () => {
  twin = await openTwin()
  instanceId = await twin.instance()
  client = await EdgeClient.join(twin, instanceId)
})
afterEach(async () => twin[Symbol.asyncDispose]())

const pushUrl = async (who = client): Promise<string> => {
  const { body } = await twin.call('POST', `${EDGE}/enrollments`, {
    token: await enrollAgain(),
    body: { publicKey: who.keys.jwk },
  })
  return (body as { addresses: { push: string } }).addresses.push
}
const enrollAgain = async () => {
  const { body } = await twin.call('POST', `${EDGE}/enrollment-tokens`, { body: { instanceIds: [instanceId] } })
  return (body as { token: string }).token
}

const signIn = async (
  who = client,
  change: { clientId?: string; username?: string; password?: string; clean?: boolean } = {},
) =>
  Listener.connect(await pushUrl(), {
    clientId: change.clientId ?? who.id,
    username: change.username ?? who.id,
    password: change.password ?? (await who.token()),
    clean: change.clean ?? true,
  })

describe('a device at the embedded broker', () => {
  it('is notified of the newest policy when it subscribes, and of each change at once', async () => {
    await using listener = await signIn()
    await listener.subscribe(policyTopic(instanceId))
    expect(await listener.next()).toEqual({
      topic: policyTopic(instanceId),
      payload: { instanceId, revision: 1 },
      retained: true,
    })
    await twin.lineItem(instanceId)
    expect(await listener.next()).toMatchObject({ payload: { instanceId, revision: 2 } })
  })

  it('is notified of the newest policy also after a restart of the twin, which keeps no messages', async () => {
    await twin.lineItem(instanceId)
    await twin.restart()
    await using listener = await signIn()
    await listener.subscribe(policyTopic(instanceId))
    expect(await listener.next()).toMatchObject({ payload: { instanceId, revision: 2 }, retained: true })
  })

  it('gets the address with each sync, also when it has changed and when there is no broker', async () => {
    const named = async () => (await client.signedAtSync()).push
    expect(await named()).toBe(await pushUrl())
    const restart = async (change: Partial<Twin['settings']['push']>): Promise<void> => {
      await twin.stop()
      await twin.start((settings) => ({ ...settings, push: { ...settings.push, ...change } }))
    }
    await restart({ publicUrl: 'wss://moved.test/push' })
    expect(await named()).toBe('wss://moved.test/push')
    await restart({ broker: 'external', url: 'mqtt://127.0.0.1:9' })
    expect(await named()).toBe('mqtt://127.0.0.1:9')
    await restart({ broker: 'off', publicUrl: 'wss://moved.test/push' })
    expect(await named()).toBeNull()
  })

  it('is notified to sync when it must return its tokens', async () => {
    await using listener = await signIn()
    await listener.subscribe(deviceTopic(client.id))
    await twin.call('POST', `${EDGE}/devices/${client.id}/release`)
    expect(await listener.next()).toEqual({
      topic: deviceTopic(client.id),
      payload: { reason: 'sync' },
      retained: false,
    })
  })

  it('may subscribe to nothing but its own topics', async () => {
    const other = await EdgeClient.join(twin, instanceId)
    const elsewhere = await twin.instance('other customer')
    await using listener = await signIn()
    const refused = [
      deviceTopic(other.id),
      policyTopic(elsewhere),
      presenceTopic(client.id),
      'tallygate/v1/#',
      'tallygate/v1/instances/+/policy',
      '#',
      '$SYS/#',
    ]
    expect(await listener.subscribe(...refused, policyTopic(instanceId))).toEqual([...refused.map(() => 128), 1])
  })

  it('publishes that it is online, which the cloud shows', async () => {
    await using listener = await signIn()
    await listener.client.publishAsync(presenceTopic(client.id), '{"online":true}', { qos: 1, retain: true })
    const { body } = await twin.call('GET', `${EDGE}/devices/${client.id}`)
    expect(pick(body, 'presence', 'online')).toBe(true)
  })

  it.each([
    ['a policy that there is not', () => policyTopic(instanceId), `{"instanceId":"x","revision":9}`],
    ['the presence of another device', () => presenceTopic(randomUUID()), '{"online":true}'],
    ['more than whether it is there', () => presenceTopic(client.id), '{"online":true,"more":1}'],
    ['a long story', () => presenceTopic(client.id), JSON.stringify({ online: true, story: 'x'.repeat(1_000) })],
  ])('is thrown out when it announces %s', async (_name, topic, payload) => {
    await using listener = await signIn()
    listener.client.publish(topic(), payload, { qos: 0, retain: true })
    await listener.closed
    await using again = await signIn()
    await again.subscribe(policyTopic(instanceId))
    expect(await again.next()).toMatchObject({ payload: { instanceId, revision: 1 } })
  })

  it('is refused with a token or an id that is not its own', async () => {
    const other = await EdgeClient.join(twin, instanceId)
    const attempts = [
      { password: 'nonsense' },
      { password: await other.token() },
      { password: await twin.administrationToken() },
      { password: await twin.clientToken(instanceId) },
      { password: await client.token({ from: 0, until: 3_600_000 }) },
      { username: other.id },
      { clientId: other.id },
      { clientId: 'constructor', username: 'constructor' },
      { clean: false },
    ]
    for (const attempt of attempts) await expect(signIn(client, attempt)).rejects.toThrow(/Connection refused/)
  })

  it('takes over from its own older connection, and from no other device', async () => {
    await using first = await signIn()
    await using second = await signIn()
    await first.closed
    expect(await second.subscribe(deviceTopic(client.id))).toEqual([1])
  })

  it('is disconnected when it is revoked, and cannot connect again', async () => {
    await using listener = await signIn()
    await twin.call('POST', `${EDGE}/devices/${client.id}/revoke`)
    await listener.closed
    const other = await EdgeClient.join(twin, instanceId)
    const url = await pushUrl(other)
    const back = Listener.connect(url, { clientId: client.id, username: client.id, password: await client.token() })
    await expect(back).rejects.toThrow(/Connection refused/)
  })

  it('is thrown out when it sends as many packets as it can', async () => {
    await using listener = await signIn()
    listener.client.stream.write(Buffer.concat(Array(2_000).fill(Buffer.from([0xc0, 0]))))
    await listener.closed
  })

  it('cannot make the twin buffer a packet of hundreds of megabytes', async () => {
    const { hostname, port } = new URL(await pushUrl())
    const socket = connectSocket(Number(port), hostname)
    const closed = new Promise<void>((resolve) => socket.once('close', () => resolve()))
    socket.on('error', () => undefined)
    socket.write(Buffer.from([0x10, 0xff, 0xff, 0xff, 0x7f]))
    await closed
  })
})

const CONNECTION_ACCEPTED = Buffer.from([0x20, 2, 0, 0])

/** CONNECT of MQTT 3.1.1 with a clean session, and the id as client id, user name and password. */
function connectPacket(id: string): Buffer {
  const text = (value: string) => Buffer.concat([Buffer.from([0, value.length]), Buffer.from(value)])
  const content = Buffer.concat([text('MQTT'), Buffer.from([4, 0xc2, 0, 60]), text(id), text(id), text(id)])
  return Buffer.concat([Buffer.from([0x10, content.length]), content])
}

describe('an embedded broker', () => {
  it('closes while a peer is silent in its TLS handshake', async () => {
    await using authority = await Authority.make()
    const broker = await openEmbeddedBroker({
      ...{ host: '127.0.0.1', port: 0, tls: await authority.certify(Date.now() + DAY), log: { info: () => undefined } },
      ...{ onPresence: () => undefined, signIn: () => Promise.reject(new Error('nothing signs in')) },
    })
    const silent = await silentPeer(Number(new URL(broker.url).port))
    const closed = once(silent, 'close')
    await broker.close()
    await closed
  })

  it.each([false, true])('keeps no device out because of peers that do not sign in, with TLS: %s', async (isTls) => {
    await using ended = new AsyncDisposableStack()
    const authority = ended.use(await Authority.make())
    const broker = await openEmbeddedBroker({
      ...{ host: '127.0.0.1', port: 0, onPresence: () => undefined, log: { info: () => undefined } },
      tls: isTls ? await authority.certify(Date.now() + DAY) : null,
      signIn: async (token) => ({ deviceId: token, instanceIds: [] }),
      connectionsMax: 2,
    })
    ended.defer(() => broker.close())
    const signIn = async (id: string): Promise<Listener> => {
      const options = { clientId: id, username: id, password: id, rejectUnauthorized: false }
      return ended.use(await Listener.connect(broker.url, options))
    }
    const first = await signIn(randomUUID())
    const closed: Promise<unknown>[] = []
    for (let count = 0; count < 5; count += 1) {
      const socket = connectSocket(Number(new URL(broker.url).port), '127.0.0.1').on('error', () => undefined)
      ended.defer(() => void socket.destroy())
      await once(socket, 'connect')
      if (count < 3) closed.push(once(socket, 'close'))
    }
    const id = randomUUID()
    const second = await signIn(id)
    await Promise.all(closed)
    await expect(signIn(randomUUID())).rejects.toThrow(/Server unavailable/)
    const again = await signIn(id)
    await second.closed
    for (const each of [first, again]) expect(each.client.connected).toBe(true)
  })

  it(
    'has places for as many devices as it takes that come back at once after an outage',
    { timeout: 60_000 },
    async () => {
      await using ended = new AsyncDisposableStack()
      const broker = await openEmbeddedBroker({
        ...{ host: '127.0.0.1', port: 0, tls: null, onPresence: () => undefined, log: { info: () => undefined } },
        signIn: async (token) => ({ deviceId: token, instanceIds: [] }),
      })
      ended.defer(() => broker.close())
      const sockets = Array.from({ length: 1_500 }, () => connectSocket(Number(new URL(broker.url).port), '127.0.0.1'))
      for (const socket of sockets) ended.defer(() => void socket.on('error', () => undefined).destroy())
      await Promise.all(sockets.map((socket) => once(socket, 'connect')))
      const answers = sockets.map(async (socket) => {
        const answer = Promise.race([once(socket, 'data'), once(socket, 'close').then(() => ['closed'])])
        socket.write(connectPacket(randomUUID()))
        return (await answer)[0] as Buffer | string
      })
      expect(new Set((await Promise.all(answers)).map(String))).toEqual(new Set([String(CONNECTION_ACCEPTED)]))
    },
  )

  it('makes all connections of a fleet wait, so that no device must try again', async ({ skip }) => {
    const fleet = 1_500
    const most = fileText('/proc/sys/net/core/somaxconn')
    if (most === null || Number(most) < fleet) skip('the kernel of this machine lets fewer connections wait')
    await using ended = new AsyncDisposableStack()
    const broker = await openEmbeddedBroker({
      ...{ host: '127.0.0.1', port: 0, tls: null, onPresence: () => undefined, log: { info: () => undefined } },
      signIn: async (token) => ({ deviceId: token, instanceIds: [] }),
    })
    ended.defer(() => broker.close())
    const { port } = new URL(broker.url)
    const sockets = Array.from({ length: fleet }, () => connectSocket(Number(port), '127.0.0.1'))
    for (const socket of sockets) ended.defer(() => void socket.on('error', () => undefined).destroy())
    // After the system calls that connect, and before the broker can accept a connection.
    await new Promise<void>((resolve) => process.nextTick(resolve))
    const place = `:${Number(port).toString(16).toUpperCase().padStart(4, '0')}`
    // By its own address: the kernel lists a connection twice if others end meanwhile.
    const stateOf = new Map<string, string>()
    for (const line of fileText('/proc/net/tcp')?.split('\n') ?? []) {
      const [, local = '', remote = '', state = ''] = line.trim().split(/\s+/)
      if (remote.endsWith(place)) stateOf.set(local, state)
    }
    const states = Map.groupBy(stateOf.values(), (state) => state)
    expect([...states].map(([state, { length }]) => [state, length])).toEqual([[ESTABLISHED, fleet]])
  })

  it('gives no place to a device that disconnects before its token is checked', async () => {
    await using ended = new AsyncDisposableStack()
    const begun = Promise.withResolvers<undefined>()
    const checked = Promise.withResolvers<undefined>()
    const [gone, other] = [randomUUID(), randomUUID()]
    const broker = await openEmbeddedBroker({
      ...{ host: '127.0.0.1', port: 0, tls: null, onPresence: () => undefined, log: { info: () => undefined } },
      signIn: async (token) => {
        if (token === gone) {
          begun.resolve(undefined)
          await checked.promise
        }
        return { deviceId: token, instanceIds: [] }
      },
      connectionsMax: 1,
    })
    ended.defer(() => broker.close())
    const [near, far] = duplexPair()
    broker.accept(far)
    near.write(connectPacket(gone))
    await begun.promise
    near.destroy()
    await once(far.destroy(), 'close')
    checked.resolve(undefined)
    const options = { clientId: other, username: other, password: other }
    expect(ended.use(await Listener.connect(broker.url, options)).client.connected).toBe(true)
  })

  it('delays no notification because another device does not read', { timeout: 5_000 }, async () => {
    const broker = await openEmbeddedBroker({
      ...{ host: '127.0.0.1', port: 0, tls: null, onPresence: () => undefined, log: { info: () => undefined } },
      signIn: async (token) => ({ deviceId: token, instanceIds: [] }),
    })
    await using ended = new AsyncDisposableStack()
    ended.defer(() => broker.close())
    const [deaf, other] = [randomUUID(), randomUUID()]
    const [first, second] = await Promise.all(
      [deaf, other].map(async (id) => {
        const options = { clientId: id, username: id, password: id }
        const listener = ended.use(await Listener.connect(broker.url, options))
        await listener.subscribe(deviceTopic(id))
        return listener
      }),
    )
    first!.client.stream.pause()
    // More than all buffers of the connection hold.
    const large = JSON.stringify('x'.repeat(2_000_000))
    for (let n = 0; n < 10; n += 1) await broker.publish({ topic: deviceTopic(deaf), payload: large, retain: false })
    await broker.publish({ topic: deviceTopic(other), payload: '{}', retain: false })
    expect(await second!.next()).toMatchObject({ topic: deviceTopic(other) })
  })
})
