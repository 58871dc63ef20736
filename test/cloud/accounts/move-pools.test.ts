import { describe, expect, it } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../src/core/pricing/amount.ts'
import { movePools } from '../../../src/cloud/accounts/move-pools.ts'
import { bill, grantOut, newPool, withhold } from '../../../src/cloud/accounts/pool.ts'
import type { Pool } from '../../../src/cloud/storage/records.ts'
import { type DeviceAccountRecord, newDeviceAccount } from '../../../src/cloud/storage/device-records.ts'

const account = lineAccount('i', 'L', 0)
const none = newDeviceAccount('d', 1, account)

function move(pool: Pool, before: Partial<DeviceAccountRecord>, after: Partial<DeviceAccountRecord>): Pool | undefined {
  const moves = [{ before: { ...none, ...before }, after: { ...none, ...before, ...after } }]
  return movePools(new Map([[account, pool]]), moves)?.after.get(account)
}

describe('a change of a counter of a device', () => {
  it('bills used tokens, and leaves granted tokens unchanged', () => {
    const pool = grantOut(newPool(account, 100n), 40n)
    expect(move(pool, { granted: 40n }, { used: 30n })).toEqual(bill(pool, 30n))
    expect(move(bill(pool, 30n), { granted: 40n, used: 30n }, { refunded: 10n })).toEqual(bill(pool, 20n))
  })

  it('frees returned tokens', () => {
    const pool = grantOut(newPool(account, 100n), 40n)
    expect(move(pool, { granted: 40n }, { returned: 15n })).toMatchObject({ grantedOut: 25n, billedByDevices: 0n })
  })

  it('may fill the counter of the pool, and no more', () => {
    const pool = { ...newPool(account, null), charged: 1_000n }
    const left = MICRO_MAX - 1_000n
    expect(move(pool, {}, { branchUsed: left })).toMatchObject({ grantedOut: left, billedByDevices: left })
    expect(move(pool, {}, { branchUsed: left + 1n })).toBeUndefined()
    const granted = { ...pool, grantedOut: 500n }
    expect(move(granted, {}, { branchUsed: left - 500n })).toMatchObject({ grantedOut: left })
    expect(move(granted, {}, { branchUsed: left - 499n })).toBeUndefined()
  })

  it('releases no more than the grants that the device proves, without its overspend', () => {
    const pool = withhold(newPool(account, 100n), 60n)
    expect(move(pool, {}, { granted: 50n })).toMatchObject({ withheld: 10n, grantedOut: 50n })
    expect(move(pool, {}, { granted: 50n, overspend: 20n })).toMatchObject({ withheld: 30n })
    expect(move(pool, { granted: 5n, overspend: 5n }, { granted: 50n, overspend: 20n })).toMatchObject({
      withheld: 30n,
    })
    expect(move(pool, {}, { granted: 50n, unlimited: true })).toMatchObject({ withheld: 60n })
    expect(move(pool, {}, { branchUsed: 20n, overspend: 20n })).toMatchObject({ withheld: 60n })
  })

  it('claims the tokens that no recorded grant explains', () => {
    const pool = grantOut(newPool(account, 100n), 40n)
    const granted = { granted: 40n, used: 30n }
    const claimed = (before: Partial<DeviceAccountRecord>, after: Partial<DeviceAccountRecord>) =>
      move(pool, before, after)?.claimed
    expect(claimed(granted, { used: 40n })).toBe(0n)
    expect(claimed(granted, { branchUsed: 10n })).toBe(0n)
    expect(claimed(granted, { branchUsed: 15n })).toBe(5n)
    expect(claimed(granted, { used: 60n, granted: 60n })).toBe(20n)
    expect(claimed(granted, { returned: 10n })).toBe(0n)
    expect(claimed({ ...granted, metered: true }, { used: 60n, granted: 60n })).toBe(0n)
    expect(claimed({ ...granted, wasMetered: true }, { used: 60n, granted: 60n })).toBe(20n)
    expect(claimed({ ...granted, wasMetered: true }, { branchUsed: 15n })).toBe(0n)
  })

  it('does not claim released tokens that turn out to be spent', () => {
    const pool = grantOut(newPool(account, 100n), 30n)
    const settled = { granted: 40n, used: 30n, released: 10n }
    expect(move(pool, settled, { used: 40n, released: 0n })).toMatchObject({ grantedOut: 40n, claimed: 0n })
    expect(move(pool, settled, { used: 40n, released: 0n, branchUsed: 5n })).toMatchObject({ claimed: 5n })
  })

  it('does not claim a grant that the device has proven', () => {
    const moves = [{ before: none, after: { ...none, granted: 40n }, isProven: true as const }]
    const moved = movePools(new Map([[account, newPool(account, 100n)]]), moves)
    expect(moved?.after.get(account)).toMatchObject({ grantedOut: 40n, claimed: 0n })
  })

  it('is never of an account that was not opened, nor bills what is not reserved', () => {
    const change = { before: none, after: { ...none, granted: 1n } }
    expect(() => movePools(new Map(), [change])).toThrow('the pool of an account that moves was opened')
    const presumed = { before: none, after: { ...none, presumed: 1n } }
    expect(() => movePools(new Map([[account, newPool(account, 10n)]]), [presumed])).toThrow('are reserved')
  })
})
