/** How much one device is granted, and how much others keep when they are asked to return tokens. */
import { describe, expect, test } from 'vitest'
import { type Supply, recallLevel, sizeGrants } from '../../../src/core/accounts/fair-share.ts'
import type { Need } from '../../../src/core/accounts/grant.ts'
import fc from '../../support/fast-check.ts'

const A = 'line/i/A/0'
const B = 'line/i/B/0'
const L = 'limit/i/A/user/ada/0'
const ACCOUNTS = [A, B, L]

const supply = (some: Partial<Supply>): Supply => {
  const { available = 0n, free = 0n, spare = free, share = free } = some
  return { available, free, spare, share }
}
const need = (...parts: readonly (readonly [string, bigint])[]): Need =>
  parts.map(([account, amount]) => ({ account, amount }))
const sizes = (
  supplies: Record<string, Supply | 'UNLIMITED'>,
  needs: readonly Need[],
  topUpRequests: [string, bigint][] = [],
) =>
  sizeGrants(
    needs,
    topUpRequests.map(([account, wanted]) => ({ account, wanted })),
    (account) => supplies[account],
  )

describe('waiting requests', () => {
  test('get the tokens that their accounts lack, beyond any fair share', () => {
    const { granted, unmet } = sizes({ [A]: supply({ available: 5n, free: 100n, share: 25n }) }, [need([A, 60n])])
    expect([...granted]).toEqual([[A, 55n]])
    expect(unmet).toEqual([])
  })

  test('that the pool cannot pay move nothing, and do not block those behind them', () => {
    const needs = [need([A, 12_000n]), need([A, 3_000n]), need([A, 9_000n]), need([A, 7_000n])]
    const { granted, unmet } = sizes({ [A]: supply({ free: 10_000n }) }, needs)
    expect([...granted]).toEqual([[A, 10_000n]])
    expect(unmet).toEqual([needs[0], needs[2]])
  })

  test('move nothing of one account when another one cannot pay', () => {
    const supplies = { [A]: supply({ free: 100n }), [L]: supply({ available: 1n, free: 3n }) }
    expect([...sizes(supplies, [need([A, 5n], [L, 5n])]).granted]).toEqual([])
    expect([...sizes(supplies, [need([A, 4n], [L, 4n])]).granted]).toEqual([
      [A, 4n],
      [L, 3n],
    ])
  })

  test('do not count the same balance twice', () => {
    const { granted } = sizes({ [A]: supply({ available: 5n, free: 100n }) }, [
      need([A, 8n]),
      need([A, 9n]),
      need([A, 7n]),
    ])
    expect([...granted]).toEqual([[A, 19n]])
  })

  test('need no tokens of unlimited accounts, and get none of accounts that cannot be granted', () => {
    expect(sizes({ [A]: 'UNLIMITED', [L]: supply({ free: 9n }) }, [need([A, 5n], [L, 5n])]).granted).toEqual(
      new Map([[L, 5n]]),
    )
    expect(sizes({ [A]: supply({ free: 9n }) }, [need([A, 5n], [B, 5n])]).unmet).toHaveLength(1)
  })
})

describe('tokens that are granted in advance', () => {
  test.each<[string, Partial<Supply>, bigint, bigint]>([
    ['tops the balance up to what is wanted', { available: 10n, free: 100n }, 30n, 20n],
    ['gives no more than a fair share', { free: 100n, share: 25n }, 60n, 25n],
    ['counts the balance against the share', { available: 20n, free: 100n, share: 25n }, 60n, 5n],
    ['gives nothing to a device that has its share', { available: 40n, free: 100n, share: 25n }, 60n, 0n],
    ['leaves what others lack', { free: 100n, spare: 7n }, 60n, 7n],
    ['gives nothing where others lack more than there is', { free: 100n, spare: -7n }, 60n, 0n],
    ['gives nothing of an empty pool', {}, 60n, 0n],
    ['gives nothing to a device that only asks how much there is', { free: 100n }, 0n, 0n],
  ])('%s', (_what, some, wanted, granted) => {
    expect(sizes({ [A]: supply(some) }, [], [[A, wanted]]).granted.get(A) ?? 0n).toBe(granted)
  })

  test('are none for unlimited accounts and for accounts that cannot be granted', () => {
    const wanted: [string, bigint][] = [
      [A, 5n],
      [B, 5n],
      [L, 5n],
    ]
    expect(sizes({ [A]: 'UNLIMITED', [L]: supply({ free: 9n }) }, [], wanted).granted).toEqual(new Map([[L, 5n]]))
  })

  test('comes after waiting requests, whose tokens count until they are spent', () => {
    const { granted } = sizes({ [A]: supply({ free: 100n, share: 50n }) }, [need([A, 40n])], [[A, 50n]])
    expect([...granted]).toEqual([[A, 50n]])
  })

  test('come from the part of the pool that waiting requests leave', () => {
    const { granted } = sizes({ [A]: supply({ free: 10n, share: 50n }) }, [need([A, 5n])], [[A, 50n]])
    expect([...granted]).toEqual([[A, 10n]])
  })
})

