import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { actionAccount, lineAccount, limitAccount } from '../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../src/core/pricing/amount.ts'
import {
  type Capped,
  accountFor,
  bill,
  capOf,
  charge,
  claim,
  free,
  freeForDevices,
  grantOut,
  newPool,
  overrun,
  recoverable,
  refund,
  release,
  retarget,
  takeBack,
  takeOver,
  used,
  withhold,
} from '../../../src/cloud/accounts/pool.ts'
import type { Pool } from '../../../src/cloud/storage/records.ts'

const account = lineAccount('i', 'L', 0)

describe('a pool', () => {
  it('grants devices no tokens of the reserve of the cloud, which includes its charges', () => {
    const pool = grantOut(newPool(account, 100n), 20n)
    expect(freeForDevices(pool, 30n)).toBe(50n)
    expect(freeForDevices(charge(pool, 10n), 30n)).toBe(50n)
    expect(freeForDevices(charge(pool, 30n), 30n)).toBe(50n)
    expect(freeForDevices(charge(pool, 40n), 30n)).toBe(40n)
    expect(freeForDevices(pool, 90n)).toBe(0n)
  })

  it('gives the free part of its cap to the cloud and to devices alike', () => {
    const pool = grantOut(charge(newPool(account, 100n), 30n), 50n)
    expect(free(pool)).toBe(20n)
    expect(() => charge(pool, 21n)).toThrow('invariant')
    expect(() => grantOut(pool, 21n)).toThrow('invariant')
    expect(free(charge(pool, 20n))).toBe(0n)
  })

  it('counts the charges of the cloud and the reported use of devices as used', () => {
    const pool = bill(charge(newPool(account, 100n), 30n), 5n)
    expect(used(pool)).toBe(35n)
    expect(used(undefined)).toBe(0n)
    expect(used(bill(refund(pool, 10n), -2n))).toBe(23n)
    expect(() => refund(pool, 31n)).toThrow('invariant')
  })

  it('comes down with a lowered cap only as tokens come back', () => {
    let pool = grantOut(charge(newPool(account, 100n), 40n), 50n)
    pool = retarget(pool, 60n)
    expect([pool.capInForce, free(pool)]).toEqual([90n, 0n])
    pool = takeBack(pool, 20n)
    expect([pool.capInForce, free(pool)]).toEqual([70n, 0n])
    pool = refund(pool, 15n)
    expect([pool.capInForce, free(pool)]).toEqual([60n, 5n])
    expect(free(retarget(pool, 80n))).toBe(25n)
  })

  it('without a cap gives as much as can be counted', () => {
    const pool = charge(newPool(account, null), MICRO_MAX - 1n)
    expect(free(pool)).toBe(1n)
    expect(retarget(pool, 10n)).toMatchObject({ capTarget: 10n, capInForce: MICRO_MAX - 1n })
    expect(retarget(retarget(pool, 10n), null)).toMatchObject({ capTarget: null, capInForce: null })
  })

  it('takes no negative amounts, and no more back than was given', () => {
    const pool = grantOut(charge(newPool(account, 100n), 30n), 50n)
    for (const step of [charge, refund, grantOut, takeBack, overrun, accountFor]) {
      expect(() => step(pool, -1n)).toThrow('invariant')
      expect(step(pool, 0n)).toEqual(pool)
    }
    expect(takeBack(pool, 50n).grantedOut).toBe(0n)
    expect(() => takeBack(pool, 51n)).toThrow('invariant')
  })

  it('lets its cap in force follow what devices turn out to have had, as far as a counter goes', () => {
    const pool = overrun(charge(newPool(account, 100n), 30n), 90n)
    expect(pool).toMatchObject({ grantedOut: 90n, capTarget: 100n, capInForce: 120n })
    const most = MICRO_MAX - 120n
    expect(overrun(pool, most)).toMatchObject({ grantedOut: MICRO_MAX - 30n })
    expect(() => overrun(pool, most + 1n)).toThrow('invariant')
  })

  it('counts tokens that no recorded grant explains while it has a cap, at most the granted ones', () => {
    const claimed = claim(overrun(grantOut(newPool(account, 100n), 50n), 40n), 40n)
    expect(claimed).toMatchObject({ grantedOut: 90n, claimed: 40n })
    expect(claim(claimed, 5n).claimed).toBe(45n)
    expect([takeBack(claimed, 50n).claimed, takeBack(claimed, 60n).claimed]).toEqual([40n, 30n])
    expect(claim(retarget(claimed, null), 5n).claimed).toBe(40n)
  })

  it('keeps the unused reserve of the cloud from devices', () => {
    const pool = charge(newPool(account, 100n), 30n)
    const left = [0n, 30n, 50n, 100n, 200n].map((reserved) => freeForDevices(pool, reserved))
    expect(left).toEqual([70n, 70n, 50n, 0n, 0n])
  })

  it('counts the unspent tokens of devices as recoverable', () => {
    const pool = grantOut(newPool(account, 100n), 50n)
    expect([recoverable(pool), recoverable(bill(pool, 20n)), recoverable(bill(pool, 60n))]).toEqual([50n, 30n, 0n])
  })

  it('remembers the highest cap that it ever had', () => {
    const caps = [newPool(account, 100n), 80n, null, 120n, 100n, null] as const
    const [first, ...later] = caps
    const highest = [first.capHighest]
    let pool = first
    for (const cap of later) highest.push((pool = retarget(pool, cap)).capHighest)
    expect(highest).toEqual([100n, 100n, 100n, 120n, 120n, 120n])
  })

  it('counts all that was ever sold of it, also what came back, as far as a counter goes', () => {
    const pool = grantOut(charge(newPool(account, 100n), 30n), 50n)
    const back = takeBack(refund(pool, 30n), 50n)
    expect(charge(back, 10n).sold).toBe(90n)
    const counted = charge(newPool(account, null), MICRO_MAX - 1n)
    expect(charge(refund(counted, 10n), 1n).sold).toBe(MICRO_MAX)
    expect(charge(refund(counted, 10n), 2n).sold).toBe(MICRO_MAX)
  })

  it('withholds unrecorded sales until devices account for them or an administrator releases them', () => {
    const pool = charge(newPool(account, 100n), 30n)
    expect(withhold(pool, 30n)).toEqual(pool)
    expect(withhold(pool, 29n)).toEqual(pool)
    const restored = withhold(pool, 70n)
    expect(restored).toMatchObject({ sold: 70n, withheld: 40n })
    expect(free(restored)).toBe(30n)
    expect(withhold(restored, 75n)).toMatchObject({ sold: 75n, withheld: 45n })
    expect([accountFor(restored, 15n), accountFor(restored, 40n), accountFor(restored, 41n)]).toMatchObject([
      { withheld: 25n },
      { withheld: 0n },
      { withheld: 0n },
    ])
    expect(free(release(restored))).toBe(70n)
  })

  it('takes over use beyond its cap, and use that it withholds only once', () => {
    const pool = charge(newPool(account, 100n), 30n)
    expect(takeOver(pool, 80n, true)).toMatchObject({ charged: 110n, sold: 110n, capInForce: 110n })
    const restored = withhold(pool, 70n)
    expect(takeOver(restored, 25n, true)).toMatchObject({ charged: 55n, sold: 70n, withheld: 15n })
    expect(takeOver(restored, 50n, true)).toMatchObject({ charged: 80n, sold: 80n, withheld: 0n })
    expect(takeOver(restored, 25n, false)).toMatchObject({ charged: 55n, sold: 95n, withheld: 40n })
    expect(() => takeOver(pool, MICRO_MAX, true)).toThrow('invariant')
  })

  it('holds its invariant through any sequence of steps', () => {
    const amount = fc.bigInt({ min: 0n, max: 50n })
    const steps = fc.array(fc.tuple(fc.constantFrom('charge', 'refund', 'grant', 'back', 'cap', 'open'), amount), {
      maxLength: 60,
    })
    const least = (a: bigint, b: bigint): bigint => (a < b ? a : b)
    const apply = (pool: Pool, kind: string, by: bigint): Pool => {
      switch (kind) {
        case 'charge':
          return charge(pool, least(by, free(pool)))
        case 'refund':
          return refund(pool, least(by, pool.charged))
        case 'grant':
          return grantOut(pool, least(by, free(pool)))
        case 'back':
          return takeBack(pool, least(by, pool.grantedOut))
        case 'cap':
          return retarget(pool, by)
        default:
          return retarget(pool, null)
      }
    }
    fc.assert(
      fc.property(steps, (sequence) => {
        let pool = newPool(account, 40n)
        for (const [kind, by] of sequence) {
          const before = pool
          pool = apply(pool, kind, by)
          const out = pool.charged + pool.grantedOut
          if (pool.capInForce === null) expect(pool.capTarget).toBeNull()
          else {
            expect(out).toBeLessThanOrEqual(pool.capInForce)
            expect(pool.capInForce === pool.capTarget || pool.capInForce === out).toBe(true)
            if (before.capTarget === pool.capTarget && before.capInForce !== null) {
              expect(pool.capInForce).toBeLessThanOrEqual(before.capInForce)
            }
          }
        }
      }),
    )
  })
})

