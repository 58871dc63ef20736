// A grant as it is booked: its share, its times, and what is noted of what the device still lacks.
import { beforeEach, describe, expect, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import type { Need, TopUpRequest } from '../../../../src/core/accounts/grant.ts'
import type { LineItem } from '../../../../src/core/rules/policy.ts'
import { newPool } from '../../../../src/cloud/accounts/pool.ts'
import type { LoadedPolicy } from '../../../../src/cloud/policy/load-policy.ts'
import {
  type DeviceAccountRecord,
  type Shortage,
  newDeviceAccount,
} from '../../../../src/cloud/storage/device-records.ts'
import type { Pool } from '../../../../src/cloud/storage/records.ts'
import { type GrantInputs, giveGrant, grantableIn } from '../../../../src/cloud/sync/grants/give-grant.ts'
import { grantableAt } from '../../../../src/cloud/sync/grants/grants.ts'
import { NOW, ShortageTables } from './shortages.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const DAY = 86_400_000
const SYNC = 300_000
const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const OTHER = lineAccount(INSTANCE, 'ACT-2', 0)

const lineItem = (id: string, endsAt: number): LineItem => ({
  ...{ id, state: 'DEPLOYED', elastic: true, rateTableSeries: '', startsAt: 0, endsAt, quantity: 100n, overdraft: 0n },
  periods: [{ index: 0, from: null, until: null }],
  ...{ actions: [], consumptionLimit: null },
})

interface Scene {
  readonly requests?: readonly TopUpRequest[]
  readonly needs?: readonly Need[]
  readonly named?: readonly string[]
  readonly pools?: readonly Pool[]
  readonly records?: readonly DeviceAccountRecord[]
  readonly inUse?: readonly string[]
  readonly releasing?: boolean
  readonly reserve?: bigint
  readonly unproven?: boolean
  readonly endsAt?: number
  readonly term?: number
  readonly unsaved?: GrantInputs['unsaved']
}

/** 100 tokens in each pool: other devices hold 60, this one none. */
const pool = (account: string, part: Partial<Pool> = {}): Pool => ({
  ...newPool(account, 100n),
  grantedOut: 60n,
  ...part,
})

let tables: ShortageTables
let live: readonly unknown[]
let saved: { pools: readonly Pool[]; accounts: readonly DeviceAccountRecord[] }
beforeEach(() => {
  tables = new ShortageTables(60n)
  tables.returnable = { inContact: 50n, all: 60n }
  live = []
  saved = { pools: [], accounts: [] }
})

function give(scene: Scene) {
  const { requests = [], needs = [], named = [], inUse = [], releasing = false, endsAt = NOW + 3 * DAY } = scene
  const items = [lineItem('ACT-1', endsAt), lineItem('ACT-2', endsAt)]
  const loaded = {
    policy: { lineItems: items, timezoneTolerant: false },
    lineItems: new Map(items.map((each) => [each.id, each])),
    cloudReserves: new Map([['ACT-1', scene.reserve ?? 0n]]),
    importedUse: new Map(),
    unproven: scene.unproven ?? false,
  }
  const rules = new Map([[INSTANCE, loaded as unknown as LoadedPolicy]])
  const pools = new Map((scene.pools ?? [pool(LINE), pool(OTHER)]).map((each) => [each.account, each]))
  const records = new Map((scene.records ?? []).map((each) => [each.account, each]))
  const inputs: GrantInputs = {
    ...{ rules, grantable: grantableAt(rules, NOW), topUps: { topUpRequests: requests, needs }, named, pools },
    recordOf: (account) => records.get(account) ?? newDeviceAccount('me', 1, account),
    ...{ inUse: new Set(inUse), releasing },
    unsaved: scene.unsaved ?? { moves: [], after: new Map() },
  }
  const { outbox, edge } = tables.tx
  const tx = {
    outbox,
    accounts: { save: async (each: readonly Pool[]) => void (saved.pools = each) },
    edge: {
      ...edge,
      devices: {
        countLive: async (...asked: readonly unknown[]) => {
          live = asked
          return 1
        },
      },
      deviceAccounts: {
        ...edge.deviceAccounts,
        save: async (each: readonly DeviceAccountRecord[]) => void (saved.accounts = each),
      },
    },
  }
  const terms = { syncEveryMs: SYNC, grantHorizonMs: DAY, grantLifetimeMs: 7 * DAY }
  const epoch = { deviceId: 'me', number: 1, term: scene.term ?? 4 }
  return giveGrant({ deps: { terms }, tx, device: { id: 'me' }, epoch, now: NOW }, inputs)
}

const need = (amount: bigint, account = LINE): Need => [{ account, amount }]
const wanted = (amount: bigint, account = LINE): TopUpRequest => ({ account, wanted: amount })
const noted = () => tables.saved.map(({ account, lacking, keep }) => ({ account, lacking, keep }))
const own = (part: Partial<Shortage> = {}): Shortage => ({
  ...{ account: LINE, who: 'me', lacking: 20n, enough: 20n, keep: 5n },
  ...{ since: NOW - SYNC, at: NOW - SYNC, recalledAt: NOW - SYNC, notifiedAt: null },
  ...part,
})

describe('a grant', () => {
  it('is usable for its lifetime, at most until the last line item ends', async () => {
    expect(await give({})).toEqual({ term: NOW, lifetimeMs: 3 * DAY, expiresAt: NOW + 3 * DAY, accounts: [] })
    expect(await give({ endsAt: NOW + 9 * DAY })).toMatchObject({ lifetimeMs: 7 * DAY, expiresAt: NOW + 7 * DAY })
    expect(await give({ endsAt: NOW - 1 })).toMatchObject({ lifetimeMs: 0, expiresAt: NOW })
    expect(await give({ term: NOW })).toMatchObject({ term: NOW + 1 })
  })

  it('is at most the share of one device among those heard of, as free as the reserve of the cloud leaves it', async () => {
    await give({ requests: [wanted(90n)] })
    expect(live).toEqual([INSTANCE, NOW - DAY, 'me'])
    expect(saved.pools).toMatchObject([{ account: LINE, grantedOut: 100n }])
    expect(saved.accounts).toMatchObject([{ account: LINE, granted: 40n }])
    await give({ requests: [wanted(90n)], pools: [pool(LINE, { grantedOut: 0n })] })
    expect(saved.accounts).toMatchObject([{ granted: 50n }])
    await give({ requests: [wanted(90n)], reserve: 30n })
    expect(saved.accounts).toMatchObject([{ granted: 10n }])
  })

  it('is saved together with earlier changes, once for each account', async () => {
    const before = newDeviceAccount('me', 1, LINE)
    const used = { ...before, granted: 9n, used: 9n }
    const other = newDeviceAccount('me', 1, OTHER)
    const changed = pool(LINE, { billedByDevices: 9n })
    await give({
      requests: [wanted(5n)],
      pools: [changed],
      records: [used],
      unsaved: {
        moves: [
          { before, after: used },
          { before: other, after: { ...other, used: 1n } },
        ],
        after: new Map([
          [LINE, changed],
          [OTHER, pool(OTHER)],
        ]),
      },
    })
    expect(saved.pools).toMatchObject([{ account: LINE, grantedOut: 65n, billedByDevices: 9n }, { account: OTHER }])
    expect(saved.accounts).toMatchObject([
      { account: LINE, granted: 14n, used: 9n },
      { account: OTHER, used: 1n },
    ])
  })

  it('reports accounts that are only named', async () => {
    const { accounts } = await give({ named: [OTHER], requests: [wanted(5n)] })
    expect(accounts).toMatchObject([
      { account: LINE, granted: 5n, available: 35n },
      { account: OTHER, granted: 0n, available: 40n },
    ])
    expect(
      grantableIn({ topUpRequests: [wanted(1n)], needs: [need(1n), need(2n, 'no account')] }, (account) =>
        account === 'no account' ? undefined : lineItem('ACT-1', 0),
      ),
    ).toEqual([LINE])
  })

  it('is empty while sales are unknown, or if the device must return its tokens, and then no shortage is noted', async () => {
    expect(await give({ needs: [need(10n)], unproven: true })).toMatchObject({
      accounts: [{ granted: 0n, available: 0n }],
    })
    expect(tables.returnableOf).toEqual([])
    expect(await give({ needs: [need(10n)], releasing: true })).toMatchObject({ accounts: [{ granted: 0n }] })
    expect(tables.returnableOf).toEqual([])
    tables.saved.length = 0
    await give({ needs: [need(50n)], releasing: true })
    expect(tables.saved).toEqual([])
  })
})

describe('a need that is not met', () => {
  it('is noted with the tokens that other devices can return, and the response reports them', async () => {
    const { accounts } = await give({ needs: [need(70n)], named: [OTHER] })
    expect(accounts).toMatchObject([
      { account: LINE, granted: 0n, available: 40n, returnable: 50n },
      { account: OTHER, returnable: 50n },
    ])
    expect(tables.returnableOf).toEqual([LINE, OTHER])
    expect(tables.asked.slice(0, 2)).toEqual([LINE, 'me'])
    expect(noted()).toEqual([{ account: LINE, lacking: 70n, keep: 30n }])
    tables.returnable = { inContact: 0n, all: 60n }
    expect((await give({ needs: [need(70n)] })).accounts[0]).not.toHaveProperty('returnable')
  })

  it('counts from the rest of the balance of the device', async () => {
    const record = { ...newDeviceAccount('me', 1, LINE), granted: 30n, used: 10n }
    await give({ needs: [need(15n), need(70n)], records: [record] })
    // 15 of its 20 are for the first; the second one needs 65 more.
    expect(noted()).toMatchObject([{ lacking: 65n }])
    tables.saved.length = 0
    await give({ needs: [need(30n), need(70n)], records: [record] })
    // 10 are granted with its 20 for the first, which leaves nothing for the second one.
    expect(noted()).toMatchObject([{ lacking: 70n }])
  })

  it('is noted with the others that can be met together, or the smallest one alone', async () => {
    await give({ needs: [need(50n), need(50n)] })
    expect(noted()).toMatchObject([{ lacking: 100n }])
    tables.saved.length = 0
    await give({ needs: [need(50n), need(51n)] })
    expect(noted()).toMatchObject([{ lacking: 50n }])
    tables.saved.length = 0
    await give({ needs: [need(120n), need(110n), need(115n)] })
    expect(noted()).toEqual([{ account: LINE, lacking: 110n, keep: null }])
  })

  it('is not noted of an account that has enough, where another one blocks the request', async () => {
    const both: Need = [...need(40n), ...need(41n, OTHER)]
    await give({ needs: [both] })
    expect(noted()).toEqual([{ account: OTHER, lacking: 41n, keep: 50n }])
  })

  it('is nothing that is noted of an unlimited account', async () => {
    await give({ needs: [need(1n), need(70n, OTHER)], pools: [pool(LINE, { capTarget: null }), pool(OTHER)] })
    expect(noted()).toMatchObject([{ account: OTHER }])
    expect(tables.returnableOf).toEqual([OTHER])
  })
})

describe('tokens that a device requests in advance', () => {
  const poor = [pool(LINE, { grantedOut: 100n })]

  it('is noted, and recalled if the device uses the account', async () => {
    await give({ requests: [wanted(30n)], pools: poor })
    expect(noted()).toEqual([{ account: LINE, lacking: 0n, keep: null }])
    expect(tables.returnableOf).toEqual([])
    tables.saved.length = 0
    expect((await give({ requests: [wanted(30n)], pools: poor, inUse: [LINE] })).accounts[0]).not.toHaveProperty(
      'returnable',
    )
    expect(noted()).toEqual([{ account: LINE, lacking: 0n, keep: 50n }])
    expect(tables.returnableOf).toEqual([LINE])
  })

  it('is not looked for where it is granted', async () => {
    await give({ requests: [wanted(30n)], inUse: [LINE] })
    expect([tables.returnableOf, tables.saved]).toEqual([[], []])
  })

  it('is its share where it wants more', async () => {
    const record = { ...newDeviceAccount('me', 1, LINE), granted: 50n }
    await give({ requests: [wanted(90n)], pools: poor, records: [record] })
    expect(tables.saved).toEqual([])
    await give({ requests: [wanted(90n)], pools: poor, records: [{ ...record, granted: 49n }] })
    expect(noted()).toMatchObject([{ lacking: 0n }])
  })
})

describe('a shortage of this device', () => {
  it('ends when it is served', async () => {
    tables.known = [own({ who: 'another' }), own()]
    await give({ needs: [need(10n)] })
    expect(tables.saved).toMatchObject([{ who: 'me', lacking: 0n, keep: null, notifiedAt: NOW }])
  })

  it('remains while the device syncs without the request that was short', async () => {
    tables.known = [own()]
    await give({ requests: [wanted(10n)] })
    expect(tables.saved).toEqual([])
    for (const over of [own({ lacking: 0n }), own({ at: NOW - 2 * SYNC }), own({ keep: null })]) {
      tables.known = [over]
      await give({ requests: [wanted(10n)] })
    }
    expect(tables.saved).toHaveLength(3)
  })

  it('of another device reserves the free tokens', async () => {
    tables.known = [own({ who: 'another', lacking: 35n })]
    const { accounts } = await give({ requests: [wanted(30n)], inUse: [LINE] })
    expect(accounts).toMatchObject([{ granted: 5n }])
  })
})
