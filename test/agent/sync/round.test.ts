import { expect, test } from 'vitest'
import { CodedError } from '../../../src/protocol/errors.ts'
import { TestDevice } from './test-device.ts'

const MINUTE = 60_000

test.each([
  [0, 20],
  [0.5, 20],
  [0.999, 20],
  [0, 35],
])(
  'an idle device never syncs later than its interval, whatever its heartbeats (chance %d, every %d minutes)',
  async (part, every) => {
    const sync = { interval: every * MINUTE, heartbeat: 15 * MINUTE }
    const device = await TestDevice.make({ fraction: () => part, sync })
    device.cloud.nextSyncMs = sync.interval
    await device.start()
    await device.settle()
    const heartbeats = () => device.cloud.calls.filter((call) => call.includes('heartbeat')).length
    for (let round = 0; round < 12; round += 1) {
      const before = device.cloud.received.length
      await device.pass(sync.interval)
      expect(device.cloud.received.length).toBeGreaterThan(before)
    }
    expect(heartbeats()).toBeGreaterThan(0)
    const rounds = device.link.status().rounds.done
    expect(rounds).toBeLessThan((12 * every * MINUTE) / ((15 * MINUTE) / 4))
  },
)

test('logs the reason of a failed exchange, without the bytes that were received', async () => {
  const device = await TestDevice.make()
  const rawPacket = Buffer.alloc(60_000)
  const cause = Object.assign(new Error('Parse Error: Expected HTTP/'), { code: 'HPE_INVALID_CONSTANT', rawPacket })
  device.network.intercept = () => Promise.reject(new CodedError('CLOUD_UNREACHABLE', 'not HTTP', { cause }))
  await device.start()
  await device.settle()
  expect(device.logged.map(({ fields }) => fields)).toContainEqual({
    subject: 'enrollment',
    code: 'CLOUD_UNREACHABLE',
    cause: 'Parse Error: Expected HTTP/',
  })
})

test('logs the reason of a failed exchange once if the message names it, and the end of each problem', async () => {
  const device = await TestDevice.running()
  const cause = new Error('getaddrinfo ENOTFOUND cloud.example')
  const message = `cloud.example does not respond: ${cause.message}`
  device.network.intercept = () => Promise.reject(new CodedError('CLOUD_UNREACHABLE', message, { cause }))
  device.logged.length = 0
  await device.sync()
  await device.sync()
  const since = device.link.status().conditions[0]?.since
  device.network.intercept = null
  await device.sync()
  await device.sync()
  const problem = { subject: 'cloud', code: 'CLOUD_UNREACHABLE' }
  expect(device.logged.filter(({ fields }) => 'code' in fields)).toEqual([
    { fields: problem, message },
    { fields: { ...problem, since }, message: 'a problem has ended' },
  ])
  // With one level, a filter shows both.
  expect(device.warned).toEqual([message, 'a problem has ended'])
})

test('logs each other reason of the network, and counts the time from the first one', async () => {
  const device = await TestDevice.running()
  const failing = (network: string) => (device.network.intercept = () => Promise.reject(unreachable(network)))
  const unreachable = (network: string) => new CodedError('CLOUD_UNREACHABLE', network, { details: { network } })
  device.logged.length = 0
  for (const network of ['EAI_AGAIN', 'EAI_AGAIN', 'CERT_HAS_EXPIRED']) {
    failing(network)
    await device.sync()
    await device.pass(1)
  }
  expect(device.logged.map(({ message }) => message)).toEqual(['EAI_AGAIN', 'CERT_HAS_EXPIRED'])
  const [since] = device.link.status().conditions.map((condition) => condition.since)
  expect(device.clock.reading().now - since!).toBeGreaterThan(1)
})

test('a cloud that is silent, and a proxy that responds in its place, are one condition after the other', async () => {
  const device = await TestDevice.running()
  const silent = () => Promise.reject(new CodedError('CLOUD_UNREACHABLE', 'silent'))
  const portal = () => Promise.resolve({ status: 200, headers: {}, body: '<html>Sign in to the hotel</html>' })
  for (const [answer, condition] of [
    [silent, 'cloud: CLOUD_UNREACHABLE'],
    [portal, 'sync: ANSWER_UNEXPECTED'],
    [silent, 'cloud: CLOUD_UNREACHABLE'],
  ] as const) {
    device.network.intercept = answer
    await device.sync()
    expect(device.conditions).toEqual([condition])
  }
})
