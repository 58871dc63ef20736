import { createPublicKey } from 'node:crypto'
import { decodeJwt, jwtVerify } from 'jose'
import { expect, test } from 'vitest'
import type { Identity } from '../../../src/agent/ledger/journal.ts'
import { DeviceTokens } from '../../../src/agent/keys/device-token.ts'
import { DEVICE, EDGE, INSTANCE, SERVICE } from '../sync/fake-cloud.ts'
import { Clock } from '../../../src/agent/runtime/clock.ts'
import { FakeTime } from '../sync/fake-time.ts'
import { makeDeviceKey, TestDevice } from '../sync/test-device.ts'

const identity: Identity = {
  deviceId: DEVICE,
  keyId: 'k',
  instanceIds: [INSTANCE],
  trustedKeys: [],
  edgeUrl: EDGE,
  serviceUrl: SERVICE,
  pushUrl: null,
  suspension: null,
}

test('a device token has the claims of a client token and lives for minutes', async () => {
  const key = await makeDeviceKey()
  const time = new FakeTime()
  const token = await new DeviceTokens({ current: key }, new Clock(time, null)).token(identity)
  const { payload } = await jwtVerify(token, createPublicKey({ key: key.publicJwk, format: 'jwk' }), {
    currentDate: new Date(time.truth()),
  })
  expect(payload).toMatchObject({
    iss: DEVICE,
    aud: [INSTANCE],
    cnf: { jwk: { kid: key.signer.keyId, kty: 'CLIENT' } },
  })
  const { nbf = 0, iat = 0, exp = 0 } = payload
  expect(exp - time.truth() / 1000).toBe(300)
  expect(nbf).toBeLessThan(time.truth() / 1000)
  expect(iat).toBe(nbf)
})

test('a token is used again while it has time left, and not for another set of instances', async () => {
  const time = new FakeTime()
  const tokens = new DeviceTokens({ current: await makeDeviceKey() }, new Clock(time, null))
  const first = await tokens.token(identity)
  time.advance(179_000)
  expect(await tokens.token(identity)).toBe(first)
  expect(await tokens.token({ ...identity, instanceIds: [] })).not.toBe(first)
  const second = await tokens.token(identity)
  time.advance(181_000)
  expect(await tokens.token(identity)).not.toBe(second)
})

test('a wall clock that is set does not make a token live longer', async () => {
  const time = new FakeTime()
  const tokens = new DeviceTokens({ current: await makeDeviceKey() }, new Clock(time, null))
  const first = await tokens.token(identity)
  time.wallErrorMs = -86_400_000
  time.advance(200_000)
  expect(await tokens.token(identity)).not.toBe(first)
})

test('a token has the time that the cloud signed, not the one of the wall clock', async () => {
  const time = new FakeTime()
  const clock = new Clock(time, null)
  const tokens = new DeviceTokens({ current: await makeDeviceKey() }, clock)
  time.wallErrorMs = -3_600_000
  tokens.followCloudClock(time.truth())
  clock.learn({ time: time.truth(), sentAt: time.sinceBoot(), receivedAt: time.sinceBoot() })
  for (const wallErrorMs of [-3_600_000, 0, 3_600_000]) {
    time.wallErrorMs = wallErrorMs
    for (const known of [tokens, new DeviceTokens({ current: await makeDeviceKey() }, clock)]) {
      expect(decodeJwt(await known.fresh(identity)).exp).toBeCloseTo(time.truth() / 1000 + 300, -1)
    }
  }
})

test.each([-40 * 365 * 86_400_000, -3_600_000, 3_600_000, 10 * 365 * 86_400_000])(
  'a device whose wall clock is wrong by %i ms reaches the cloud by the clock of its answers, which decides nothing else',
  async (wallErrorMs) => {
    const device = await TestDevice.make()
    device.time.wallErrorMs = wallErrorMs
    await device.start()
    await device.settle()
    expect(device.conditions).toEqual([])
    expect(device.link.status().epoch).toBe(1)
    expect(await device.charge(1_000n)).toBe('GRANTED')
    expect(device.network.refusedTokens).toBe(1)
  },
)

test('the clock of an unsigned answer has no say in decisions', async () => {
  const device = await TestDevice.make()
  device.time.wallErrorMs = 3_600_000
  device.network.faults = [null, null, 'LOSE_ANSWER']
  await device.start()
  await device.settle()
  // One call was refused for its time, and nothing that the cloud signed has arrived.
  const { earliest, latest } = device.clock.reading()
  expect(latest).toBeNull()
  expect(earliest).toBeLessThan(60_000)
})

test('a cloud that keeps refusing is asked twice and not for ever', async () => {
  const device = await TestDevice.running()
  device.network.tamper = () => ({
    status: 401,
    headers: { date: new Date(0).toUTCString() },
    body: '{"code":"TOKEN_NOT_IN_TIME","message":"no"}',
  })
  const before = device.cloud.calls.length
  await device.sync()
  expect(device.cloud.calls.length - before).toBe(2)
  expect(device.conditions).toEqual(['sync: TOKEN_NOT_IN_TIME'])
})

test('every connection to the broker has its own token', async () => {
  const tokens = new DeviceTokens({ current: await makeDeviceKey() }, new Clock(new FakeTime(), null))
  const kept = await tokens.token(identity)
  expect(decodeJwt(await tokens.fresh(identity))).toEqual(decodeJwt(kept))
})
