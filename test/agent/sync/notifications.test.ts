import { expect, test } from 'vitest'
import { type Push, type PushOptions, readNotification } from '../../../src/agent/sync/push.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { deviceTopic, policyTopic } from '../../../src/protocol/push.ts'
import { DEVICE, INSTANCE } from './fake-cloud.ts'
import { policyWith } from './policies.ts'
import { TestDevice } from './test-device.ts'

/** Push whose messages are sent by the test. */
class FakePush implements Push {
  order: PushOptions | null = null
  closed = false

  async run(options: PushOptions, signal: AbortSignal): Promise<void> {
    this.order = options
    options.onConnection(true)
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
    this.closed = true
  }

  send(topic: string, payload: unknown): void {
    this.order?.onMessage(topic, typeof payload === 'string' ? payload : JSON.stringify(payload))
  }
}

async function deviceWithPush(): Promise<{ device: TestDevice; push: FakePush }> {
  const push = new FakePush()
  const device = await TestDevice.make({ push })
  device.cloud.pushUrl = 'mqtt://broker.test'
  await device.start()
  await device.settle()
  await device.pass(2_000)
  return { device, push }
}

const rounds = (device: TestDevice): number => device.link.status().rounds.done

test('a change notification of a newer policy brings the policy', async () => {
  const { device, push } = await deviceWithPush()
  expect(push.order).toMatchObject({ url: 'mqtt://broker.test', deviceId: DEVICE, instanceIds: [INSTANCE] })
  await device.cloud.publish(policyWith(2))
  push.send(policyTopic(INSTANCE), { instanceId: INSTANCE, revision: 2 })
  await device.pass(1_000)
  expect(device.activePolicies.get(INSTANCE)?.document.revision).toBe(2)
})

test('a change notification that lies costs one look, and changes nothing', async () => {
  const { device, push } = await deviceWithPush()
  push.send(policyTopic(INSTANCE), { instanceId: INSTANCE, revision: 999 })
  await device.pass(1_000)
  expect(device.conditions).toEqual([])
  expect(device.link.status().policies).toEqual([
    { instanceId: INSTANCE, applied: 1, newest: 1, engine: 1, name: 'Workshop' },
  ])
})

test('a retained change notification of what is in force already costs nothing', async () => {
  const { device, push } = await deviceWithPush()
  const before = rounds(device)
  push.send(policyTopic(INSTANCE), { instanceId: INSTANCE, revision: 1 })
  await device.pass(1_000)
  expect(rounds(device)).toBe(before)
})

test('malformed change notifications are counted and ignored', async () => {
  const { device, push } = await deviceWithPush()
  const before = rounds(device)
  const notification = { instanceId: INSTANCE, revision: 2 }
  push.send(policyTopic(INSTANCE), '')
  push.send(policyTopic(INSTANCE), '{')
  push.send(policyTopic(INSTANCE), { ...notification, revision: '2' })
  push.send(policyTopic(INSTANCE), { ...notification, more: 1 })
  push.send(policyTopic('11111111-1111-4111-8111-111111111111'), notification)
  push.send('elsewhere', notification)
  push.send(deviceTopic(DEVICE), { reason: 'because' })
  push.send(deviceTopic('somebody-else'), { reason: 'sync' })
  await device.pass(5_000)
  expect(rounds(device)).toBe(before)
  expect(device.link.status().notifications).toEqual({ taken: 0, ignored: 8 })
})

test('a flood of change notifications costs a burst of pulls, and then at most one per second', async () => {
  const { device, push } = await deviceWithPush()
  const before = device.cloud.calls.length
  for (let i = 0; i < 200; i += 1) {
    push.send(deviceTopic(DEVICE), { reason: 'sync' })
    await device.pass(50)
  }
  expect(rounds(device)).toBeLessThanOrEqual(24)
  // One segment and one heartbeat for each look.
  expect(device.cloud.calls.length - before).toBeLessThanOrEqual(44)
})

