// Which accounts a device can be granted tokens of, and how much.
import { describe, expect, it } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../../src/core/pricing/amount.ts'
import { type LineItem, type Period, TOLERANCE_MS } from '../../../../src/core/rules/policy.ts'
import { newPool } from '../../../../src/cloud/accounts/pool.ts'
import type { RulesInForce } from '../../../../src/cloud/policy/rules-in-force.ts'
import {
  billedOn,
  newDeviceAccount,
  overspendOn,
  reservedOn,
  settled,
  unaccountedOn,
} from '../../../../src/cloud/storage/device-records.ts'
import type { Pool } from '../../../../src/cloud/storage/records.ts'
import {
  type RequestedAccount,
  fairShare,
  grantRequested,
  grantableAt,
  lastUsableAt,
  quantityOf,
} from '../../../../src/cloud/sync/grants/grants.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const NOW = 1_000_000
const LINE = lineAccount(INSTANCE, 'ACT-1', 1)

const periods: readonly Period[] = [
  { index: 0, from: null, until: 900_000 },
  { index: 1, from: 900_000, until: 1_100_000 },
  { index: 2, from: 1_100_000, until: 1_200_000 },
  { index: 3, from: 1_200_000, until: null },
]

const lineItem: LineItem = {
  id: 'ACT-1',
  state: 'DEPLOYED',
  elastic: true,
  rateTableSeries: '',
  startsAt: 0,
  endsAt: 2_000_000,
  quantity: 100n,
  overdraft: 20n,
  periods,
  actions: [],
  consumptionLimit: null,
}

function rulesOf(lineItems: readonly LineItem[], timezoneTolerant = false): RulesInForce {
  const byId = new Map(lineItems.map((each) => [each.id, each]))
  return new Map([[INSTANCE, { policy: { lineItems, timezoneTolerant }, lineItems: byId }]]) as unknown as RulesInForce
}

const isGrantable = (account: string, item: LineItem = lineItem, isTolerant = false, now = NOW): boolean =>
  grantableAt(rulesOf([item], isTolerant), now)(account) !== undefined

describe('an account can be granted', () => {
  it('while its line item is deployed and elastic', () => {
    expect(isGrantable(LINE)).toBe(true)
    expect(isGrantable(LINE, { ...lineItem, state: 'OBSOLETE' })).toBe(false)
    expect(isGrantable(LINE, { ...lineItem, elastic: false })).toBe(false)
    expect(isGrantable(lineAccount(INSTANCE, 'ACT-2', 1))).toBe(false)
    expect(isGrantable(lineAccount('another', 'ACT-1', 1))).toBe(false)
    expect(isGrantable('no account')).toBe(false)
  })

  it('until its line item ends, and half a day longer where time zones are tolerated', () => {
    const open = { ...lineItem, periods: [{ index: 1, from: null, until: null }] }
    const end = lineItem.endsAt
    expect([isGrantable(LINE, open, false, end), isGrantable(LINE, open, false, end + 1)]).toEqual([true, false])
    expect(isGrantable(LINE, open, true, end + TOLERANCE_MS)).toBe(true)
    expect(isGrantable(LINE, open, true, end + TOLERANCE_MS + 1)).toBe(false)
  })

  it('in this period and in the next one', () => {
    const at = (now: number) =>
      [0, 1, 2, 3, 4].filter((index) => isGrantable(lineAccount(INSTANCE, 'ACT-1', index), lineItem, false, now))
    expect(at(NOW)).toEqual([1, 2])
    expect(at(899_999)).toEqual([0, 1])
    expect(at(900_000)).toEqual([1, 2])
    expect(at(1_500_000)).toEqual([3])
    const later = { ...lineItem, periods: periods.slice(2) }
    expect(isGrantable(lineAccount(INSTANCE, 'ACT-1', 2), later)).toBe(false)
    expect(isGrantable(lineAccount(INSTANCE, 'ACT-1', 3), later)).toBe(false)
  })

  it('if it is the allocation of an action that has one', () => {
    const action = { id: 'a-1', name: null, conditionId: null, effect: 'ALLOW', allocation: 5n } as const
    const actions = [{ ...action, id: 'a-0', allocation: null }, action]
    const granted = ['a-0', 'a-1', 'a-2'].filter((id) =>
      isGrantable(actionAccount(INSTANCE, 'ACT-1', id), { ...lineItem, actions }),
    )
    expect(granted).toEqual(['a-1'])
  })

  it('if it is the consumption limit of this or the next period', () => {
    const account = (index: number) => limitAccount(INSTANCE, 'ACT-1', { type: 'user', value: 'ada' }, index)
    const limited = { ...lineItem, consumptionLimit: { limit: 5n, periods } } as unknown as LineItem
    expect([0, 1, 2, 3].filter((index) => isGrantable(account(index), limited))).toEqual([1, 2])
    expect(isGrantable(account(1))).toBe(false)
  })
})

