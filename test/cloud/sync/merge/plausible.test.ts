// A pool can be above its cap for reasons on record. What copies and forgotten grants used is still billed then, up to the highest cap.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { actionAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { METERED_MAX } from '../../../../src/core/accounts/grant.ts'
import type { Action } from '../../../../src/core/rules/policy.ts'
import { setOfflinePolicy } from '../../../../src/cloud/policy/offline-policy.ts'
import { importInstance } from '../../../../src/cloud/service-api/import-instance.ts'
import { importBody } from '../../../../src/protocol/edge/import.ts'
import { successorOf } from '../successor.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { DAY, INSTANCE, START, Twin } from '../twin.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)

let twin: Twin
beforeEach(async () => {
  twin = await Twin.open()
  await twin.setLineItem('ACT-1', { quantity: 100n })
})
afterEach(() => twin[Symbol.asyncDispose]())

function spend(device: TestDevice, amount: bigint): void {
  expect(device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount })).toBe(true)
}

async function withTokens(amount: bigint): Promise<TestDevice> {
  const device = await TestDevice.join(twin)
  await device.sync([topUpRequest(LINE, amount)])
  return device
}

/** Others use the line item while it has no limit. */
async function useWithoutLimit(use: () => Promise<void>): Promise<void> {
  await twin.setLineItem('ACT-1', { quantity: 100n, overdraft: 'UNLIMITED' })
  await use()
  await twin.setLineItem('ACT-1', { quantity: 100n })
}

async function meter(amount: bigint): Promise<void> {
  const other = await withTokens(1n)
  spend(other, amount)
  await other.sync()
}

async function importUse(tokens: number): Promise<void> {
  const body = importBody.parse({
    source: 'https://source.example/dm',
    apply: true,
    addUsed: true,
    lowerUsed: false,
    instance: { shortName: 'test', accountId: 'customer', defaultInstance: true },
    conditions: [],
    lineItems: [
      {
        lineItem: {
          activationId: 'ACT-1',
          state: 'DEPLOYED',
          quantity: 100,
          start: START - DAY,
          end: START + 365 * DAY,
          attributes: { elastic: true },
        },
        used: String(tokens * 1_000_000),
        actions: [],
      },
    ],
  })
  const result = await importInstance({ store: twin.store, newId: randomUUID }, INSTANCE, body, twin.time)
  expect(result).toMatchObject({ applied: true, conflicts: [] })
}

/** A device that has taken a limit since it was copied, and the copy, which has used more than the limit. */
async function limitedAndCopied(): Promise<{ readonly device: TestDevice; readonly copy: TestDevice }> {
  await twin.setLineItem('ACT-1', { quantity: 100n, overdraft: 'UNLIMITED' })
  const device = await withTokens(1n)
  const copy = device.copy()
  await twin.setLineItem('ACT-1', { quantity: 100n })
  for (let taken = 0; taken < 2; taken += 1) await device.sync()
  const records = await twin.store.read((reader) => reader.edge.deviceAccounts.get(device.id, 1, [LINE]))
  expect(records.get(LINE)).toMatchObject({ unlimited: false, metered: false })
  copy.state.counters.set(LINE, { granted: 2n * METERED_MAX, used: 0n, refunded: 0n, returned: 0n })
  copy.state.unlimited.delete(LINE)
  for (const amount of [1_000n, METERED_MAX, 30n]) spend(copy, amount)
  return { device, copy }
}

const REASONS: readonly (readonly [string, () => Promise<void>])[] = [
  ['nothing', async () => undefined],
  ['metered use of another device', () => useWithoutLimit(() => meter(1_000n))],
  [
    'charges of the cloud without a limit',
    () => useWithoutLimit(async () => expect(await twin.chargeDirectly(LINE, 1_000n)).toBe(true)),
  ],
]

