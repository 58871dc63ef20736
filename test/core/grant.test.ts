/** The arithmetic of grants, against a model that hands single tokens from hand to hand. */
import fc from '../support/fast-check.ts'
import { describe, expect, test } from 'vitest'
import {
  type Counters,
  NO_COUNTERS,
  billed,
  charge,
  impossible,
  merge,
  outstanding,
  room,
  sizeGrant,
  sumPostings,
} from '../../src/core/grant.ts'

const amount = fc.bigInt({ min: 0n, max: 30n })
const counters: fc.Arbitrary<Counters> = fc.record({
  granted: amount,
  used: amount,
  refunded: amount,
  returned: amount,
})
const least = (a: bigint, b: bigint) => (a < b ? a : b)
const most = (a: bigint, b: bigint) => (a > b ? a : b)

describe('counters', () => {
  test('a device that only does what it may always has counters that add up', () => {
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
            known = charge(known, size)
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
          expect({ room: room(known), billed: billed(known), outstanding: outstanding(known) }).toEqual({
            room: free,
            billed: spent,
            outstanding: given,
          })
          expect(impossible(known)).toBe(false)
        }
      }),
    )
  })

  test('what is outstanding is what is billed and what may still be spent', () => {
    fc.assert(
      fc.property(counters, (some) => {
        expect(outstanding(some)).toBe(billed(some) + room(some))
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

  test('merging takes the greatest of each: in any order, any grouping, and as often as one likes', () => {
    fc.assert(
      fc.property(counters, counters, counters, (a, b, c) => {
        expect(merge(a, b)).toEqual(merge(b, a))
        expect(merge(merge(a, b), c)).toEqual(merge(a, merge(b, c)))
        expect(merge(a, a)).toEqual(a)
        expect(merge(a, NO_COUNTERS)).toEqual(a)
        expect(merge(a, b)).toEqual({
          granted: most(a.granted, b.granted),
          used: most(a.used, b.used),
          refunded: most(a.refunded, b.refunded),
          returned: most(a.returned, b.returned),
        })
      }),
    )
  })

  test('a charge moves what is used and nothing else, and one that does not fit the room breaks off', () => {
    fc.assert(
      fc.property(counters, fc.bigInt({ min: -3n, max: 40n }), (some, size) => {
        if (size <= 0n || size > room(some)) {
          expect(() => charge(some, size)).toThrow(/invariant/)
          return
        }
        expect(charge(some, size)).toEqual({ ...some, used: some.used + size })
        expect(room(charge(some, size))).toBe(room(some) - size)
      }),
    )
  })
})

interface Question {
  readonly atLeast: bigint
  readonly wanted: bigint
  readonly roomNow: bigint
  readonly free: bigint
  readonly devices: number
}

describe('the size of a grant', () => {
  const question: fc.Arbitrary<Question> = fc.record({
    atLeast: amount,
    wanted: amount,
    roomNow: amount,
    free: fc.bigInt({ min: -5n, max: 60n }),
    devices: fc.integer({ min: 0, max: 6 }),
  })
  const sizeOf = ({ atLeast, wanted, roomNow, free, devices }: Question) =>
    sizeGrant({ account: 'line/i/A/0', atLeast, wanted }, roomNow, free, devices)

  test.each<[string, Partial<Question>, bigint]>([
    ['tops the room up to what is wanted', { wanted: 30n, roomNow: 10n, free: 100n }, 20n],
    ['gives no more than a fair share', { wanted: 60n, free: 100n, devices: 4 }, 25n],
    [
      'counts the room that the device has only against its own want',
      { wanted: 60n, roomNow: 50n, free: 100n, devices: 20 },
      5n,
    ],
    [
      'gives what a waiting request needs beyond the fair share',
      { atLeast: 60n, wanted: 10n, free: 100n, devices: 4 },
      60n,
    ],
    ['gives what is left when the request needs more', { atLeast: 60n, free: 40n, devices: 4 }, 40n],
    ['gives nothing of an empty pool', { atLeast: 60n, wanted: 60n, free: 0n }, 0n],
    ['gives nothing of an overdrawn pool', { atLeast: 60n, wanted: 60n, free: -5n }, 0n],
    ['gives nothing to a device that has enough', { atLeast: 5n, wanted: 10n, roomNow: 10n, free: 100n }, 0n],
    ['takes no device as one', { wanted: 60n, free: 100n, devices: 0 }, 60n],
    ['rounds a fair share down', { wanted: 60n, free: 11n, devices: 3 }, 3n],
  ])('%s', (_what, some, wanted) => {
    expect(sizeOf({ atLeast: 0n, wanted: 0n, roomNow: 0n, free: 0n, devices: 1, ...some })).toBe(wanted)
  })

  test('never below nothing, never beyond the pool, and never beyond what the device lacks', () => {
    fc.assert(
      fc.property(question, (asked) => {
        const size = sizeOf(asked)
        expect(size >= 0n && size <= most(asked.free, 0n)).toBe(true)
        expect(size <= most(most(asked.atLeast, asked.wanted) - asked.roomNow, 0n)).toBe(true)
      }),
    )
  })

  test('a request that waits is served whenever the pool holds what it lacks', () => {
    fc.assert(
      fc.property(question, (asked) => {
        const lacking = most(asked.atLeast - asked.roomNow, 0n)
        expect(sizeOf(asked) >= least(lacking, most(asked.free, 0n))).toBe(true)
      }),
    )
  })

  test('beyond what a waiting request needs, one device takes at most its share', () => {
    fc.assert(
      fc.property(question, (asked) => {
        const share = most(asked.free, 0n) / BigInt(Math.max(1, asked.devices))
        expect(sizeOf(asked) <= most(share, asked.atLeast - asked.roomNow)).toBe(true)
      }),
    )
  })

  test('more in the pool never makes a smaller grant', () => {
    fc.assert(
      fc.property(question, amount, (asked, more) => {
        expect(sizeOf({ ...asked, free: asked.free + more }) >= sizeOf(asked)).toBe(true)
      }),
    )
  })
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
