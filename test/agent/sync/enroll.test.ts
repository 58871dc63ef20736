import { expect, test } from 'vitest'
import { CodedError } from '../../../src/protocol/errors.ts'
import { DEVICE, INSTANCE, json, refusal } from './fake-cloud.ts'
import { newSigner } from '../../support/new-signer.ts'
import { TestDevice } from './test-device.ts'

test('a device without a token reports it, and enrolls when it gets one', async () => {
  const device = await TestDevice.make()
  const token = device.token
  device.token = null
  await device.start()
  await device.settle()
  device.link.wake('operator')
  await device.settle()
  expect(device.conditions).toEqual(['enrollment: NOT_ENROLLED'])
  expect(device.logged).toEqual([
    { fields: { code: 'NOT_ENROLLED' }, message: expect.stringContaining('token') as string },
  ])
  device.token = token
  device.link.wake('operator')
  await device.settle()
  expect(device.conditions).toEqual([])
  expect(device.disk.read().identity).toMatchObject({ deviceId: DEVICE, instanceIds: [INSTANCE] })
})

test('a cloud that shows no pinned key is not trusted, and tried again later', async () => {
  const device = await TestDevice.make()
  const real = device.cloud.key
  device.cloud.key = await newSigner()
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual(['enrollment: TRUST_MISMATCH'])
  expect(device.link.status().connected).toBe(false)
  expect(device.disk.read().identity).toBeNull()
  device.cloud.key = real
  await device.pass(10_000)
  expect(device.disk.read().identity).not.toBeNull()
})

test('a token with a line break is refused without a request to the cloud', async () => {
  const device = await TestDevice.make()
  device.token = device.token?.replace('.', '.\n') ?? null
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual(['enrollment: ENROLLMENT_REFUSED'])
  expect(device.link.status().conditions[0]?.message).toContain('it has spaces, line breaks')
})

test('of the keys that the cloud shows only the pinned ones are kept', async () => {
  const device = await TestDevice.make()
  const stranger = await newSigner()
  device.network.tamper = (request, answer) => {
    if (!request.url.endsWith('/enrollments')) return answer
    const body = JSON.parse(answer.body) as { trustedKeys: unknown[] }
    return json(200, { ...body, trustedKeys: [stranger.jwk, ...body.trustedKeys] })
  }
  device.network.faults = [null, 'LOSE_REQUEST']
  await device.start()
  await device.settle()
  expect(device.disk.read().identity?.trustedKeys).toEqual([JSON.stringify(device.cloud.key.jwk)])
})

test('an instance that the token does not name is not served', async () => {
  const device = await TestDevice.make()
  device.token = await device.cloud.enrollmentToken({ instances: ['11111111-1111-4111-8111-111111111111'] })
  device.network.tamper = (request, answer) =>
    request.url.endsWith('/enrollments')
      ? json(200, { ...(JSON.parse(answer.body) as object), instanceIds: [INSTANCE] })
      : answer
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual(['enrollment: TRUST_MISMATCH'])
  expect(device.link.status().connected).toBe(false)
})

test('a refused token is not tried again, another one is', async () => {
  const device = await TestDevice.make()
  device.cloud.enrolledBy = 'another key'
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual(['enrollment: ENROLLMENT_REFUSED'])
  expect(device.link.status().conditions[0]?.message).toBe(
    'The cloud refused the enrollment token in /etc/tallygate/enrollment-token. This enrollment token was used by another device.',
  )
  await device.pass(3_600_000)
  expect(device.cloud.calls).toEqual(['POST /tg/edge/api/v1/enrollments'])
  expect(device.conditions).toEqual(['enrollment: ENROLLMENT_REFUSED'])

  device.cloud.enrolledBy = null
  device.token = await device.cloud.enrollmentToken({ name: 'gateway 7' })
  device.link.wake('operator')
  await device.settle()
  expect(device.conditions).toEqual([])
})

test('each new reason why a device does not enroll is logged once', async () => {
  const device = await TestDevice.make()
  device.cloud.enrolledBy = 'another key'
  await device.start()
  for (const token of [device.token, 'nonsense', 'nonsense']) {
    device.token = token
    device.link.wake('operator')
    await device.settle()
  }
  expect(
    device.logged.filter(({ fields }) => fields['code'] === 'ENROLLMENT_REFUSED').map(({ message }) => message),
  ).toEqual([expect.stringContaining('was used by another device'), expect.stringContaining('it is not a JWT')])
})

test('a reload tries a refused token again', async () => {
  const device = await TestDevice.make()
  device.cloud.enrolledBy = 'another key'
  await device.start()
  await device.settle()
  device.cloud.enrolledBy = null
  await device.pass(3_600_000)
  expect(device.conditions).toEqual(['enrollment: ENROLLMENT_REFUSED'])
  device.link.wake('operator')
  await device.settle()
  expect(device.conditions).toEqual([])
})

