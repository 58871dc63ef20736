// The background work for shortages: what the cloud will need itself is recalled ahead of time, and no more.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import { decimal, wholeTokens } from '../../../../src/core/pricing/amount.ts'
import { showCloudReserve } from '../../../../src/cloud/policy/cloud-reserve.ts'
import { importInstance } from '../../../../src/cloud/service-api/import-instance.ts'
import { type SessionDeps, openSession, requestInSession } from '../../../../src/cloud/sessions/session-life.ts'
import {
  CLOUD_CLIENTS,
  CLOUD_RENEWALS,
  CLOUD_RESERVE,
  type Shortage,
} from '../../../../src/cloud/storage/device-records.ts'
import { recallEveryMs } from '../../../../src/cloud/sync/grants/watch-shortages.ts'
import { importBody } from '../../../../src/protocol/edge/import.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { DAY, INSTANCE, START, Twin } from '../twin.ts'
import { cloudShortages, shortagesIn } from './shortages.ts'

const HOUR = 3_600_000
const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const OTHER = lineAccount(INSTANCE, 'ACT-2', 0)

let twin: Twin
let device: TestDevice
beforeEach(async () => {
  twin = await Twin.open()
  await twin.setRates({ Print: 1 })
  await twin.setLineItem('ACT-1', { quantity: wholeTokens(100) })
  device = await TestDevice.join(twin)
})
afterEach(async () => twin[Symbol.asyncDispose]())

const hold = (count: number, account = LINE) => device.sync([topUpRequest(account, 0n, wholeTokens(count))])

/** Of ACT-2, which has 100 tokens. */
async function importUse(used: string): Promise<void> {
  const lineItem = {
    activationId: 'ACT-2',
    state: 'DEPLOYED',
    quantity: 100,
    start: START - DAY,
    end: START + 300 * DAY,
  }
  const body = importBody.parse({
    source: 'https://source.example/dm',
    ...{ apply: true, addUsed: false, lowerUsed: false },
    instance: { shortName: 'test', accountId: 'customer', defaultInstance: true },
    conditions: [],
    lineItems: [{ lineItem: { ...lineItem, attributes: { elastic: true } }, used, actions: [] }],
  })
  const result = await importInstance({ store: twin.store, newId: randomUUID }, INSTANCE, body, twin.time)
  expect(result).toMatchObject({ applied: true, conflicts: [] })
}

async function session(count: number): Promise<void> {
  const deps: SessionDeps = {
    ...{ store: twin.store, policies: twin.policies, shortages: cloudShortages(), newId: randomUUID },
    ...{ sessionIntervalMs: HOUR, trustsClock: () => true },
  }
  const opened = await openSession(deps, { instanceId: INSTANCE, deviceId: null, opening: null }, twin.time)
  const items = [{ name: 'Print', version: '', count: decimal(count) }]
  const request = { requester: { type: 'user', value: 'ada', dictionary: {} }, items }
  const command = { sessionId: opened.id, correlationId: randomUUID(), request, metaData: [null], rollbackOnDeny: true }
  expect(await requestInSession(deps, command, () => undefined, twin.time)).toMatchObject({ granted: true })
}

const shortages = (account = LINE): Promise<readonly Shortage[]> =>
  shortagesIn(twin.store, account, [CLOUD_CLIENTS, CLOUD_RENEWALS, CLOUD_RESERVE])

async function recalled(account = LINE): Promise<readonly (readonly [who: string, tokens: bigint])[]> {
  await twin.recallForCloud()
  return (await shortages(account)).map(({ who, lacking }) => [who, lacking / wholeTokens(1)] as const)
}