test('ten thousand change notifications at once, true, forged or senseless, cost no more than a few pulls', async () => {
  const { device, push } = await deviceWithPush()
  const [before, calls] = [rounds(device), device.cloud.calls.length]
  const notifications: [topic: string, payload: unknown][] = [
    [deviceTopic(DEVICE), { reason: 'sync' }],
    [deviceTopic(DEVICE), { reason: 'session' }],
    [policyTopic(INSTANCE), { instanceId: INSTANCE, revision: Number.MAX_SAFE_INTEGER }],
    [policyTopic(INSTANCE), { instanceId: INSTANCE, revision: 1 }],
    [policyTopic(INSTANCE), 'x'.repeat(8_000)],
    [policyTopic(INSTANCE), '['.repeat(8_000)],
  ]
  for (let i = 0; i < 10_000; i += 1) push.send(...notifications[i % notifications.length]!)
  await device.pass(5_000)
  expect(rounds(device) - before).toBeLessThanOrEqual(2)
  expect(device.cloud.calls.length - calls).toBeLessThanOrEqual(6)
  expect(device.link.status().policies).toEqual([
    { instanceId: INSTANCE, applied: 1, newest: 1, engine: 1, name: 'Workshop' },
  ])
  expect(device.conditions).toEqual([])
})

test('two changes within a second are both in force within it', async () => {
  const { device, push } = await deviceWithPush()
  for (const revision of [2, 3]) {
    await device.cloud.publish(policyWith(revision))
    push.send(policyTopic(INSTANCE), { instanceId: INSTANCE, revision })
    await device.pass(400)
    expect(device.activePolicies.get(INSTANCE)?.document.revision).toBe(revision)
  }
})

test.each([0, 0.5, 0.999])(
  'with the broker down, a change is in force within one interval of syncs (chance %d)',
  async (part) => {
    const push: Push = {
      run: async ({ onTrouble }, signal) => {
        onTrouble(new CodedError('BROKER_UNREACHABLE', 'it is away'))
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
      },
    }
    const device = await TestDevice.make({ push, fraction: () => part, sync: { interval: 90_000 } })
    device.cloud.pushUrl = 'mqtt://broker.test'
    await device.start()
    await device.settle()
    expect(device.conditions).toEqual(['push: BROKER_UNREACHABLE'])
    for (const [revision, phaseMs] of [
      [2, 1],
      [3, 31_000],
      [4, 89_000],
    ] as const) {
      await device.pass(phaseMs)
      await device.cloud.publish(policyWith(revision))
      await device.pass(90_000)
      expect(device.activePolicies.get(INSTANCE)?.document.revision).toBe(revision)
    }
    expect(device.link.status()).toMatchObject({ push: 'DISCONNECTED', notifications: { taken: 0, ignored: 0 } })
  },
)

test('a replayed change notification of an older revision, or of what is in force, costs nothing', async () => {
  const { device, push } = await deviceWithPush()
  await device.cloud.publish(policyWith(5))
  push.send(policyTopic(INSTANCE), { instanceId: INSTANCE, revision: 5 })
  await device.pass(2_000)
  const [before, calls] = [rounds(device), device.cloud.calls.length]
  for (let i = 0; i < 1_000; i += 1) push.send(policyTopic(INSTANCE), { instanceId: INSTANCE, revision: 1 + (i % 5) })
  await device.pass(10_000)
  expect(rounds(device)).toBe(before)
  expect(device.cloud.calls.length).toBe(calls)
  expect(device.activePolicies.get(INSTANCE)?.document.revision).toBe(5)
})

test('a failure of the broker is reported once, and ends when it accepts the device', async () => {
  const { device, push } = await deviceWithPush()
  const refused = new CodedError('BROKER_REFUSED', 'bad user name or password')
  push.order?.onTrouble(refused)
  push.order?.onTrouble(refused)
  const before = device.cloud.calls.length
  await device.pass(30_000)
  expect(device.conditions).toEqual(['push: BROKER_REFUSED'])
  expect(device.cloud.calls.length).toBe(before + 1)
  await device.pass(1_000)
  push.order?.onTrouble(refused)
  await device.pass(30_000)
  expect(device.cloud.calls.length).toBe(before + 1)
  push.order?.onConnection(true)
  expect(device.conditions).toEqual([])
})

