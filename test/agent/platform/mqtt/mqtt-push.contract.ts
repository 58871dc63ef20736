// What push over MQTT does with any broker: the calling file gives the broker.
import { randomUUID } from 'node:crypto'
import { connectAsync, type MqttClient } from 'mqtt'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createMqttPush, MQTT_DEFAULTS, type MqttPushOptions } from '../../../../src/agent/platform/mqtt/mqtt-push.ts'
import type { CodedError, ErrorCode } from '../../../../src/protocol/errors.ts'
import type { Push } from '../../../../src/agent/sync/push.ts'
import { deviceTopic, policyTopic, presenceTopic } from '../../../../src/protocol/push.ts'
import { BrokerLink } from '../../../scenarios/link/broker-link.ts'

interface Watched {
  readonly messages: [topic: string, payload: string][]
  readonly connections: boolean[]
  readonly passwords: string[]
  readonly waits: number[]
  readonly troubles: ErrorCode[]
}

/** @param brokerUrl read in each test: the broker is started before the first of them */
export function pushContract(brokerUrl: () => string): void {
  let wire: BrokerLink
  let cloud: MqttClient
  let stop = new AbortController()
  let running: Promise<void> = Promise.resolve()
  let device = ''
  let instance = ''

  beforeEach(async () => {
    wire = await BrokerLink.to(brokerUrl())
    cloud = await connectAsync(brokerUrl(), { protocolVersion: 4 })
    stop = new AbortController()
    running = Promise.resolve()
    device = randomUUID()
    instance = randomUUID()
  })
  afterEach(async () => {
    stop.abort()
    await running
    for (const topic of [policyTopic(instance), presenceTopic(device)]) {
      await cloud.publishAsync(topic, '', { qos: 1, retain: true })
    }
    await cloud.endAsync()
    await wire.close()
  })

  function start(changes: Partial<MqttPushOptions> = {}, url = wire.url): Watched {
    const watched: Watched = { messages: [], connections: [], passwords: [], waits: [], troubles: [] }
    const push: Push = createMqttPush({
      extraCa: null,
      ...MQTT_DEFAULTS,
      pause: async (ms, signal) => {
        watched.waits.push(ms)
        if (!signal.aborted) await new Promise((resolve) => setImmediate(resolve))
      },
      fraction: () => 0.5,
      now: () => performance.now(),
      ...changes,
    })
    const order = {
      url,
      deviceId: device,
      instanceIds: [instance],
      password: async () => {
        watched.passwords.push(`password ${watched.passwords.length}`)
        return watched.passwords.at(-1) ?? ''
      },
      onMessage: (topic: string, payload: string) => void watched.messages.push([topic, payload]),
      onConnection: (connected: boolean) => void watched.connections.push(connected),
      onTrouble: ({ code }: CodedError) => void watched.troubles.push(code),
    }
    running = push.run(order, stop.signal)
    return watched
  }

  /** Polls: what happens at the broker is not ours to await. */
  const until = (assertion: () => void): Promise<void> =>
    expect
      .poll(
        () => {
          assertion()
          return true
        },
        { timeout: 10_000, interval: 5 },
      )
      .toBe(true)

  async function presenceOf(id: string): Promise<string[]> {
    const seen: string[] = []
    cloud.on('message', (topic, payload) => {
      if (topic === presenceTopic(id)) seen.push(payload.toString())
    })
    await cloud.subscribeAsync(presenceTopic(id), { qos: 1 })
    return seen
  }

  test('change notifications of the own topics arrive, others do not', async () => {
    const { messages, connections } = start()
    await until(() => expect(connections).toEqual([true]))
    await cloud.publishAsync(policyTopic(randomUUID()), 'not ours', { qos: 1 })
    await cloud.publishAsync(deviceTopic(device), 'device', { qos: 1 })
    await cloud.publishAsync(policyTopic(instance), 'policy', { qos: 1, retain: true })
    await until(() => expect(messages).toHaveLength(2))
    expect(messages).toEqual([
      [deviceTopic(device), 'device'],
      [policyTopic(instance), 'policy'],
    ])
  })

  test('a retained change notification delivers a missed change', async () => {
    await cloud.publishAsync(policyTopic(instance), 'policy', { qos: 1, retain: true })
    const { messages } = start()
    await until(() => expect(messages).toEqual([[policyTopic(instance), 'policy']]))
  })

  test('a message that is far too long is cut to nothing', async () => {
    const { messages, connections } = start()
    await until(() => expect(connections).toEqual([true]))
    await cloud.publishAsync(deviceTopic(device), 'x'.repeat(9_000), { qos: 1 })
    await cloud.publishAsync(deviceTopic(device), 'short', { qos: 1 })
    await until(() => expect(messages.map(([, payload]) => payload)).toContain('short'))
    expect(messages[0]?.[1]).toBe('')
  })

  test('presence follows the agent: online, cut off, online again, gone', async () => {
    const seen = await presenceOf(device)
    const { connections } = start()
    await until(() => expect(seen.at(-1)).toBe('{"online":true}'))
    expect(connections).toEqual([true])
    wire.forbidden = true
    wire.cut()
    await until(() => expect(seen.at(-1)).toBe('{"online":false}'))
    await until(() => expect(connections).toEqual([true, false]))
    wire.forbidden = false
    await until(() => expect(seen.at(-1)).toBe('{"online":true}'))
    stop.abort()
    await running
    await until(() => expect(seen.at(-1)).toBe('{"online":false}'))
    expect(connections).toEqual([true, false, true, false])
  })

  test('each attempt has its own token, and waits longer than the previous one', async () => {
    wire.forbidden = true
    const { passwords, waits } = start()
    await until(() => expect(waits.length).toBeGreaterThan(6))
    expect(waits.slice(0, 5)).toEqual([500, 1_000, 2_000, 4_000, 8_000])
    expect(new Set(passwords).size).toBe(passwords.length)
    expect(passwords.length).toBeGreaterThan(6)
  })

  test('the wait starts again after a stable connection, and grows after a short one', async () => {
    for (const [stableMs, expected] of [
      [0, [500, 500, 500]],
      [60_000, [500, 1_000, 2_000]],
    ] as const) {
      const { connections, waits } = start({ stableMs })
      for (let cuts = 1; cuts <= 3; cuts += 1) {
        await until(() => expect(connections.filter((connected) => connected)).toHaveLength(cuts))
        wire.cut()
        await until(() => expect(waits).toHaveLength(cuts))
      }
      expect(waits).toEqual(expected)
      stop.abort()
      await running
      stop = new AbortController()
    }
  })

  test('a stop ends the attempts, whether there is a connection or not', async () => {
    wire.forbidden = true
    const { waits } = start({
      pause: async (_ms, signal) =>
        signal.aborted ? undefined : new Promise((resolve) => signal.addEventListener('abort', () => resolve())),
    })
    await until(() => expect(wire.attempts).toBeGreaterThan(0))
    stop.abort()
    await running
    const { attempts } = wire
    expect(waits).toEqual([])
    await new Promise((resolve) => setImmediate(resolve))
    expect(wire.attempts).toBe(attempts)
  })

  test('the agent continues with an invalid address', async () => {
    const { waits, troubles } = start({}, 'gopher://broker.test')
    await until(() => expect(waits.length).toBeGreaterThan(2))
    expect(troubles[0]).toBe('BROKER_UNREACHABLE')
  })

  test('the random part of the waits spreads them over the whole permitted range', async () => {
    for (const [part, expected] of [
      [0, [0, 0, 0, 0]],
      [0.999, [999, 1_998, 3_996, 7_992]],
    ] as const) {
      wire.forbidden = true
      const { waits } = start({ fraction: () => part })
      await until(() => expect(waits.length).toBeGreaterThan(4))
      expect(waits.slice(0, 4)).toEqual(expected)
      stop.abort()
      await running
      stop = new AbortController()
    }
  })

  test('a stop publishes the absence, and does not wait for an unresponsive broker', async () => {
    const seen = await presenceOf(device)
    const { connections } = start()
    await until(() => expect(seen.at(-1)).toBe('{"online":true}'))
    wire.stall()
    const begun = performance.now()
    stop.abort()
    await running
    expect(performance.now() - begun).toBeLessThan(5_000)
    expect(connections).toEqual([true, false])
  })

  test('a flood of messages is received, and none is kept in memory', async () => {
    const { messages, connections } = start()
    await until(() => expect(connections).toEqual([true]))
    for (let batch = 0; batch < 20; batch += 1) {
      await Promise.all(
        Array.from({ length: 100 }, async () => cloud.publishAsync(deviceTopic(device), '', { qos: 0 })),
      )
    }
    await cloud.publishAsync(deviceTopic(device), 'last', { qos: 1 })
    await until(() => expect(messages.at(-1)?.[1]).toBe('last'))
    expect(connections).toEqual([true])
  })
}
