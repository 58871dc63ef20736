import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { Aedes } from 'aedes'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createMqttPush, MQTT_DEFAULTS } from '../../../src/agent/adapters/mqtt/mqtt-push.ts'
import { pushContract } from './mqtt-push.contract.ts'

let broker: Aedes
const server = createServer((socket) => broker.handle(socket))
let url = ''
const logins: [string | undefined, string][] = []

beforeAll(async () => {
  broker = await Aedes.createBroker({
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

pushContract(() => url)

test('the device signs in by its id and a token, also where the broker speaks only the older protocol', async () => {
  const stop = new AbortController()
  logins.length = 0
  await new Promise<void>((resolve) => {
    const push = createMqttPush({
      extraCa: null,
      ...MQTT_DEFAULTS,
      pause: async () => undefined,
      fraction: () => 0,
      now: () => 0,
      log: { info: () => undefined, warn: () => undefined },
    })
    const order = {
      url,
      deviceId: 'device-7',
      instanceIds: [],
      password: async () => 'a token',
      onMessage: () => undefined,
      onConnection: () => stop.abort(),
    }
    void push.run(order, stop.signal).then(resolve)
  })
  expect(logins).toEqual([['device-7', 'a token']])
})