describe('use of a copy is billed', () => {
  it.each(REASONS)('after %s', async (_, use) => {
    const device = await withTokens(60n)
    const copy = device.copy()
    await use()
    const before = (await twin.pool(LINE)).billedByDevices
    spend(device, 50n)
    spend(copy, 40n)
    await device.sync()
    const answer = await copy.sync()
    expect(answer).toMatchObject({ outcome: 'FENCED', forked: true })
    expect(answer).not.toHaveProperty('unbilled')
    expect((await twin.pool(LINE)).billedByDevices).toBe(before + 90n)
  })

  it('after released tokens turned out to be spent', async () => {
    const silent = await withTokens(100n)
    spend(silent, 100n)
    twin.time += 31 * DAY
    await twin.settle('RELEASED')
    const device = await withTokens(100n)
    const copy = device.copy()
    await silent.sync()
    spend(device, 100n)
    spend(copy, 90n)
    await device.sync()
    expect(await copy.sync()).not.toHaveProperty('unbilled')
    expect((await twin.pool(LINE)).billedByDevices).toBe(290n)
  })

  it('after use was imported', async () => {
    const TOKEN = 1_000_000n
    await importUse(0)
    const device = await withTokens(60n * TOKEN)
    const copy = device.copy()
    await importUse(90)
    for (const each of [device, copy]) for (let n = 0; n < 10; n += 1) spend(each, 6n * TOKEN)
    await device.sync()
    expect(await copy.sync()).not.toHaveProperty('unbilled')
    expect((await twin.pool(LINE)).billedByDevices).toBe(120n * TOKEN)
  })
})

it.each(REASONS)('use of copies is billed up to the highest cap only, after %s', async (_, use) => {
  const device = await withTokens(100n)
  const copy = device.copy()
  await use()
  const before = (await twin.pool(LINE)).billedByDevices
  spend(device, 100n)
  await device.sync()
  copy.state.counters.set(LINE, { granted: 5_000n, used: 0n, refunded: 0n, returned: 0n })
  for (const amount of [70n, 31n, 30n, 1n]) spend(copy, amount)
  expect(await copy.sync()).toMatchObject({ forked: true, unbilled: 2 })
  expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: before + 200n, claimed: 100n })
})

it('metered use of a copy is billed, up to the maximum of an epoch', async () => {
  await twin.setLineItem('ACT-1', { quantity: 100n, overdraft: 'UNLIMITED' })
  const device = await withTokens(1n)
  const copy = device.copy()
  spend(device, 5n)
  await device.sync()
  copy.state.counters.set(LINE, { granted: 2n * METERED_MAX, used: 0n, refunded: 0n, returned: 0n })
  copy.state.unlimited.delete(LINE)
  for (const amount of [70n, METERED_MAX, 30n]) spend(copy, amount)
  expect(await copy.sync()).toMatchObject({ forked: true, unbilled: 1 })
  expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 105n })
})

describe('metered use of a copy is billed after the device has taken a limit, up to the maximum of an epoch', () => {
  it('in its segments', async () => {
    const { copy } = await limitedAndCopied()
    expect(await copy.sync()).toMatchObject({ forked: true, unbilled: 1 })
    expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 1_030n, claimed: 0n })
  })

  it('as undelivered entries', async () => {
    const { copy } = await limitedAndCopied()
    const { deliver } = await successorOf(copy)
    expect(await deliver(copy.undeliveredRange(1, 3))).toMatchObject({ unbilled: 1 })
    expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 1_030n, claimed: 0n })
  })

  it('and leaves the bound of the use of other copies', async () => {
    const { copy } = await limitedAndCopied()
    const other = await withTokens(40n)
    const copyOfOther = other.copy()
    await copy.sync()
    for (const each of [other, copyOfOther]) {
      spend(each, 40n)
      expect(await each.sync()).not.toHaveProperty('unbilled')
    }
    expect((await twin.pool(LINE)).billedByDevices).toBe(1_110n)
  })
})

it('use of a copy is billed, up to the maximum of an epoch, once the line item has no limit', async () => {
  const device = await withTokens(60n)
  const copy = device.copy()
  spend(device, 50n)
  await device.sync()
  await twin.setLineItem('ACT-1', { quantity: 100n, overdraft: 'UNLIMITED' })
  copy.state.counters.set(LINE, { granted: 2n * METERED_MAX, used: 0n, refunded: 0n, returned: 0n })
  for (const amount of [3_000n, METERED_MAX, 30n]) spend(copy, amount)
  expect(await copy.sync()).toMatchObject({ forked: true, unbilled: 1 })
  expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 3_080n })
})

