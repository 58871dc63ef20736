import { type Socket, connect, createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { Aedes } from 'aedes'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createMqttPush, MQTT_DEFAULTS } from '../../../../src/agent/platform/mqtt/mqtt-push.ts'
import type { Push } from '../../../../src/agent/sync/push.ts'
import { deviceTopic, policyTopic } from '../../../../src/protocol/push.ts'
import type { CodedError } from '../../../../src/protocol/errors.ts'
import { pushContract } from './mqtt-push.contract.ts'

let broker: Aedes
const server = createServer((socket) => broker.handle(socket))
let url = ''
const denied = new Set<string>()
const logins: [string | undefined, string][] = []

beforeAll(async () => {
  broker = await Aedes.createBroker({
    authorizeSubscribe: (_client, subscription, done) =>
      done(null, denied.has(subscription.topic) ? null : subscription),
    authenticate: (_client, username, password, done) => {
      logins.push([username, String(password)])
      done(null, true)
    },
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `mqtt://127.0.0.1:${(server.address() as AddressInfo).port}`
})
afterAll(async () => {
  await new Promise<void>((resolve) => broker.close(() => resolve()))
  await new Promise((resolve) => server.close(resolve))
})

/** One for which no time passes between attempts. */
const newPush = (): Push =>
  createMqttPush({
    ...MQTT_DEFAULTS,
    extraCa: null,
    pause: async () => undefined,
    fraction: () => 0,
    now: () => 0,
  })

pushContract(() => url)

test('the device signs in with its id and a token, also at a broker that supports only the older protocol', async () => {
  const stop = new AbortController()
  logins.length = 0
  await new Promise<void>((resolve) => {
    const push = newPush()
    const order = {
      url,
      deviceId: 'device-7',
      instanceIds: [],
      password: async () => 'a token',
      onMessage: () => undefined,
      onConnection: () => stop.abort(),
      onTrouble: () => undefined,
    }
    void push.run(order, stop.signal).then(resolve)
  })
  expect(logins).toEqual([['device-7', 'a token']])
})

test('reports a topic that the broker denies, and still receives the other topics', async () => {
  denied.add(policyTopic('instance-9'))
  const stop = new AbortController()
  const told: string[] = []
  const push = newPush()
  const heard = await new Promise<string>((resolve) => {
    const order = {
      url,
      deviceId: 'device-9',
      instanceIds: ['instance-9'],
      password: async () => 'a token',
      onMessage: resolve,
      onConnection: () => undefined,
      onTrouble: ({ code, message }: CodedError) => {
        told.push(`${code} ${message}`)
        broker.publish(
          { cmd: 'publish', qos: 1, dup: false, retain: false, topic: deviceTopic('device-9'), payload: '{}' },
          () => undefined,
        )
      },
    }
    void push.run(order, stop.signal)
  })
  stop.abort()
  expect(heard).toBe(deviceTopic('device-9'))
  expect(told).toEqual([
    expect.stringMatching(/^BROKER_REFUSED .* denies the topics tallygate\/v1\/instances\/instance-9\/policy\./),
  ])
})

test('leaves a broker that accepts the connection and never confirms the subscriptions', async () => {
  const stop = new AbortController()
  const silent = createServer((socket) => {
    socket.on('error', () => undefined)
    // CONNACK of MQTT 5.
    socket.once('data', () => socket.write(Buffer.from([0x20, 3, 0, 0, 0])))
  })
  await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve))
  const url = `mqtt://127.0.0.1:${(silent.address() as AddressInfo).port}`
  const options = { ...MQTT_DEFAULTS, connectTimeoutMs: 200, extraCa: null, fraction: () => 0, now: () => 0 }
  const push = createMqttPush({ ...options, pause: async () => stop.abort() })
  const troubles: string[] = []
  const order = { url, deviceId: 'device-8', instanceIds: [], password: async () => 'a token' }
  const onTrouble = ({ code, message }: CodedError): void => void troubles.push(`${code} ${message}`)
  await push.run({ ...order, onMessage: () => undefined, onConnection: () => undefined, onTrouble }, stop.signal)
  expect(troubles).toEqual([expect.stringMatching(/^BROKER_UNREACHABLE .* does not confirm the subscriptions\.$/)])
  await new Promise((resolve) => silent.close(resolve))
})

test('leaves a broker that confirms the goodbye and keeps the connection open', async () => {
  const stop = new AbortController()
  const sockets: Socket[] = []
  const wire = createServer({ allowHalfOpen: true }, (near) => {
    const far = connect(Number(new URL(url).port), '127.0.0.1')
    sockets.push(near, far)
    near.on('error', () => undefined).on('data', (chunk) => far.write(chunk))
    far.on('error', () => undefined).on('data', (chunk) => near.write(chunk))
  })
  await new Promise<void>((resolve) => wire.listen(0, '127.0.0.1', resolve))
  const connections: boolean[] = []
  await newPush().run(
    {
      url: `mqtt://127.0.0.1:${(wire.address() as AddressInfo).port}`,
      deviceId: 'device-10',
      instanceIds: [],
      password: async () => 'a token',
      onMessage: () => undefined,
      onConnection: (online) => {
        connections.push(online)
        stop.abort()
      },
      onTrouble: () => undefined,
    },
    stop.signal,
  )
  expect(connections).toEqual([true, false])
  for (const socket of sockets) socket.destroy()
  await new Promise((resolve) => wire.close(resolve))
})

test.each([4, 5])(
  'a broker of MQTT version %i that begins a huge packet is left before it has come',
  async (version) => {
    const stop = new AbortController()
    let taken = 0
    const flood = createServer((socket) => {
      socket.on('error', () => undefined)
      const answers = version === 5 ? [[0x20, 3, 0, 0, 0]] : [[0x20, 2, 0, 0]]
      socket.on('data', (packet: Buffer) => {
        // CONNECT says which version it speaks.
        if (packet[0] === 0x10 && packet[8] !== version) socket.end(Buffer.from([0x20, 2, 0, 1]))
        else if (packet[0] === 0x10) socket.write(Buffer.from(answers[0] ?? []))
        else if (packet[0] === 0x82) {
          const suback = version === 5 ? [0x90, 4, packet[2]!, packet[3]!, 0, 1] : [0x90, 3, packet[2]!, packet[3]!, 1]
          socket.write(Buffer.from([...suback, 0x30, 0xff, 0xff, 0xff, 0x7f]))
          const more = (): void => {
            if (socket.destroyed || taken > 64_000_000) return
            taken += 65_536
            socket.write(Buffer.alloc(65_536), more)
          }
          more()
        }
      })
    })
    await new Promise<void>((resolve) => flood.listen(0, '127.0.0.1', resolve))
    const push = newPush()
    const connected: boolean[] = []
    const trouble = await new Promise<CodedError>((resolve) => {
      void push.run(
        {
          url: `mqtt://127.0.0.1:${(flood.address() as AddressInfo).port}`,
          deviceId: 'device-8',
          instanceIds: [],
          password: async () => 'a token',
          onMessage: () => undefined,
          onConnection: (online) => connected.push(online),
          onTrouble: (error) => {
            stop.abort()
            resolve(error)
          },
        },
        stop.signal,
      )
    })
    expect(trouble).toMatchObject({
      code: 'BROKER_UNREACHABLE',
      message: expect.stringContaining('packets larger than') as string,
    })
    expect(connected.at(-1) ?? false).toBe(false)
    expect(taken).toBeLessThan(64_000_000)
    await new Promise((resolve) => flood.close(resolve))
  },
)
