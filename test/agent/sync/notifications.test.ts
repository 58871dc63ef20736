import { expect, test, vi } from 'vitest'
import { type Push, type PushOptions, isNews } from '../../../src/agent/sync/push.ts'
import { BROKER_CHANGE_GAP_MS } from '../../../src/agent/sync/limits.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { deviceTopic, policyTopic } from '../../../src/protocol/push.ts'
import { sha256, signDocument } from '../../../src/protocol/signing.ts'
import { DEVICE, INSTANCE, OTHER_INSTANCE, json, refusal } from './fake-cloud.ts'
import { newSigner } from '../../support/new-signer.ts'
import { policyWith } from './policies.ts'
import { SYNC, TestDevice } from './test-device.ts'

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

const FIRST_RULES = [
  {
    instanceId: INSTANCE,
    applied: 1,
    newest: 1,
    engine: 1,
    name: 'Workshop',
    remainingMs: expect.any(Number) as number,
  },
]

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
  expect(device.link.status().policies).toEqual(FIRST_RULES)
})

test('a retained change notification of rules in force already causes no request', async () => {
  const { device, push } = await deviceWithPush()
  const before = rounds(device)
  push.send(policyTopic(INSTANCE), { instanceId: INSTANCE, revision: 1 })
  await device.pass(1_000)
  expect(rounds(device)).toBe(before)
})

test('change notifications that are malformed or of others are ignored', async () => {
  const { device, push } = await deviceWithPush()
  const before = rounds(device)
  const notification = { instanceId: INSTANCE, revision: 2 }
  push.send(policyTopic(INSTANCE), '')
  push.send(policyTopic(INSTANCE), '{')
  push.send(policyTopic(INSTANCE), { ...notification, revision: '2' })
  push.send(policyTopic(INSTANCE), { ...notification, more: 1 })
  const other = '11111111-1111-4111-8111-111111111111'
  push.send(policyTopic(other), notification)
  push.send(policyTopic(other), { ...notification, instanceId: other })
  push.send('elsewhere', notification)
  push.send(deviceTopic(DEVICE), { reason: 'because' })
  push.send(deviceTopic('somebody-else'), { reason: 'sync' })
  await device.pass(5_000)
  expect(rounds(device)).toBe(before)
  expect(device.link.status().notifications).toBe(0)
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
  expect(device.link.status().policies).toEqual(FIRST_RULES)
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
    expect(device.link.status()).toMatchObject({ push: 'DISCONNECTED', notifications: 0 })
  },
)

