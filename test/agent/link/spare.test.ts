import { expect, test } from 'vitest'
import { audit } from './audit.ts'
import { ACCOUNT, STARTING_GRANT, TestDevice } from './test-device.ts'

const HOUR = 3_600_000

test('an idle device that others need tokens of gives back all of them at once, and asks for none in advance', async () => {
  const device = await TestDevice.running()
  expect(device.left).toBe(STARTING_GRANT)
  device.cloud.releases = [{ account: ACCOUNT, keep: '4000000' }]
  await device.sync()
  expect(device.left).toBe(0n)
  expect(device.cloud.outOn(ACCOUNT)).toBe(0n)
  await device.pass(HOUR / 2)
  expect(device.left).toBe(0n)
  await device.pass(HOUR)
  expect(device.left).toBe(STARTING_GRANT)
  audit(device)
})

test('a device in use keeps what it will need, and never more than its share', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.releases = [{ account: ACCOUNT, keep: '4000000' }]
  await device.sync()
  // 1 token in the first hour is 24 in a day: it needs all of its share.
  expect(device.left).toBe(4_000_000n)
  expect(device.cloud.outOn(ACCOUNT)).toBe(5_000_000n)
  audit(device)
})

test('what a process that ends has given up stays given up', async () => {
  const device = await TestDevice.running()
  device.cloud.releases = [{ account: ACCOUNT, keep: '0' }]
  device.disk.commitsUntilCrash = 3
  await device.sync()
  await device.restart()
  await device.settle()
  expect(device.cloud.outOn(ACCOUNT)).toBe(device.left)
  audit(device)
})