test('only the newest reason why a device does not enroll is shown', async () => {
  const device = await TestDevice.make()
  const silent = () => Promise.reject(new CodedError('CLOUD_UNREACHABLE', 'silent'))
  const shown = async (change: () => void): Promise<readonly string[]> => {
    change()
    device.link.wake('operator')
    await device.settle()
    return device.conditions
  }
  device.network.intercept = silent
  await device.start()
  await device.settle()
  expect(device.conditions).toEqual(['enrollment: CLOUD_UNREACHABLE'])
  device.cloud.enrolledBy = 'another key'
  expect(await shown(() => (device.network.intercept = null))).toEqual(['enrollment: ENROLLMENT_REFUSED'])
  expect(await shown(() => (device.network.intercept = silent))).toEqual(['enrollment: CLOUD_UNREACHABLE'])
  const revoked = () => Promise.resolve(refusal(403, 'DEVICE_REVOKED', 'revoked'))
  expect(await shown(() => (device.network.intercept = revoked))).toEqual(['revocation: DEVICE_REVOKED'])
  expect(await shown(() => (device.network.intercept = silent))).toContain('enrollment: CLOUD_UNREACHABLE')
  expect(await shown(() => (device.token = null))).toContain('enrollment: NOT_ENROLLED')
})

test('an invalid enrollment token is refused without a request to the cloud', async () => {
  for (const token of ['', 'nonsense', 'a.b.c', (await TestDevice.make()).key.signer.keyId]) {
    const device = await TestDevice.make()
    device.token = token
    await device.start()
    await device.settle()
    expect(device.conditions).toEqual(['enrollment: ENROLLMENT_REFUSED'])
    expect(device.link.status().conditions[0]?.message).toMatch(
      /^\/etc\/tallygate\/enrollment-token contains no enrollment token: it is /,
    )
    expect(device.cloud.calls).toEqual([])
  }
})

test('a lost answer to the enrollment is harmless', async () => {
  const device = await TestDevice.make()
  device.network.faults = ['LOSE_ANSWER']
  await device.start()
  await device.settle()
  expect(device.disk.read().identity).toBeNull()
  await device.pass(10_000)
  expect(device.disk.read().identity?.deviceId).toBe(DEVICE)
  expect(device.conditions).toEqual([])
})

test('while the network is down the attempts become rarer, up to the cap, and end with the first that gets through', async () => {
  const attempts: number[] = []
  const device = await TestDevice.make()
  device.network.intercept = async () => {
    attempts.push(device.time.sinceBoot())
    return refusal(503, 'OVERLOADED', 'busy')
  }
  await device.start()
  await device.pass(3_600_000)
  const waits = attempts.slice(1).map((at, index) => at - (attempts[index] ?? 0))
  // Full jitter with a fraction that is always one half.
  expect(waits.slice(0, 5)).toEqual([500, 1_000, 2_000, 4_000, 8_000])
  expect(Math.max(...waits)).toBe(150_000)
  device.network.intercept = null
  await device.pass(150_000)
  expect(device.disk.read().identity).not.toBeNull()
})

test.each([
  ['before its first attach', () => TestDevice.make()],
  [
    'while it has to attach again',
    async () => {
      const device = await TestDevice.running()
      device.cloud.fence()
      return device
    },
  ],
])('a device whose service ended %s enrolls with a new token', async (_when, make) => {
  const device = await make()
  const isFirst = device.disk.read().identity === null
  let hasEnded = !isFirst
  let isAway = false
  let isRefused = false
  device.network.intercept = async (request) => {
    if (isRefused && request.url.endsWith('/attach')) return refusal(429, 'ATTACH_TOO_OFTEN', 'Another copy attaches.')
    if (isAway) throw new CodedError('CLOUD_UNREACHABLE', 'silent')
    const answer = await device.cloud.exchange(request)
    if (request.url.endsWith('/enrollments')) hasEnded = !hasEnded
    return hasEnded && request.url.endsWith('/attach')
      ? refusal(403, 'DEVICE_TERMINATED', 'The service of this device was ended.')
      : answer
  }
  if (isFirst) await device.start()
  await (isFirst ? device.settle() : device.sync())
  expect(device.conditions).toEqual(['attach: DEVICE_TERMINATED'])
  const { epoch } = device.link.status()
  // The token that it used already is not tried again.
  await device.sync()
  expect(device.link.status().epoch).toBe(epoch)
  device.token = await device.cloud.enrollmentToken({ name: 'press-7' })
  const tries = async (): Promise<boolean> => {
    device.link.wake('operator')
    await device.settle()
    return device.link.status().connected
  }
  isAway = true
  expect(await tries()).toBe(false)
  expect(device.conditions).toContain('enrollment: CLOUD_UNREACHABLE')
  isAway = false
  isRefused = true
  expect(await tries()).toBe(true)
  expect(device.conditions).toEqual(['attach: ATTACH_TOO_OFTEN'])
  isRefused = false
  expect(await tries()).toBe(true)
  expect(device.conditions).toEqual([])
  expect(device.link.status()).toMatchObject({ name: 'press-7', fenced: false })
  expect(device.link.status().epoch).toBeGreaterThan(epoch)
  expect(await device.charge(1n)).toBe('GRANTED')
})