test('an idle device notices that its cloud is away when notifications end, and shows only that', async () => {
  const { device, push } = await deviceWithPush()
  expect(device.link.status().connected).toBe(true)
  device.network.down = true
  push.order?.onConnection(false)
  push.order?.onTrouble(new CodedError('BROKER_UNREACHABLE', 'it is away'))
  await device.pass(31_000)
  expect(device.link.status().connected).toBe(false)
  expect(device.conditions).toEqual(['cloud: CLOUD_UNREACHABLE'])
  device.network.down = false
  await device.pass(60_000)
  expect(device.conditions).toEqual(['push: BROKER_UNREACHABLE'])
})

test('a connection of the broker is a sign that the network is back', async () => {
  const { device, push } = await deviceWithPush()
  device.network.down = true
  for (let i = 0; i < 12; i += 1) await device.sync()
  device.network.down = false
  push.order?.onConnection(true)
  await device.pass(1_000)
  expect(device.link.status().connected).toBe(true)
})

test('the state of the push connection shows, and a stop closes it', async () => {
  const { device, push } = await deviceWithPush()
  expect(device.link.status().push).toBe('CONNECTED')
  push.order?.onConnection(false)
  expect(device.link.status().push).toBe('DISCONNECTED')
  const stopped = device.link.stop()
  await device.settle()
  await stopped
  expect(push.closed).toBe(true)
  expect((await TestDevice.running()).link.status().push).toBe('OFF')
})

test('a change notification is read by topic and content together', () => {
  const applied = new Map([[INSTANCE, 4]])
  const read = (topic: string, payload: string) => readNotification(topic, payload, DEVICE, applied)
  const notification = (revision: number) => JSON.stringify({ instanceId: INSTANCE, revision })
  expect(read(policyTopic(INSTANCE), notification(5))).toBe('NEWS')
  expect(read(policyTopic(INSTANCE), notification(4))).toBe('NOTHING_NEW')
  expect(read(deviceTopic(DEVICE), notification(5))).toBe('MALFORMED')
  expect(read(deviceTopic(DEVICE), '{"reason":"session"}')).toBe('NEWS')
  expect(read(policyTopic(INSTANCE), '{"reason":"session"}')).toBe('MALFORMED')
})

test('a revoked key is one fault: what the broker refuses with it is neither shown nor logged', async () => {
  const { device, push } = await deviceWithPush()
  device.cloud.revoked = true
  push.order?.onConnection(false)
  push.order?.onTrouble(new CodedError('BROKER_REFUSED', 'bad user name or password'))
  expect(device.conditions).toEqual([])
  await device.pass(30_000)
  expect(device.conditions).toEqual(['revocation: DEVICE_REVOKED'])
  push.order?.onTrouble(new CodedError('BROKER_REFUSED', 'bad user name or password'))
  push.order?.onTrouble(new CodedError('BROKER_UNREACHABLE', 'it is away'))
  // Before the next round could take it away again.
  expect(device.conditions).toEqual(['revocation: DEVICE_REVOKED'])
  await device.pass(60_000)
  expect(device.conditions).toEqual(['revocation: DEVICE_REVOKED'])
  const codes = device.logged.flatMap(({ fields: { code } }) => (typeof code === 'string' ? [code] : []))
  expect(codes).toEqual(['DEVICE_REVOKED'])
  device.cloud.revoked = false
  await device.sync()
  expect(device.conditions).toEqual([])
})

test('a device that finds its key revoked no longer says that the cloud or the broker was away', async () => {
  const { device, push } = await deviceWithPush()
  device.network.down = true
  push.order?.onConnection(false)
  push.order?.onTrouble(new CodedError('BROKER_UNREACHABLE', 'it is away'))
  await device.sync()
  expect(device.conditions).toEqual(['cloud: CLOUD_UNREACHABLE'])
  device.network.down = false
  device.cloud.revoked = true
  await device.sync()
  expect(device.conditions).toEqual(['revocation: DEVICE_REVOKED'])
})

test('what the broker refuses while the cloud is out of reach is shown when the cloud responds', async () => {
  const { device, push } = await deviceWithPush()
  device.network.down = true
  push.order?.onConnection(false)
  push.order?.onTrouble(new CodedError('BROKER_REFUSED', 'bad user name or password'))
  await device.pass(30_000)
  expect(device.conditions).toEqual(['cloud: CLOUD_UNREACHABLE'])
  device.network.down = false
  await device.sync()
  expect(device.conditions).toEqual(['push: BROKER_REFUSED'])
})