it('the quantity of an account is that of its line item, without overdraft', () => {
  const grantable = grantableAt(rulesOf([lineItem]), NOW)
  expect(quantityOf(LINE, grantable)).toBe(100n)
  expect(quantityOf(lineAccount(INSTANCE, 'ACT-1', 3), grantable)).toBeUndefined()
  expect(quantityOf(actionAccount(INSTANCE, 'ACT-1', 'a-1'), () => lineItem)).toBeUndefined()
  expect(quantityOf('no account', () => lineItem)).toBeUndefined()
})

it('rules can be used until their last deployed line item ends', () => {
  const items = [
    { ...lineItem, endsAt: 30 },
    { ...lineItem, id: 'ACT-2', endsAt: 20 },
    { ...lineItem, id: 'ACT-3', endsAt: 90, state: 'OBSOLETE' as const },
  ]
  expect(lastUsableAt(rulesOf(items))).toBe(30)
  expect(lastUsableAt(rulesOf(items, true))).toBe(30 + TOLERANCE_MS)
  expect(lastUsableAt(rulesOf(items.slice(2)))).toBeNull()
  expect(lastUsableAt(rulesOf([{ ...lineItem, endsAt: -5 }, lineItem]))).toBe(lineItem.endsAt)
})

describe('a fair share', () => {
  const pool: Pool = { ...newPool(LINE, 100n), charged: 10n, grantedOut: 60n, billedByDevices: 40n }

  it('is the free and the returnable tokens, divided by the number of devices', () => {
    expect(fairShare(pool, 0n, 1)).toBe(50n)
    expect(fairShare(pool, 0n, 3)).toBe(16n)
    expect(fairShare(pool, 0n, 0)).toBe(50n)
    // 15 are kept for the cloud beyond what it charged.
    expect(fairShare(pool, 25n, 1)).toBe(35n)
  })

  it('is nothing where all is spent', () => {
    expect(fairShare({ ...pool, charged: 40n, billedByDevices: 60n }, 0n, 2)).toBe(0n)
  })
})