test('a replayed change notification of an older revision, or of the one in force, causes no request', async () => {
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

test('an idle device notices that its cloud is unreachable when notifications end, and shows only that', async () => {
  const { device, push } = await deviceWithPush()
  expect(device.link.status().connected).toBe(true)
  device.network.down = true
  push.order?.onConnection(false)
  const isAway = () => push.order?.onTrouble(new CodedError('BROKER_UNREACHABLE', 'it is away'))
  isAway()
  await device.pass(31_000)
  push.order?.onTrouble(new CodedError('BROKER_NOT_TRUSTED', 'its certificate, as that of the cloud, has expired'))
  await device.pass(31_000)
  expect(device.link.status().connected).toBe(false)
  expect(device.conditions).toEqual(['cloud: CLOUD_UNREACHABLE'])
  device.network.down = false
  await device.pass(60_000)
  expect(device.conditions).toEqual([])
  isAway()
  await device.pass(31_000)
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

test('a device that enrolls again for another instance gets its notifications too', async () => {
  const { device, push } = await deviceWithPush()
  let hasEnded = true
  device.network.intercept = async (request) => {
    const answer = await device.cloud.exchange(request)
    hasEnded &&= !request.url.endsWith('/enrollments')
    return hasEnded && request.url.endsWith('/attach')
      ? refusal(403, 'DEVICE_TERMINATED', 'The service of this device was ended.')
      : answer
  }
  device.cloud.fence()
  await device.sync()
  device.token = await device.cloud.enrollmentToken({ instances: [OTHER_INSTANCE] })
  device.link.wake('operator')
  await device.settle()
  expect(push.closed).toBe(true)
  expect(push.order?.instanceIds).toEqual([INSTANCE, OTHER_INSTANCE])
})

/** Only the brokers in `up` respond. */
class FakeBrokers implements Push {
  readonly up = new Set([OLD])
  readonly visits: string[] = []
  #connection: PushOptions | null = null

  async run(options: PushOptions, signal: AbortSignal): Promise<void> {
    // Both would have the same client id: the broker would end one of them.
    if (this.#connection !== null) throw new Error('a second connection')
    this.#connection = options
    this.visits.push(options.url)
    const isUp = this.up.has(options.url)
    if (isUp) options.onConnection(true)
    else options.onTrouble(away)
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
    // As a connection that ends while it subscribes.
    options.onConnection(true)
    options.onConnection(false)
    options.onTrouble(away)
    this.#connection = null
  }

  stop(url: string): void {
    this.up.delete(url)
    this.#connection?.onConnection(false)
    this.#connection?.onTrouble(away)
  }
}

const away = new CodedError('BROKER_UNREACHABLE', 'it is away')
const OLD = 'mqtt://broker.test'
const NEW = 'mqtts://moved.test:8884'

async function deviceAtBroker(part = 0.5) {
  const push = new FakeBrokers()
  const device = await TestDevice.make({ push, fraction: () => part })
  device.cloud.pushUrl = OLD
  await device.start()
  await device.settle()
  await device.pass(2_000)
  const identities = vi.spyOn(device.journal, 'saveIdentity')
  return { device, push, identities }
}

const syncs = (device: TestDevice): number => device.cloud.calls.filter((call) => call.endsWith('/sync')).length

test('a device moves to the broker that a sync names, and writes the address once', async () => {
  const { device, push, identities } = await deviceAtBroker()
  await device.sync()
  expect(identities).not.toHaveBeenCalled()
  push.up.add(NEW)
  device.cloud.pushUrl = NEW
  await device.sync()
  await device.sync()
  expect(push.visits).toEqual([OLD, NEW])
  expect(identities).toHaveBeenCalledOnce()
  expect(device.link.status().push).toBe('CONNECTED')
  expect(device.conditions).toEqual([])
  const stopped = device.link.stop()
  await device.settle()
  await stopped
  device.network.down = true
  await device.restart()
  await device.settle()
  expect(push.visits).toEqual([OLD, NEW, NEW])
})

test.each([0, 0.5, 0.999])(
  'a device whose broker has moved finds it with one sync within 30 s (chance %d)',
  async (part) => {
    const { device, push } = await deviceAtBroker(part)
    const before = syncs(device)
    device.cloud.pushUrl = NEW
    push.up.add(NEW)
    push.stop(OLD)
    await device.pass(31_000)
    expect(push.visits).toEqual([OLD, NEW])
    expect(syncs(device)).toBe(before + 1)
    expect(device.link.status().push).toBe('CONNECTED')
    expect(device.conditions).toEqual([])
  },
)

test('a device whose broker moves hours after its end finds it within one interval of syncs', async () => {
  const { device, push, identities } = await deviceAtBroker()
  push.stop(OLD)
  await device.pass(3 * 3_600_000)
  expect(device.conditions).toEqual(['push: BROKER_UNREACHABLE'])
  expect(identities).not.toHaveBeenCalled()
  push.up.add(NEW)
  device.cloud.pushUrl = NEW
  await device.pass(SYNC.interval)
  expect(device.link.status().push).toBe('CONNECTED')
  expect(device.conditions).toEqual([])
})

test('a device that cannot reach the new broker reports it, keeps polling, and uses a corrected address', async () => {
  const { device, push } = await deviceAtBroker()
  device.cloud.pushUrl = 'mqtt://mistyped.test'
  await device.sync()
  await device.pass(31_000)
  expect(device.link.status()).toMatchObject({ push: 'DISCONNECTED', connected: true })
  expect(device.conditions).toEqual(['push: BROKER_UNREACHABLE'])
  await device.cloud.publish(policyWith(2))
  await device.pass(SYNC.interval)
  expect(device.activePolicies.get(INSTANCE)?.document.revision).toBe(2)
  push.up.add(NEW)
  device.cloud.pushUrl = NEW
  await device.pass(BROKER_CHANGE_GAP_MS)
  expect(device.link.status().push).toBe('CONNECTED')
  expect(device.conditions).toEqual([])
})

test('a device leaves its broker when the cloud has none, and connects when it has one', async () => {
  const { device, push } = await deviceAtBroker()
  push.stop(OLD)
  await device.pass(31_000)
  expect(device.conditions).toEqual(['push: BROKER_UNREACHABLE'])
  device.cloud.pushUrl = null
  await device.sync()
  await device.pass(31_000)
  expect(device.link.status().push).toBe('OFF')
  expect(device.conditions).toEqual([])
  push.up.add(NEW)
  device.cloud.pushUrl = NEW
  await device.pass(BROKER_CHANGE_GAP_MS)
  expect(device.link.status().push).toBe('CONNECTED')
  expect(push.visits).toEqual([OLD, NEW])
})

/** Replaces the signed time in the responses to syncs. */
function replaceTime(
  device: TestDevice,
  replace: (about: { nonce: string; answer: string; time: string }) => unknown,
): void {
  const { exchange } = device.cloud
  device.network.intercept = async (request) => {
    const response = await exchange(request)
    if (!request.url.endsWith('/sync')) return response
    const { nonce } = JSON.parse(request.body ?? '') as { nonce: string }
    const signed = JSON.parse(response.body) as { answer: string; time: string }
    return json(200, { ...signed, time: await replace({ nonce, ...signed }) })
  }
}

test('an address that the cloud has not signed is not used', async () => {
  const { device, push } = await deviceAtBroker()
  const stranger = await newSigner()
  replaceTime(device, ({ nonce, answer }) => {
    const time = { nonce, time: device.time.truth(), answer: sha256(answer), push: NEW }
    return signDocument('time', JSON.stringify(time), stranger.signer)
  })
  await device.sync()
  expect(device.conditions).toEqual(['cloud: TRUST_MISMATCH'])
  expect(push.visits).toEqual([OLD])
})

test('an address that the cloud has signed for an earlier attempt is not used', async () => {
  const { device, push } = await deviceAtBroker()
  let earlier = ''
  replaceTime(device, ({ time }) => {
    earlier ||= time
    return time
  })
  await device.sync()
  device.cloud.pushUrl = NEW
  await device.sync()
  device.time.advance(BROKER_CHANGE_GAP_MS)
  expect(push.visits).toEqual([OLD, NEW])
  const replayed = earlier
  replaceTime(device, () => replayed)
  await device.sync()
  expect(device.conditions).toContain('sync: ANSWER_UNEXPECTED')
  expect(push.visits).toEqual([OLD, NEW])
})

/** Syncs, visits and writes of a device in an hour of syncs with two nodes in turn. */
async function hourWith(nodes: readonly [string | null, string | null], up: readonly string[]) {
  const { device, push, identities } = await deviceAtBroker()
  const { exchange } = device.cloud
  let turn = 0
  device.network.intercept = async (request) => {
    if (request.url.endsWith('/sync')) device.cloud.pushUrl = nodes[(turn += 1) % 2] ?? null
    return exchange(request)
  }
  for (const url of up) push.up.add(url)
  if (!up.includes(OLD)) push.stop(OLD)
  const before = syncs(device)
  await device.pass(3_600_000)
  return { syncs: syncs(device) - before, visits: push.visits.length, writes: identities.mock.calls.length, device }
}

test('nodes that name different brokers cause a change in ten minutes, and no more syncs', async () => {
  const usual = await hourWith([OLD, OLD], [OLD])
  expect(usual).toMatchObject({ visits: 1, writes: 0 })
  const both = await hourWith([OLD, NEW], [OLD, NEW])
  expect(both.syncs).toBe(usual.syncs)
  expect(both.visits).toBeLessThanOrEqual(7)
  expect(both.writes).toBeLessThanOrEqual(6)
})

test('nodes that name different brokers cause one extra sync for each broker if none responds', async () => {
  const usual = await hourWith([OLD, OLD], [OLD])
  const none = await hourWith([OLD, NEW], [])
  expect(none.syncs).toBeLessThanOrEqual(usual.syncs + 2)
  expect(none.writes).toBeLessThanOrEqual(6)
  expect(none.device.conditions).toEqual(['push: BROKER_UNREACHABLE'])
})

test('two nodes, one without a broker, cause a change in ten minutes', async () => {
  const usual = await hourWith([OLD, OLD], [OLD])
  const off = await hourWith([null, OLD], [])
  expect(off.syncs).toBeLessThanOrEqual(usual.syncs + 6)
  expect(off.writes).toBeLessThanOrEqual(6)
})

test('a change notification is read by topic and content together', () => {
  const applied = new Map([[INSTANCE, 4]])
  const read = (topic: string, payload: string) => isNews(topic, payload, DEVICE, applied)
  const notification = (revision: number) => JSON.stringify({ instanceId: INSTANCE, revision })
  expect(read(policyTopic(INSTANCE), notification(5))).toBe(true)
  expect(read(policyTopic(INSTANCE), notification(4))).toBe(false)
  expect(read(deviceTopic(DEVICE), notification(5))).toBe(false)
  expect(read(deviceTopic(DEVICE), '{"reason":"session"}')).toBe(true)
  expect(read(policyTopic(INSTANCE), '{"reason":"session"}')).toBe(false)
})

test('a revoked key is one fault: refusals of the broker because of it are neither shown nor logged', async () => {
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

test('a device that finds its key revoked no longer reports the cloud or the broker as unreachable', async () => {
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
  expect(device.activePolicies.isDeviceRefused).toBe(true)
  device.cloud.revoked = false
  await device.sync()
  expect(device.activePolicies.isDeviceRefused).toBe(false)
})

test('refusals of the broker while the cloud is out of reach are shown when the cloud responds', async () => {
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