describe('the next interval of sessions', () => {
  const ahead = START + HOUR - 2 * 300_000

  it('is recalled two sync intervals before it is due', async () => {
    await session(40)
    await hold(60)
    twin.time = ahead - 1
    await hold(60)
    expect(await recalled()).toEqual([])
    twin.time = ahead
    expect(await recalled()).toEqual([[CLOUD_RENEWALS, 40n]])
  })

  it('is that of all sessions together, as far as devices can return it', async () => {
    await session(30)
    await session(20)
    await hold(35)
    device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: wholeTokens(5) })
    twin.time = ahead
    await device.sync()
    // 50 are due: 15 are free, and 30 can come back.
    expect(await recalled()).toEqual([[CLOUD_RENEWALS, 45n]])
  })

  it('needs no recall while the pool can pay it, or no device holds anything', async () => {
    await session(30)
    await hold(40)
    twin.time = ahead
    await device.sync()
    expect(await recalled()).toEqual([])
    await twin.chargeDirectly(LINE, wholeTokens(1))
    expect(await recalled()).toEqual([[CLOUD_RENEWALS, 30n]])
    device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: wholeTokens(40) })
    await device.sync()
    twin.time += DAY + 1
    expect(await recalled()).toEqual([])
  })

  it('without a limit is never short', async () => {
    await session(30)
    await hold(70)
    await twin.setLineItem('ACT-1', { quantity: wholeTokens(100), overdraft: 'UNLIMITED' })
    twin.time = ahead
    expect(await recalled()).toEqual([])
  })
})

describe('the reserve of a line item', () => {
  it('is recalled as far as the cloud has neither charged it nor has it free', async () => {
    await twin.chargeDirectly(LINE, wholeTokens(10))
    await hold(80)
    await twin.reserve('ACT-1', wholeTokens(20))
    // 10 are charged, 10 are free.
    expect(await recalled()).toEqual([])
    await twin.reserve('ACT-1', wholeTokens(21))
    expect(await recalled()).toEqual([[CLOUD_RESERVE, 11n]])
  })

  it('is fulfilled by the charges of the cloud', async () => {
    await twin.chargeDirectly(LINE, wholeTokens(10))
    await hold(90)
    await twin.reserve('ACT-1', wholeTokens(10))
    expect(await recalled()).toEqual([])
    await twin.reserve('ACT-1', wholeTokens(12))
    expect(await recalled()).toEqual([[CLOUD_RESERVE, 2n]])
  })

  it('is not fulfilled by imported use', async () => {
    await importUse('20000000')
    await twin.reserve('ACT-2', wholeTokens(15))
    const [one, another] = [await TestDevice.join(twin), await TestDevice.join(twin)]
    await one.sync([topUpRequest(OTHER, 0n, wholeTokens(65))])
    await another.sync([topUpRequest(OTHER, 0n, wholeTokens(1))])
    expect([one.available(OTHER), another.available(OTHER)]).toEqual([wholeTokens(65), 0n])
    await importUse('25000000')
    expect(await recalled(OTHER)).toEqual([[CLOUD_RESERVE, 15n]])
    expect(await showCloudReserve(twin, INSTANCE, 'ACT-2')).toMatchObject({ onDevices: String(wholeTokens(5)) })
    await twin.chargeDirectly(OTHER, wholeTokens(10))
    expect(await showCloudReserve(twin, INSTANCE, 'ACT-2')).toMatchObject({ onDevices: String(wholeTokens(5)) })
  })

  it('is each line item that has one, in its current period', async () => {
    await twin.setLineItem('ACT-2', { quantity: wholeTokens(100) })
    await hold(100)
    await hold(100, OTHER)
    await twin.reserve('ACT-2', wholeTokens(5))
    expect([await recalled(), await recalled(OTHER)]).toEqual([[], [[CLOUD_RESERVE, 5n]]])
    await twin.reserve('ACT-1', wholeTokens(7))
    expect([await recalled(), await recalled(OTHER)]).toEqual([[[CLOUD_RESERVE, 7n]], [[CLOUD_RESERVE, 5n]]])
  })

  it('ignores a line item that is deleted or was never used', async () => {
    await twin.reserve('ACT-1', wholeTokens(50))
    expect(await recalled()).toEqual([])
  })
})

describe('notes of shortages', () => {
  it('are forgotten after a day, and also when they are a day ahead', async () => {
    await hold(100)
    await twin.reserve('ACT-1', wholeTokens(5))
    expect(await recalled()).toHaveLength(1)
    await twin.reserve('ACT-1', wholeTokens(0))
    twin.time = START + DAY
    expect(await recalled()).toHaveLength(1)
    twin.time = START - DAY
    expect(await recalled()).toHaveLength(1)
    twin.time = START + DAY + 1
    expect(await recalled()).toEqual([])
  })
})

it('the look comes at least once in a sync interval, and every half minute', () => {
  expect([recallEveryMs({ syncEveryMs: 5_000 }), recallEveryMs({ syncEveryMs: 300_000 })]).toEqual([5_000, 30_000])
})
