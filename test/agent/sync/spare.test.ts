import { expect, test } from 'vitest'
import { audit } from './audit.ts'
import { ACCOUNT, CAP, STARTING_GRANT, TestDevice } from './test-device.ts'

const HOUR = 3_600_000
const needOf = (amount: bigint) => ({ needs: [[{ account: ACCOUNT, amount }]], accounts: [ACCOUNT] })

test('an idle device returns all tokens at once that others need, and requests some when there are any', async () => {
  const device = await TestDevice.running()
  expect(device.left).toBe(STARTING_GRANT)
  device.cloud.releases = [{ account: ACCOUNT, keep: '4000000' }]
  device.cloud.caps.set(ACCOUNT, 0n)
  await device.sync()
  expect(device.left).toBe(0n)
  expect(device.cloud.outOn(ACCOUNT)).toBe(0n)
  device.cloud.caps.set(ACCOUNT, CAP)
  await device.sync()
  expect(device.left).toBe(STARTING_GRANT)
  audit(device)
})

test('tokens that no request used go back with the next sync, down to the target balance', async () => {
  const device = await TestDevice.running()
  const asked = device.link.requestGrant(needOf(90_000_000n), 2_000)
  await device.pass(100)
  await asked
  expect(device.left).toBe(90_000_000n)
  await device.sync()
  expect(device.left).toBe(STARTING_GRANT)
  expect(device.cloud.outOn(ACCOUNT)).toBe(STARTING_GRANT)
  audit(device)
})

test('no tokens are returned that a request waits for, or up to twice the target balance', async () => {
  const device = await TestDevice.running()
  const needs = [30_000_000n, 90_000_000n].map((amount) => device.link.requestGrant(needOf(amount), 2_000))
  await device.pass(100)
  await Promise.all(needs)
  // In the same round the tokens stay until the requests have looked at them.
  expect(device.left).toBe(120_000_000n)
  expect(await device.charge(100_000_000n)).toBe('GRANTED')
  // 100 tokens in the first hour are 2,400 in a day.
  await device.sync()
  expect(device.left).toBe(CAP - 100_000_000n)
  audit(device)
})

test('a device keeps tokens for its use before a restart for a day, because its burn rate is unknown', async () => {
  const device = await TestDevice.running({ sync: { interval: HOUR } })
  await device.charge(1_000_000n)
  await device.sync()
  const { left } = device
  device.cloud.nextSyncMs = HOUR
  expect(left).toBeGreaterThan(2n * STARTING_GRANT)
  await device.restart()
  await device.settle()
  await device.sync()
  expect(device.left).toBe(left)
  await device.pass(25 * HOUR)
  await device.sync()
  expect(device.left).toBe(STARTING_GRANT)
  audit(device)
})

test('a device in use keeps the tokens that it will need, and never more than its share', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.releases = [{ account: ACCOUNT, keep: '4000000' }]
  await device.sync()
  // 1 token in the first hour is 24 in a day: it needs all of its share.
  expect(device.left).toBe(4_000_000n)
  expect(device.cloud.outOn(ACCOUNT)).toBe(5_000_000n)
  audit(device)
})

test('tokens that a process returned at its end stay returned', async () => {
  const device = await TestDevice.running()
  device.cloud.releases = [{ account: ACCOUNT, keep: '0' }]
  device.disk.commitsUntilCrash = 3
  await device.sync()
  await device.restart()
  await device.settle()
  expect(device.cloud.outOn(ACCOUNT)).toBe(device.left)
  audit(device)
})
