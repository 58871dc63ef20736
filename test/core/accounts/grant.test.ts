/** The arithmetic of grants, against a model that hands single tokens from hand to hand. */
import fc from '../../support/fast-check.ts'
import { describe, expect, test } from 'vitest'
import {
  type Counters,
  METERED_CHARGE_MAX,
  METERED_MAX,
  NO_COUNTERS,
  billed,
  impossible,
  meteredLeft,
  outstanding,
  overdraftLeft,
  available,
  sumPostings,
} from '../../../src/core/accounts/grant.ts'

const amount = fc.bigInt({ min: 0n, max: 30n })
const counters: fc.Arbitrary<Counters> = fc.record({
  granted: amount,
  used: amount,
  refunded: amount,
  returned: amount,
})

test('an account without a limit has as much as one decision can charge, until its counter is near the end', () => {
  const rest = [0n, METERED_MAX - METERED_CHARGE_MAX, METERED_MAX - 5n, METERED_MAX, METERED_MAX + 1n].map((counted) =>
    meteredLeft(counted),
  )
  expect(rest).toEqual([METERED_CHARGE_MAX, METERED_CHARGE_MAX, 5n, 0n, 0n])
})

describe('counters', () => {
  test('a device that does only permitted operations always has counters that add up', () => {
    const step = fc.tuple(fc.constantFrom('grant', 'use', 'refund', 'return'), amount)
    fc.assert(
      fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
        let known = NO_COUNTERS
        let [free, spent, given] = [0n, 0n, 0n]
        for (const [what, size] of steps) {
          if (what === 'grant') {
            known = { ...known, granted: known.granted + size }
            free += size
            given += size
          } else if (what === 'use' && size > 0n && size <= free) {
            known = { ...known, used: known.used + size }
            free -= size
            spent += size
          } else if (what === 'refund' && size <= spent) {
            known = { ...known, refunded: known.refunded + size }
            free += size
            spent -= size
          } else if (what === 'return' && size <= free) {
            known = { ...known, returned: known.returned + size }
            free -= size
            given -= size
          }
          expect({ available: available(known), billed: billed(known), outstanding: outstanding(known) }).toEqual({
            available: free,
            billed: spent,
            outstanding: given,
          })
          expect(impossible(known)).toBe(false)
        }
      }),
    )
  })

  test('the outstanding tokens are the billed and the spendable tokens', () => {
    fc.assert(
      fc.property(counters, (some) => {
        expect(outstanding(some)).toBe(billed(some) + available(some))
      }),
    )
  })

  test.each<[string, Partial<Counters>]>([
    ['more used than granted', { granted: 5n, used: 6n }],
    ['more returned than granted', { granted: 5n, returned: 6n }],
    ['used and returned beyond the grant', { granted: 5n, used: 3n, returned: 3n }],
    ['more refunded than used', { granted: 5n, used: 1n, refunded: 2n }],
    ['a negative grant', { granted: -1n }],
    ['negative use', { granted: 5n, used: -1n }],
    ['a negative refund', { granted: 5n, used: 1n, refunded: -1n }],
    ['a negative return', { granted: 5n, returned: -1n }],
  ])('no honest device has %s', (_what, some) => {
    expect(impossible({ ...NO_COUNTERS, ...some })).toBe(true)
  })

  test('all that is granted may be used, refunded and used again', () => {
    expect(impossible({ granted: 5n, used: 8n, refunded: 3n, returned: 0n })).toBe(false)
  })
})

test.each([
  ['all of it while what is left is more', 30n, 10n, 10n],
  ['all of it while what is left is as much', 10n, 10n, 10n],
  ['what is left when that is less', 9n, 10n, 9n],
  ['nothing when nothing is left', 0n, 10n, 0n],
  ['nothing when more was spent than granted', -4n, 10n, 0n],
  ['nothing where nothing is overdraft', 30n, 0n, 0n],
])('of overdraft there is left %s', (_name, left, overdraft, expected) => {
  expect(overdraftLeft({ granted: left + 50n, used: 60n, refunded: 20n, returned: 10n }, overdraft)).toBe(expected)
})

describe('sums of postings', () => {
  test('each account once, in the order of first mention, nothing dropped', () => {
    const posting = fc.record({ account: fc.constantFrom('a', 'b', '__proto__', 'constructor'), amount })
    fc.assert(
      fc.property(fc.array(posting), (postings) => {
        const sums = sumPostings(postings)
        expect([...sums.keys()]).toEqual([...new Set(postings.map(({ account }) => account))])
        for (const [account, sum] of sums) {
          const own = postings.filter((each) => each.account === account)
          expect(sum).toBe(own.reduce((total, each) => total + each.amount, 0n))
        }
      }),
    )
  })
})