test('nothing is granted beyond a pool, nothing in advance beyond a share, and every request that is served can be paid', () => {
  const amount = fc.bigInt({ min: 0n, max: 40n })
  const account = fc.constantFrom(...ACCOUNTS)
  const anyNeed = fc.array(fc.record({ account, amount }), { minLength: 1, maxLength: 3 })
  const supplies = fc.record(
    Object.fromEntries(
      ACCOUNTS.map((id) => [id, fc.record({ available: amount, free: amount, spare: amount, share: amount })]),
    ),
  )
  fc.assert(
    fc.property(
      supplies,
      fc.array(anyNeed, { maxLength: 6 }),
      fc.array(amount, { maxLength: 3 }),
      (all, needs, wanted) => {
        const { granted, unmet, claimed } = sizes(
          all,
          needs,
          wanted.map((each, index) => [ACCOUNTS[index] ?? A, each]),
        )
        const served = needs.filter((each) => !unmet.includes(each))
        for (const id of ACCOUNTS) {
          const { available = 0n, free = 0n, share = 0n } = all[id] ?? {}
          const size = granted.get(id) ?? 0n
          const charged = served.flat().reduce((sum, part) => (part.account === id ? sum + part.amount : sum), 0n)
          expect(claimed.get(id) ?? 0n).toBe(charged)
          expect(size <= free).toBe(true)
          expect(charged <= available + size).toBe(true)
          expect(size === 0n || available + size <= (charged > share ? charged : share)).toBe(true)
        }
        for (const missing of unmet) {
          const fits = missing.every(({ account: id }) => {
            const sum = missing.reduce((total, part) => (part.account === id ? total + part.amount : total), 0n)
            const { available = 0n, free = 0n } = all[id] ?? {}
            return sum <= available + free - (claimed.get(id) ?? 0n)
          })
          expect(fits).toBe(false)
        }
      },
    ),
  )
})

describe('the level down to which others return tokens', () => {
  test.each<[string, bigint[], bigint, bigint, bigint]>([
    ['takes from those who hold most', [80n, 20n], 50n, 30n, 50n],
    ['goes below the share when that is not enough', [25n, 25n, 25n], 25n, 15n, 20n],
    ['takes all where all of it is not enough', [10n, 5n], 50n, 100n, 0n],
    ['takes all if no device has tokens to recall', [], 50n, 10n, 0n],
    ['leaves a share to everyone where that is enough', [100n, 10n], 30n, 10n, 30n],
  ])('%s', (_what, rooms, share, lacking, level) => {
    expect(recallLevel(rooms, share, lacking)).toBe(level)
  })

  test('is the highest at which enough is returned', () => {
    const amount = fc.bigInt({ min: 0n, max: 50n })
    fc.assert(
      fc.property(fc.array(amount, { maxLength: 6 }), amount, amount, (rooms, share, lacking) => {
        const level = recallLevel(rooms, share, lacking)
        const returned = (at: bigint) =>
          rooms.reduce((sum, available) => (available > at ? sum + available - at : sum), 0n)
        expect(level >= 0n && level <= share).toBe(true)
        if (level > 0n) expect(returned(level) >= lacking).toBe(true)
        if (level < share) expect(returned(level + 1n) < lacking).toBe(true)
      }),
    )
  })
})

test('nothing is granted in advance for accounts that cannot be granted, are unlimited, or lack nothing', () => {
  const supplies = { [A]: supply({ available: 5n, free: 100n }), [B]: 'UNLIMITED' as const }
  const topUpRequests: [string, bigint][] = [
    [L, 10n],
    [B, 10n],
    [A, 5n],
  ]
  expect([...sizes(supplies, [], topUpRequests).granted]).toEqual([])
  expect([...sizes(supplies, [], [...topUpRequests, [A, 6n]]).granted]).toEqual([[A, 1n]])
})
