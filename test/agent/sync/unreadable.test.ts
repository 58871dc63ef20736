// A segment that the cloud cannot read: the device continues, and does not try it for ever.
import { expect, test } from 'vitest'
import { REFUSALS_MAX, REFUSED_FOR_MIN_MS } from '../../../src/agent/sync/limits.ts'
import { audit, calmDown } from './audit.ts'
import { json } from './fake-cloud.ts'
import { ACCOUNT, TestDevice } from './test-device.ts'

const MINUTE = 60_000

/** Until it is undone, the cloud says of every segment of this epoch that it cannot read it. */
function cannotRead(device: TestDevice, epoch = 1): { refused: number; undo: () => void } {
  const state = { refused: 0, undo: () => void (device.network.intercept = null) }
  device.network.intercept = async (request) => {
    const isSync = new URL(request.url).pathname.endsWith('/sync')
    if (!isSync || device.link.status().epoch !== epoch) return device.cloud.exchange(request)
    state.refused += 1
    return json(422, { code: 'SEGMENT_REJECTED', message: 'segment.entries.bodies[0]: it is not understood' })
  }
  return state
}

test('a segment that the cloud cannot read is given up after an hour; nothing of it is lost, and help is asked for', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  const cloud = cannotRead(device)
  await device.sync()
  expect(device.conditions).toContain('sync: SEGMENT_REJECTED')
  for (let minutes = 0; minutes < REFUSED_FOR_MIN_MS / MINUTE - 1; minutes += 1) {
    await device.pass(MINUTE)
    // All that time it serves.
    expect(await device.charge(1_000n)).toBe('GRANTED')
  }
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: false, unacknowledgedSeq: 2 })
  await device.pass(11 * MINUTE)
  expect(cloud.refused).toBeGreaterThanOrEqual(REFUSALS_MAX)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false })
  const condition = device.link.status().conditions.find(({ subject }) => subject === 'device')
  expect(condition).toMatchObject({ code: 'SEGMENT_REJECTED' })
  expect(condition?.message).toContain('it is not understood')
  await calmDown(device)
  expect(device.cloud.billedOn(ACCOUNT)).toBe(device.durable.charged)
  audit(device)
})

test('a cloud that can read it again within the hour has it as it is', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  const cloud = cannotRead(device)
  await device.sync()
  await device.pass(REFUSED_FOR_MIN_MS / 2)
  cloud.undo()
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 1, conditions: [] })
  audit(device)
})

test('many refusals in a short time, or few in a long one, are no reason', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  const cloud = cannotRead(device)
  for (let n = 0; n < 2 * REFUSALS_MAX; n += 1) await device.sync()
  expect(cloud.refused).toBeGreaterThanOrEqual(2 * REFUSALS_MAX)
  expect(device.link.status().epoch).toBe(1)
  await device.restart()
  device.network.down = true
  await device.pass(3 * REFUSED_FOR_MIN_MS)
  device.network.down = false
  await device.sync()
  await device.sync()
  expect(device.link.status().epoch).toBe(1)
  cloud.undo()
  await calmDown(device)
  audit(device)
})

test('the first segment of an epoch is given up as well: the unreadable part may be in it alone', async () => {
  const device = await TestDevice.make()
  cannotRead(device)
  await device.start()
  await device.pass(REFUSED_FOR_MIN_MS / 2)
  expect(device.link.status()).toMatchObject({ epoch: 1, unacknowledgedSeq: 1 })
  expect(device.conditions).toContain('sync: SEGMENT_REJECTED')
  await device.pass(REFUSED_FOR_MIN_MS)
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, unacknowledgedSeq: null })
  expect(await device.charge(1_000_000n)).toBe('GRANTED')
  await calmDown(device)
  audit(device)
})

test('a process that ends between giving up and attaching gives up again at once', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  const cloud = cannotRead(device)
  await device.sync()
  await device.pass(REFUSED_FOR_MIN_MS - 10 * MINUTE)
  const { exchange } = device.cloud
  const sync = device.network.intercept
  device.network.intercept = async (request) =>
    request.url.endsWith('/attach') ? json(503, { code: 'STOPPING', message: 'later' }) : (sync ?? exchange)(request)
  await device.pass(30 * MINUTE)
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: true })
  await device.restart()
  device.network.intercept = sync
  const { refused } = cloud
  await device.sync()
  expect(cloud.refused).toBe(refused + 1)
  expect(device.link.status().epoch).toBe(2)
  await calmDown(device)
  audit(device)
})

test('the first segment of an epoch is not abandoned before its overspend is settled: a new epoch would permit as much again', async () => {
  const device = await TestDevice.make()
  const cloud = cannotRead(device)
  await device.start()
  await device.settle()
  await device.overspend(1_000n)
  await device.pass(3 * REFUSED_FOR_MIN_MS)
  expect(cloud.refused).toBeGreaterThanOrEqual(REFUSALS_MAX)
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: false, unacknowledgedSeq: 1 })
  cloud.undo()
  await calmDown(device)
  expect(device.link.status()).toMatchObject({ epoch: 1, conditions: [] })
  expect(device.cloud.billedOn(ACCOUNT)).toBe(1_000n)
})