describe('the cap of an account', () => {
  const lineItem: Capped = {
    id: 'L',
    quantity: 100n,
    overdraft: 5n,
    consumptionLimit: { limit: 7n, periods: [] },
    actions: [
      { id: 'a', allocation: 20n },
      { id: 'b', allocation: null },
    ],
  }

  it('is that of its line item, its action or its limit', () => {
    expect(capOf(account, lineItem)).toBe(105n)
    expect(capOf(account, { ...lineItem, overdraft: 'UNLIMITED' })).toBeNull()
    expect(capOf(actionAccount('i', 'L', 'a'), lineItem)).toBe(20n)
    expect(capOf(limitAccount('i', 'L', { type: 't', value: 'v' }, 0), lineItem)).toBe(7n)
  })

  it('is nothing for an action or a limit that is gone', () => {
    expect(capOf(actionAccount('i', 'L', 'b'), lineItem)).toBe(0n)
    expect(capOf(actionAccount('i', 'L', 'c'), lineItem)).toBe(0n)
    const unlimited = { ...lineItem, consumptionLimit: null }
    expect(capOf(limitAccount('i', 'L', { type: 't', value: 'v' }, 0), unlimited)).toBe(0n)
    expect(() => capOf(lineAccount('i', 'M', 0), lineItem)).toThrow('invariant')
  })
})
