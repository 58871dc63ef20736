import legacyUrl from 'node:url'
import { beforeEach, describe, expect, it, test, vi } from 'vitest'
import { createMqttPush, MQTT_DEFAULTS } from '../../src/agent/platform/mqtt/mqtt-push.ts'
import { ExternalBroker } from '../../src/cloud/platform/mqtt/external-broker.ts'
import { brokerAddress } from '../../src/platform/broker-address.ts'

test.each([
  ['mqtt://broker.example', { protocol: 'mqtt', hostname: 'broker.example' }],
  ['mqtts://broker.example:8884/ignored', { protocol: 'mqtts', hostname: 'broker.example', port: 8884 }],
  ['mqtt://[::1]:1883', { protocol: 'mqtt', hostname: '::1', port: 1883 }],
  ['wss://broker.example', { protocol: 'wss', hostname: 'broker.example', path: '/' }],
  ['ws://[::1]:8083/mqtt?node=2', { protocol: 'ws', hostname: '[::1]', port: 8083, path: '/mqtt?node=2' }],
])('%s becomes options of the client', (url, options) => {
  expect(brokerAddress(url)).toEqual({ ...options, host: options.hostname })
})

test.each(['https://broker.example', 'broker.example', ''])('refuses %j', (url) => {
  expect(() => brokerAddress(url)).toThrow(TypeError)
})

describe.each(['mqtt', 'ws'])('a connection to a broker over %s', (scheme) => {
  const url = `${scheme}://127.0.0.1:1`
  let parse: { readonly mock: { readonly calls: readonly unknown[] } }
  beforeEach(() => {
    parse = vi.spyOn(legacyUrl, 'parse')
  })

  it('of the agent does not call the deprecated url.parse', async () => {
    const stop = new AbortController()
    const options = { ...MQTT_DEFAULTS, extraCa: null, fraction: () => 0, now: () => 0 }
    const target = { url, deviceId: 'device-8', instanceIds: [], password: async () => 'a token' }
    const onTrouble = vi.fn()
    await createMqttPush({ ...options, pause: async () => stop.abort() }).run(
      { ...target, onMessage: () => undefined, onConnection: () => undefined, onTrouble },
      stop.signal,
    )
    expect(onTrouble).toHaveBeenCalledWith(expect.objectContaining({ code: 'BROKER_UNREACHABLE' }))
    expect(parse.mock.calls).toEqual([])
  })

  it('of the cloud does not call the deprecated url.parse', async () => {
    const refused = Promise.withResolvers<unknown>()
    const broker = new ExternalBroker({
      ...{ url, username: null, password: null, ca: null, clientId: 'node-1', fraction: () => 0 },
      onConnect: () => undefined,
      onPresence: () => undefined,
      log: { info: () => undefined, warn: refused.resolve },
    })
    expect(await refused.promise).toMatchObject({ code: 'BROKER_UNREACHABLE' })
    await broker.close()
    expect(parse.mock.calls).toEqual([])
  })
})
