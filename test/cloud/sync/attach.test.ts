// Which devices get another epoch, its number, and what the response says about the previous one.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { attachAnswer } from '../../../src/protocol/edge/attach.ts'
import { openDocument } from '../../../src/protocol/signing.ts'
import { EPOCHS_FORGOTTEN_MAX, EPOCHS_SKIPPED_MAX } from '../../../src/cloud/devices/limits.ts'
import type { Device } from '../../../src/cloud/storage/device-records.ts'
import { TestDevice, topUpRequest } from './test-device.ts'
import { INSTANCE, START, Twin } from './twin.ts'

const HOUR = 3_600_000
const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const ANOTHER = '0b8a1a52-6f3e-4b53-a6a5-9a7f6a0d8d11'

let twin: Twin
let device: TestDevice
beforeEach(async () => {
  twin = await Twin.open()
  await twin.setLineItem('ACT-1', { quantity: 1_000n })
  device = await TestDevice.join(twin)
})
afterEach(async () => twin[Symbol.asyncDispose]())

const change = (part: Partial<Device>): Promise<void> => twin.changeDevice(device.id, part)
const suspend = (state: 'LOCKED' | 'TERMINATED') => change({ suspension: { state, since: START, by: 'ada' } })

async function attach(above = 1, backlog = 0) {
  const document = await twin.attach(device.id, randomUUID(), above, 0, backlog)
  const text = await openDocument('attach-answer', document, twin.keys.trusted[0].publicKey)
  return attachAnswer.parse(JSON.parse(text ?? ''))
}
const epoch = (number: number) => twin.store.read((reader) => reader.edge.epochs.get(device.id, number))
const refused = expect.objectContaining({ code: 'DEVICE_TERMINATED' }) as Error

describe('an attach', () => {
  it('of an unknown device is refused', async () => {
    await expect(twin.attach(randomUUID(), 'a nonce of it')).rejects.toMatchObject({ code: 'NOT_FOUND' })
  })

  it('fences the previous epoch, counts its silence from now, and resets the backlog', async () => {
    await change({ backlog: 7 })
    twin.time += HOUR
    expect(await attach()).toMatchObject({ deviceId: device.id, epoch: 2, restored: null })
    expect(await epoch(1)).toMatchObject({
      ...{ status: 'FENCED', fenceReason: 'SUPERSEDED', fencedAt: twin.time, quietSince: twin.time },
    })
    expect(await epoch(2)).toMatchObject({
      ...{ status: 'ACTIVE', createdAt: twin.time, quietSince: twin.time, forked: false, rejected: false },
      ...{ grantsForgotten: false, carriedOn: false, lastSeq: 0, lastEntry: 0 },
    })
    expect(await twin.device(device.id)).toMatchObject({ epoch: 2, backlog: 0, software: 'test' })
  })

  it('keeps the epoch that the device names unsettled, also where it is answered again', async () => {
    await attach()
    twin.time += HOUR
    const nonce = randomUUID()
    const first = await twin.attach(device.id, nonce, 2)
    twin.time += HOUR
    expect(await twin.attach(device.id, nonce, 2)).toBe(first)
    expect(await epoch(2)).toMatchObject({ quietSince: twin.time })
    expect(await epoch(1)).toMatchObject({ quietSince: START })
    expect(await epoch(3)).toMatchObject({ quietSince: twin.time - HOUR })
  })

  it('of a locked device is served', async () => {
    await suspend('LOCKED')
    expect(await attach()).toMatchObject({ epoch: 2 })
    expect(await epoch(2)).toMatchObject({ status: 'ACTIVE' })
  })
})

describe('a terminated device', () => {
  it('gets another epoch without grants while its epoch is not closed', async () => {
    await suspend('TERMINATED')
    expect(await attach()).toMatchObject({ epoch: 2 })
    expect(await epoch(2)).toMatchObject({ status: 'FENCED', fenceReason: 'TERMINATED', fencedAt: START })
  })

  it('gets none without undelivered entries, and one with them', async () => {
    await device.sync([], true)
    await suspend('TERMINATED')
    await expect(attach()).rejects.toEqual(refused)
    expect(await epoch(2)).toBeUndefined()
    expect(await attach(1, 1)).toMatchObject({ epoch: 2 })
  })

  it('gets none if it was never attached', async () => {
    await suspend('TERMINATED')
    await change({ epoch: 0 })
    await expect(attach(0)).rejects.toEqual(refused)
  })
})

