import { expect, test } from 'vitest'
import { audit, calmDown } from './audit.ts'
import { ACCOUNT, TestDevice } from './test-device.ts'

test('a fenced device stops spending, delivers what is left as final, and attaches anew in the same round', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.fence()
  await device.sync()
  const [first] = device.cloud.incarnations.values()
  expect(first).toMatchObject({ status: 'CLOSED', forked: false })
  expect(device.link.status()).toMatchObject({ incarnation: 2, fenced: false, backlog: 0 })
  expect(device.left > 0n).toBe(true)
  expect(device.cloud.outOn(ACCOUNT)).toBe(1_000_000n + device.left)
  audit(device)
})

test('of a long backlog only the last segment of a fenced incarnation is final', async () => {
  const device = await TestDevice.running()
  device.disk.segmentEntriesMax = 2
  for (let i = 0; i < 7; i += 1) await device.charge(1_000n)
  device.cloud.fence()
  await device.sync()
  const [first] = device.cloud.incarnations.values()
  expect(first?.merged).toHaveLength(5)
  expect(first?.status).toBe('CLOSED')
  expect(device.link.status().incarnation).toBe(2)
  audit(device)
})

test('nothing is spent between the news of the fence and the next incarnation', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.fence()
  device.network.faults = [null, 'LOSE_REQUEST']
  await device.sync()
  expect(device.link.status().fenced).toBe(true)
  expect(await device.charge(1n)).toBe('REFUSED')
  await device.restart()
  expect(await device.charge(1n)).toBe('REFUSED')
  await calmDown(device)
  expect(await device.charge(1n)).toBe('GRANTED')
  await calmDown(device)
  audit(device)
})

test('an attach whose answer is lost is repeated with its nonce, and makes one incarnation', async () => {
  const device = await TestDevice.make()
  device.network.faults = [null, 'LOSE_ANSWER', 'LOSE_ANSWER']
  await device.start()
  await device.settle()
  await device.sync()
  await device.sync()
  expect(device.cloud.incarnations.size).toBe(1)
  expect(device.link.status().incarnation).toBe(1)
})

test('an attach of an earlier life of the process is not taken up again', async () => {
  const device = await TestDevice.make()
  device.network.faults = [null, 'LOSE_ANSWER']
  await device.start()
  await device.settle()
  await device.restart()
  await device.settle()
  expect(device.cloud.incarnations.size).toBe(2)
  expect(device.link.status().incarnation).toBe(2)
  await device.charge(1_000_000n)
  await calmDown(device)
  audit(device)
})

test('an incarnation that is not above all that the device ever had is refused', async () => {
  const device = await TestDevice.running()
  device.disk.incarnation = 7
  device.disk.fenced = true
  device.disk.segments = []
  device.disk.entries = []
  await device.restart()
  await device.settle()
  expect(device.disk.incarnation).toBe(7)
  expect(device.conditions).toContain('attach: ANSWER_UNEXPECTED')
})

test('between any two commits of fencing, final and attach the process may end', async () => {
  for (let commits = 1; commits <= 8; commits += 1) {
    const device = await TestDevice.running()
    device.disk.segmentEntriesMax = 2
    for (let i = 0; i < 5; i += 1) await device.charge(1_000n)
    device.cloud.fence()
    device.journal.commitsUntilCrash = commits
    await device.sync()
    await calmDown(device)
    audit(device)
    expect(device.cloud.billedOn(ACCOUNT)).toBe(5_000n)
    expect(device.cloud.incarnations.size).toBe(2)
  }
})