it('metered use of the copies of one device leaves space in the counter for other devices', async () => {
  await twin.setLineItem('ACT-1', { quantity: 100n, overdraft: 'UNLIMITED' })
  const device = await TestDevice.join(twin)
  const unbilled: unknown[] = []
  for (let epoch = 1; epoch <= 5; epoch += 1) {
    await device.sync([topUpRequest(LINE, 1n)])
    const copy = device.copy()
    await device.sync()
    copy.state.counters.set(LINE, { granted: 2n * METERED_MAX, used: 0n, refunded: 0n, returned: 0n })
    copy.state.unlimited.delete(LINE)
    spend(copy, METERED_MAX)
    unbilled.push(((await copy.sync()) as { readonly unbilled?: number }).unbilled)
    await device.attach()
  }
  expect(unbilled).toEqual([undefined, undefined, undefined, undefined, 1])
})

it('overspend of a copy does not raise the limit of its other use', async () => {
  await setOfflinePolicy(twin, INSTANCE, 'ACT-1', 20n)
  const device = await withTokens(100n)
  const copy = device.copy()
  spend(device, 100n)
  await device.sync()
  spend(copy, 100n)
  copy.chargeInOverspend({ lineItemId: 'ACT-1', accounts: [LINE], amount: 20n })
  copy.state.counters.set(LINE, { granted: 5_000n, used: 0n, refunded: 0n, returned: 0n })
  spend(copy, 30n)
  const { deliver } = await successorOf(copy)
  expect(await deliver(copy.undeliveredRange(1, 2))).not.toHaveProperty('unbilled')
  expect(await deliver(copy.undeliveredRange(3, 3, true))).toMatchObject({ unbilled: 1 })
  expect(await twin.pool(LINE)).toMatchObject({ billedByDevices: 220n, claimed: 120n })
})

it('use of copies is billed beyond an allocation, as their line item bounds it', async () => {
  const action: Action = { id: randomUUID(), name: null, conditionId: null, effect: 'ALLOW', allocation: 50n }
  await twin.setLineItem('ACT-1', { quantity: 1_000n, actions: [action] })
  const allocation = actionAccount(INSTANCE, 'ACT-1', action.id)
  const device = await TestDevice.join(twin)
  await device.sync([topUpRequest(LINE, 50n), topUpRequest(allocation, 50n)])
  const writers = [device, device.copy(), device.copy()]
  for (const each of writers) {
    expect(each.charge({ lineItemId: 'ACT-1', accounts: [LINE, allocation], amount: 50n })).toBe(true)
    expect(await each.sync()).not.toHaveProperty('unbilled')
  }
  for (const account of [LINE, allocation]) expect((await twin.pool(account)).billedByDevices).toBe(150n)
})

describe('after a restore, use of a grant that has no proof', () => {
  /** It knows of a segment and a grant that the cloud has forgotten. */
  async function useForgotten(amount: bigint): Promise<void> {
    const device = await TestDevice.join(twin)
    const forgotten = await device.seal()
    device.state.unacknowledged = null
    device.state.counters.set(LINE, { granted: amount, used: 0n, refunded: 0n, returned: 0n })
    spend(device, amount)
    const next = await device.seal()
    const first = await twin.sync(device.id, next.document)
    if (!first.accepted) throw new Error(first.problem)
    expect(await device.accept(first.answer)).toMatchObject({ outcome: 'BEHIND' })
    await twin.sync(device.id, forgotten.document)
    await twin.sync(device.id, next.document)
  }

  it.each([100n, 1_000n])('is billed when others have used %d without a limit', async (metered) => {
    await useWithoutLimit(() => meter(metered))
    await useForgotten(60n)
    expect((await twin.pool(LINE)).billedByDevices).toBe(metered + 60n)
  })

  it('waits when it is more than the highest cap', async () => {
    await useWithoutLimit(() => meter(1_000n))
    await expect(useForgotten(101n)).rejects.toMatchObject({ code: 'GRANTS_FORGOTTEN' })
    expect((await twin.pool(LINE)).billedByDevices).toBe(1_000n)
  })
})