describe('the number of an epoch', () => {
  it('is above the number that the device reports, if that number is plausible', async () => {
    expect(await attach(EPOCHS_FORGOTTEN_MAX + 1)).toMatchObject({ epoch: EPOCHS_FORGOTTEN_MAX + 2 })
    const newest = EPOCHS_FORGOTTEN_MAX + 2
    expect(await attach(newest + EPOCHS_FORGOTTEN_MAX + 1)).toMatchObject({ epoch: newest + 1 })
  })

  it.each([
    ['without its ledger', 0],
    ['with an older ledger', 1],
  ])('leaves room for those that a restored cloud and a device %s have forgotten', async (_which, above) => {
    twin.terms = { ...twin.terms, attachesMax: 3 }
    const restored = async (at: number) => twin.store.transaction((tx) => tx.edge.recoveries.restored(at, true))
    await restored(START)
    expect(await attach(above)).toMatchObject({ epoch: 2 })
    twin.time = START + HOUR
    await restored(START + HOUR - 1)
    expect(await attach(above)).toMatchObject({ epoch: 3 + 3 })
    expect(await attach(above)).toMatchObject({ epoch: 7 })
    await restored(START + 2 * HOUR)
    // One hour after the newest epoch that is known, the second one has begun.
    expect(await attach(above)).toMatchObject({ epoch: 8 + 2 * 3 })
    twin.terms = { ...twin.terms, attachesMax: EPOCHS_SKIPPED_MAX }
    await restored(START + 9 * HOUR)
    expect(await attach(above)).toMatchObject({ epoch: 15 + EPOCHS_SKIPPED_MAX })
  })

  it('leaves room also after a segment has shown a forgotten epoch', async () => {
    twin.terms = { ...twin.terms, attachesMax: 3 }
    await twin.store.transaction((tx) => tx.edge.recoveries.restored(START + HOUR, true))
    const forgotten = device.copy()
    forgotten.state.epoch = 2
    twin.time = START + 2 * HOUR
    await forgotten.sync()
    expect(await attach(0)).toMatchObject({ epoch: 3 + 2 * 3 })
  })

  it('leaves room also after an attach while the clock was ahead', async () => {
    twin.terms = { ...twin.terms, attachesMax: 3 }
    twin.time = START + 10 * HOUR
    expect(await attach()).toMatchObject({ epoch: 2 })
    twin.time = START + 2 * HOUR
    await twin.store.transaction((tx) => tx.edge.recoveries.restored(START + HOUR, true))
    expect(await attach(0)).toMatchObject({ epoch: 3 + 2 * 3 })
  })

  it('leaves the most room while the time of the restore is not known', async () => {
    twin.terms = { ...twin.terms, attachesMax: 3 }
    await twin.store.transaction((tx) => tx.edge.recoveries.restored(START, false))
    expect(await attach(0)).toMatchObject({ epoch: 2 + EPOCHS_SKIPPED_MAX })
  })
})

it('during a recovery of its instance only, an epoch may use grants that were forgotten', async () => {
  const begin = (instanceId: string) =>
    twin.store.transaction((tx) => tx.edge.recoveries.begin(instanceId, START, null))
  await twin.addInstance(ANOTHER)
  await begin(ANOTHER)
  await attach()
  await begin(INSTANCE)
  await attach(2)
  expect([await epoch(2), await epoch(3)]).toMatchObject([{ grantsForgotten: false }, { grantsForgotten: true }])
  await device.attach()
  expect(await device.sync([topUpRequest(LINE, 10n)])).toMatchObject({ directives: ['resend'] })
  expect(await device.sync()).toMatchObject({ directives: [] })
})