describe('a grant', () => {
  const record = { ...newDeviceAccount('device', 1, LINE), granted: 30n, used: 20n }
  const pool: Pool = { ...newPool(LINE, 100n), charged: 15n, grantedOut: 30n }
  const account: RequestedAccount = {
    ...{ account: LINE, pool, record, reserved: 0n, wanted: 0n },
    ...{ share: 100n, spare: 100n, mustReturn: false, isUnproven: false },
  }
  const grant = (part: Partial<RequestedAccount>, wanted: bigint, quantity?: bigint) =>
    grantRequested(
      new Map([[LINE, { ...account, ...part }]]),
      { needs: [], topUpRequests: [{ account: LINE, wanted }] },
      () => quantity,
    )

  it('raises the balance to the requested amount, and is counted in pool and record', () => {
    const { pools, accounts, wire } = grant({}, 25n)
    expect(pools.get(LINE)).toMatchObject({ grantedOut: 45n })
    expect(accounts).toMatchObject([{ granted: 45n, unlimited: false }])
    expect(wire).toEqual([{ account: LINE, granted: 45n, exhausted: false, available: 40n, unlimited: false }])
  })

  it('writes nothing where it moves nothing', () => {
    const { pools, accounts, wire } = grant({}, 5n)
    expect([pools.size, accounts]).toEqual([0, []])
    expect(wire).toMatchObject([{ granted: 30n, available: 55n }])
  })

  it('ends an unlimited one, also when it moves nothing', () => {
    const { pools, accounts } = grant({ record: { ...record, unlimited: true } }, 5n)
    expect(pools.size).toBe(0)
    expect(accounts).toMatchObject([{ granted: 30n, unlimited: false }])
  })

  it('without a cap is unlimited, and metered from then on', () => {
    const unlimited = { pool: { ...pool, capTarget: null } }
    const { pools, accounts, wire } = grant(unlimited, 5n)
    expect(pools.size).toBe(0)
    expect(accounts).toMatchObject([{ unlimited: true, metered: true, wasMetered: true }])
    expect(wire).toEqual([{ account: LINE, granted: 30n, exhausted: false, available: MICRO_MAX, unlimited: true }])
    expect(grant({ ...unlimited, record: { ...record, unlimited: true } }, 5n).accounts).toEqual([])
  })

  it('says that the pool is exhausted when it takes the last of it', () => {
    expect(grant({}, 64n).wire).toMatchObject([{ available: 1n, exhausted: false }])
    expect(grant({}, 65n).wire).toMatchObject([{ available: 0n, exhausted: true }])
    expect(grant({ reserved: 30n }, 65n).wire).toMatchObject([{ granted: 70n, available: 0n, exhausted: true }])
    // It may have some again when devices show what was withheld for them.
    expect(grant({ pool: { ...pool, withheld: 55n } }, 65n).wire).toMatchObject([{ available: 0n, exhausted: false }])
  })

  it('is none to a device that must return its tokens, nor while sales are unknown', () => {
    const full = { pool: { ...pool, charged: 70n } }
    expect(grant({ mustReturn: true }, 25n).wire).toMatchObject([{ granted: 30n, available: 55n }])
    expect(grant({ ...full, mustReturn: true }, 25n).wire).toMatchObject([{ available: 0n, exhausted: false }])
    expect(grant({ isUnproven: true }, 25n).wire).toMatchObject([{ granted: 30n, available: 0n, exhausted: false }])
    expect(grant({ ...full, isUnproven: true }, 25n).wire).toMatchObject([{ exhausted: false }])
    expect(grant(full, 25n).wire).toMatchObject([{ available: 0n, exhausted: true }])
  })

  it('stops where the counter of a device is full', () => {
    const counted = { ...record, granted: MICRO_MAX - 3n, used: MICRO_MAX - 3n }
    expect(grant({ record: counted }, 25n).accounts).toMatchObject([{ granted: MICRO_MAX }])
  })

  it('says how much of the balance is overdraft', () => {
    const overdraftOf = (quantity: bigint | undefined, part: Partial<RequestedAccount> = {}, wanted = 25n) =>
      (grant(part, wanted, quantity).wire[0] as { overdraft?: bigint }).overdraft
    // 15 charged and 45 granted out afterwards, of which the device has 25.
    expect(overdraftOf(61n)).toBeUndefined()
    expect(overdraftOf(60n)).toBeUndefined()
    expect(overdraftOf(59n)).toBe(1n)
    expect(overdraftOf(36n)).toBe(24n)
    expect(overdraftOf(34n)).toBe(25n)
    expect(overdraftOf(undefined)).toBeUndefined()
    expect(overdraftOf(34n, { record: { ...record, used: 30n } }, 0n)).toBeUndefined()
    expect(overdraftOf(34n, { record: { ...record, used: 31n } }, 0n)).toBeUndefined()
  })
})

describe('the record of a device account', () => {
  const record = { ...newDeviceAccount('device', 1, LINE), granted: 100n, returned: 10n, used: 50n, refunded: 5n }

  it('is reserved until it is returned or released, or spent beyond that', () => {
    expect(reservedOn(record)).toBe(90n)
    expect(reservedOn({ ...record, released: 30n })).toBe(60n)
    expect(reservedOn({ ...record, released: 80n })).toBe(45n)
    expect(reservedOn({ ...record, branchUsed: 60n })).toBe(105n)
  })

  it('is billed as spent or presumed', () => {
    expect(billedOn({ ...record, branchUsed: 7n, presumed: 3n })).toBe(55n)
  })

  it('is overspent by chain and branches', () => {
    expect(overspendOn({ ...record, overspend: 4n, branchOverspend: 3n })).toBe(7n)
  })

  it('is unaccounted for until it is spent or returned, and settled as one or the other', () => {
    expect(unaccountedOn(record)).toBe(45n)
    expect(unaccountedOn({ ...record, branchUsed: 60n })).toBe(0n)
    expect(settled({ ...record, presumed: 2n }, null)).toMatchObject({ presumed: 2n, released: 0n })
    expect(settled(record, 'CHARGED')).toMatchObject({ presumed: 45n, released: 0n })
    expect(settled({ ...record, presumed: 9n }, 'RELEASED')).toMatchObject({ presumed: 0n, released: 45n })
  })
})
