// What the cloud notes when a pool cannot pay its own clients, because devices hold the tokens.
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import { decimal } from '../../../../src/core/pricing/amount.ts'
import { AccessBatcher } from '../../../../src/cloud/service-api/request-access.ts'
import { CLOUD_CLIENTS, type Shortage } from '../../../../src/cloud/storage/device-records.ts'
import { beginRecovery } from '../../../../src/cloud/sync/recovery/recovery.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { INSTANCE, START, Twin } from '../twin.ts'
import { cloudShortages, shortagesIn } from './shortages.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const tokens = (count: number) => BigInt(count) * 1_000_000n

let twin: Twin
let device: TestDevice
let access: AccessBatcher

beforeEach(async () => {
  twin = await Twin.open()
  await twin.setRates({ Print: 1 })
  await twin.setLineItem('ACT-1', { quantity: tokens(100) })
  device = await TestDevice.join(twin)
  access = new AccessBatcher({
    ...{ store: twin.store, policies: twin.policies },
    ...{ shortages: cloudShortages(), defer: setImmediate },
  })
})
afterEach(async () => twin[Symbol.asyncDispose]())

const hold = (count: number) => device.sync([topUpRequest(LINE, 0n, tokens(count))])

/** Whether each item was granted. */
async function request(...counts: readonly number[]): Promise<readonly boolean[]> {
  const items = counts.map((count) => ({ name: 'Print', version: '', count: decimal(count) }))
  const decision = await access.request(
    {
      instanceId: INSTANCE,
      correlationId: randomUUID(),
      request: { requester: { type: 'user', value: 'ada', dictionary: {} }, items },
      metaData: items.map(() => null),
    },
    twin.time,
  )
  return decision.items.map(({ outcome }) => outcome === 'GRANTED')
}

const shortages = (): Promise<readonly Shortage[]> => shortagesIn(twin.store, LINE, [CLOUD_CLIENTS])

async function noted(): Promise<Pick<Shortage, 'lacking' | 'at'>> {
  const [shortage, ...others] = await shortages()
  if (shortage === undefined || others.length > 0) throw new Error('not one shortage')
  expect(shortage).toMatchObject({ account: LINE, who: CLOUD_CLIENTS })
  return { lacking: shortage.lacking / tokens(1), at: shortage.at - START }
}

describe('the shortage of clients', () => {
  it('is noted once a second, or when they lack more', async () => {
    await hold(100)
    expect(await request(30)).toEqual([false])
    expect(await noted()).toEqual({ lacking: 30n, at: 0 })
    twin.time = START + 999
    await request(30)
    await request(20)
    expect(await noted()).toEqual({ lacking: 30n, at: 0 })
    await request(40)
    expect(await noted()).toEqual({ lacking: 40n, at: 999 })
    twin.time = START + 1_999
    await request(20)
    expect(await noted()).toEqual({ lacking: 40n, at: 1_999 })
  })

  it('is noted again when the clock has gone back', async () => {
    await hold(100)
    twin.time = START + 500
    await request(30)
    twin.time = START
    await request(30)
    expect(await noted()).toEqual({ lacking: 30n, at: 0 })
  })

  it('ends with the request that is granted; the next refusal is noted at once', async () => {
    await hold(100)
    await request(30)
    device.giveBack(LINE, tokens(70))
    await device.sync()
    twin.time += 10
    expect(await request(30)).toEqual([true])
    expect(await shortages()).toMatchObject([{ lacking: 0n, keep: null }])
    expect(await request(30)).toEqual([false])
    expect(await noted()).toEqual({ lacking: 30n, at: 10 })
  })

  it('is the largest that devices can still return', async () => {
    await hold(100)
    await request(50)
    device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: tokens(50) })
    await device.sync()
    twin.time += 1_000
    await request(20)
    expect(await noted()).toEqual({ lacking: 50n, at: 1_000 })
    device.charge({ lineItemId: 'ACT-1', accounts: [LINE], amount: 1n })
    await device.sync()
    twin.time += 1_000
    await request(20)
    expect(await noted()).toEqual({ lacking: 20n, at: 2_000 })
  })

  it('is the sum of the tokens that simultaneous requests lack', async () => {
    await hold(100)
    expect(await Promise.all([request(20), request(30)])).toEqual([[false], [false]])
    expect(await noted()).toEqual({ lacking: 50n, at: 0 })
  })

  it('is that of the refused items only', async () => {
    await hold(85)
    expect(await request(10)).toEqual([true])
    expect(await shortages()).toEqual([])
    expect(await request(5, 20)).toEqual([true, false])
    expect(await noted()).toEqual({ lacking: 20n, at: 0 })
  })

  it('is not noted if all tokens together could not pay', async () => {
    await hold(60)
    expect(await request(101)).toEqual([false])
    expect(await shortages()).toEqual([])
  })

  describe('of a restored cloud', () => {
    /** Of sales that the backup does not contain. */
    const withhold = (count: number): Promise<void> =>
      twin.store.transaction(async (tx) => {
        const pools = [...(await tx.accounts.lock([LINE])).values()]
        await tx.accounts.save(pools.map((pool) => ({ ...pool, withheld: tokens(count) })))
      })

    it('is noted, without the tokens that are withheld', async () => {
      await hold(60)
      await withhold(35)
      expect(await request(30)).toEqual([false])
      expect(await noted()).toEqual({ lacking: 30n, at: 0 })
      device.giveBack(LINE, tokens(25))
      await device.sync()
      expect(await request(30)).toEqual([true])
    })

    it('is not noted if devices cannot end it', async () => {
      await hold(60)
      await withhold(35)
      expect(await request(70)).toEqual([false])
      expect(await shortages()).toEqual([])
    })

    it('is not noted while nothing is sold', async () => {
      await hold(60)
      const mark = { sold: new Map(), position: 0n, isJoined: false, until: START }
      const unproven = { ...mark, unproven: 'MARK', reason: 'a test' } as const
      await twin.store.transaction((tx) => beginRecovery(tx, twin.policies, unproven, START))
      expect(await request(50)).toEqual([false])
      expect(await shortages()).toEqual([])
    })
  })
})
