import { expect, test } from 'vitest'
import { sha256, signDocument } from '../../../src/protocol/signing.ts'
import { audit, calmDown } from './audit.ts'
import { DEVICE, json } from './fake-cloud.ts'
import { ACCOUNT, TestDevice } from './test-device.ts'

test('a fenced device stops spending, delivers the rest as final, and attaches again in the same round', async () => {
  const device = await TestDevice.running()
  await device.charge(1_000_000n)
  device.cloud.fence()
  await device.sync()
  const [first] = device.cloud.epochs.values()
  expect(first).toMatchObject({ status: 'CLOSED', forked: false })
  expect(device.link.status()).toMatchObject({ epoch: 2, fenced: false, backlog: 0 })
  expect(device.left > 0n).toBe(true)
  expect(device.cloud.outOn(ACCOUNT)).toBe(1_000_000n + device.left)
  audit(device)
})

test('of a long backlog only the last segment of a fenced epoch is final', async () => {
  const device = await TestDevice.running()
  device.disk.segmentEntriesMax = 2
  for (let i = 0; i < 7; i += 1) await device.charge(1_000n)
  device.cloud.fence()
  await device.sync()
  const [first] = device.cloud.epochs.values()
  expect(first?.merged).toHaveLength(5)
  expect(first?.status).toBe('CLOSED')
  expect(device.link.status().epoch).toBe(2)
  audit(device)
})

test('nothing is spent between the news of the fence and the next epoch', async () => {
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

test('an attach whose answer is lost is repeated with its nonce, and makes one epoch', async () => {
  const device = await TestDevice.make()
  device.network.faults = [null, 'LOSE_ANSWER', 'LOSE_ANSWER']
  await device.start()
  await device.settle()
  await device.sync()
  await device.sync()
  expect(device.cloud.epochs.size).toBe(1)
  expect(device.link.status().epoch).toBe(1)
})

test('an epoch that could not be recorded has not begun', async () => {
  const device = await TestDevice.make()
  device.network.intercept = (request) => {
    if (request.url.endsWith('/attach')) device.disk.refusals = 1
    return device.cloud.exchange(request)
  }
  await device.start()
  await device.settle()
  expect(device.conditions).toContain('journal: NOT_RECORDED')
  expect(device.ledger.status()).toBe('NOT_ATTACHED')
  expect(device.link.status().epoch).toBe(0)
  device.network.intercept = null
  await device.sync()
  expect(device.ledger.status()).toBe('ATTACHED')
  expect(device.cloud.epochs.size).toBe(1)
})

test('an answer to an attach that arrives a day late attaches, but does not set the clock back', async () => {
  const device = await TestDevice.make()
  device.network.faults = [null, 'LOSE_ANSWER']
  await device.start()
  await device.settle()
  device.network.down = true
  await device.pass(86_400_000)
  device.network.down = false
  device.network.faults = ['OLD_ANSWER', 'LOSE_REQUEST']
  await device.sync()
  expect(device.link.status().epoch).toBe(1)
  const { earliest, latest } = device.clock.reading()
  expect(earliest).toBeLessThanOrEqual(device.time.truth())
  expect(latest ?? Infinity).toBeGreaterThanOrEqual(device.time.truth())
})

test('an attach of an earlier run of the process is not continued', async () => {
  const device = await TestDevice.make()
  device.network.faults = [null, 'LOSE_ANSWER']
  await device.start()
  await device.settle()
  await device.restart()
  await device.settle()
  expect(device.cloud.epochs.size).toBe(2)
  expect(device.link.status().epoch).toBe(2)
  await device.charge(1_000_000n)
  await calmDown(device)
  audit(device)
})

test('an epoch that is not above all that the device ever had is refused, and asked for with another nonce', async () => {
  const device = await TestDevice.running()
  device.cloud.fence()
  const nonces = new Set<string>()
  device.network.intercept = async (request) => {
    const answer = await device.cloud.exchange(request)
    if (!request.url.endsWith('/attach')) return answer
    const { nonce } = JSON.parse(request.body ?? '') as { nonce: string }
    nonces.add(nonce)
    const old = JSON.stringify({ deviceId: DEVICE, nonce, epoch: 1, restored: null })
    const { signer } = device.cloud.key
    const signed = await signDocument('attach-answer', old, signer)
    const time = JSON.stringify({ nonce, time: device.time.truth(), answer: sha256(signed), push: null })
    return json(200, { answer: signed, time: await signDocument('time', time, signer) })
  }
  await device.sync()
  await device.sync()
  expect(device.conditions).toContain('attach: ANSWER_UNEXPECTED')
  expect(device.link.status()).toMatchObject({ epoch: 1, fenced: true })
  expect(nonces.size).toBe(2)
  device.network.intercept = null
  await calmDown(device)
  audit(device)
})

test("an answer to another device's attach is refused", async () => {
  const device = await TestDevice.make()
  device.network.intercept = async (request) => {
    const answer = await device.cloud.exchange(request)
    if (!request.url.endsWith('/attach')) return answer
    const other = JSON.stringify({ deviceId: DEVICE, nonce: 'the nonce of another life', epoch: 9, restored: null })
    const body = JSON.parse(answer.body) as object
    return json(200, { ...body, answer: await signDocument('attach-answer', other, device.cloud.key.signer) })
  }
  await device.start()
  await device.settle()
  expect(device.conditions).toContain('attach: ANSWER_UNEXPECTED')
  expect(device.disk.read().epoch).toBe(0)
})

test('between any two commits of fencing, final and attach the process may end', async () => {
  for (let commits = 1; commits <= 8; commits += 1) {
    const device = await TestDevice.running()
    device.disk.segmentEntriesMax = 2
    for (let i = 0; i < 5; i += 1) await device.charge(1_000n)
    device.cloud.fence()
    device.disk.commitsUntilCrash = commits
    await device.sync()
    await calmDown(device)
    audit(device)
    expect(device.cloud.billedOn(ACCOUNT)).toBe(5_000n)
    expect(device.cloud.epochs.size).toBe(2)
  }
})
