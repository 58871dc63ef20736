// Devices that decide by the calendar of older rules, because they have not heard of a change yet.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { periodAt } from '../../../src/core/rules/compile.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import type { ResetFrequency } from '../../../src/cloud/storage/records.ts'
import { showLineItem } from '../../../src/cloud/service-api/show-line-items.ts'
import { TestDevice, topUpRequest } from '../sync/test-device.ts'
import { INSTANCE, Twin } from '../sync/twin.ts'

const NOVEMBER_1 = Date.UTC(2026, 10, 1)
const NOVEMBER_10 = Date.UTC(2026, 10, 10, 20)
const NOVEMBER_11 = Date.UTC(2026, 10, 11, 9)
const DECEMBER_2 = Date.UTC(2026, 11, 2)
const JANUARY_15 = Date.UTC(2027, 0, 15)

describe('a device that continues by the daily periods of a line item that is monthly now', () => {
  let twin: Twin
  let device: TestDevice
  beforeEach(async () => {
    twin = await Twin.open()
    twin.time = NOVEMBER_1
    await reset('DAILY')
    twin.time = NOVEMBER_10
    device = await TestDevice.join(twin)
  })
  afterEach(async () => twin[Symbol.asyncDispose]())

  const reset = (resetFrequency: ResetFrequency, start = NOVEMBER_1) =>
    mapLineItem(
      twin.store,
      INSTANCE,
      {
        activationId: 'ACT-1',
        state: 'DEPLOYED',
        quantity: 100,
        start,
        end: Date.UTC(2027, 10, 1),
        attributes: { elastic: true, resetFrequency },
      },
      twin.time,
    )
  /** By the rules that the cloud has now. */
  const periodOf = async (instant: number) => {
    const rules = await twin.store.read((reader) => twin.policies.of(reader, INSTANCE))
    const period = periodAt(rules?.lineItems.get('ACT-1')?.periods ?? [], instant)
    if (period === undefined) throw new Error('no period')
    return period.index
  }
  const account = (period: number) => lineAccount(INSTANCE, 'ACT-1', period)
  const used = async () => (await twin.store.read((reader) => showLineItem(reader, INSTANCE, 'ACT-1', twin.time))).used

  it('is billed for the day of its use, and nothing of it counts in a later month', async () => {
    const [today, tomorrow] = [account(await periodOf(NOVEMBER_10)), account(await periodOf(NOVEMBER_11))]
    await device.sync([topUpRequest(today, 0n, 40_000_000n), topUpRequest(tomorrow, 0n, 70_000_000n)])
    await reset('MONTHLY')
    expect(account(await periodOf(NOVEMBER_11))).toBe(today)
    device.charge({ lineItemId: 'ACT-1', accounts: [today], amount: 30_000_000n })
    twin.time = NOVEMBER_11
    device.charge({ lineItemId: 'ACT-1', accounts: [tomorrow], amount: 50_000_000n })

    twin.time = DECEMBER_2
    const december = account(await periodOf(DECEMBER_2))
    await device.sync([topUpRequest(tomorrow, 0n, 80_000_000n)])
    expect(await used()).toBe(0n)
    expect(await twin.pool(today)).toMatchObject({ billedByDevices: 30_000_000n })
    expect(await twin.pool(tomorrow)).toMatchObject({ billedByDevices: 50_000_000n })
    await device.sync([topUpRequest(december, 0n, 100_000_000n)])
    expect(device.available(december)).toBe(100_000_000n)
    // Of a period that the calendar no longer has nothing more is granted.
    expect(device.available(tomorrow)).toBe(20_000_000n)
  })

  it.each([true, false])('can be the first to find the calendar due, in a shared transaction: %s', async (isShared) => {
    const revisionOf = async () =>
      (await twin.store.read((reader) => twin.policies.of(reader, INSTANCE)))?.revision ?? 0
    twin.sharesTransactions = isShared
    const before = await revisionOf()
    twin.time = JANUARY_15
    await device.sync([])
    expect(await revisionOf()).toBe(before + 1)
    const today = account(await periodOf(JANUARY_15))
    await device.sync([topUpRequest(today, 0n, 40_000_000n)])
    expect(device.available(today)).toBe(40_000_000n)
  })

  it('gets tokens of the periods of several calendars with one segment', async () => {
    await twin.setLineItem('ACT-2', { quantity: 100n })
    const [other, today] = [lineAccount(INSTANCE, 'ACT-2', 0), account(await periodOf(NOVEMBER_10))]
    await device.sync([topUpRequest(other, 0n, 10n), topUpRequest(today, 0n, 40_000_000n)])
    expect([device.available(other), device.available(today)]).toEqual([10n, 40_000_000n])
  })

  it('spends the current period on when the frequency changes back and forth, and no other', async () => {
    const today = account(await periodOf(NOVEMBER_10))
    const [before] = [await periodOf(NOVEMBER_11)]
    for (const frequency of ['MONTHLY', 'NONE', 'WEEKLY', 'DAILY'] as const) {
      await reset(frequency)
      expect(account(await periodOf(NOVEMBER_10))).toBe(today)
    }
    expect(await periodOf(NOVEMBER_11)).toBeGreaterThan(before)
    await reset('DAILY', NOVEMBER_1 + 3_600_000)
    expect(account(await periodOf(NOVEMBER_10))).toBe(today)
  })
})
