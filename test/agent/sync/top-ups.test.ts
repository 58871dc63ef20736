import { expect, test } from 'vitest'
import { poolBalancesOf, topUpsOf } from '../../../src/agent/sync/top-ups.ts'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { SEGMENT_ACCOUNTS_MAX } from '../../../src/protocol/edge/sync.ts'

const account = (n: number) => lineAccount('i', 'l', n)
const wanted = (n: number, amount: bigint) => ({ account: account(n), wanted: amount })
const demandWith = (topUpRequests: readonly ReturnType<typeof wanted>[], exhausted: readonly number[] = []) => ({
  topUpRequests: () => topUpRequests,
  exhaustedAccounts: () => exhausted.map(account),
})
const nothing = { needs: [], accounts: [] }

test('top-ups are requested for the accounts of waiting requests, and for those below their target balance', () => {
  const needs = [[{ account: account(1), amount: 5n }]]
  const demand = demandWith([wanted(2, 9n), wanted(3, 7n)], [3, 4])
  expect(topUpsOf(demand, { needs, accounts: [account(1), account(2)] }, new Set(), false)).toEqual({
    needs,
    topUpRequests: [wanted(1, 0n), wanted(2, 9n), wanted(3, 7n), wanted(4, 0n)],
  })
})

test('no top-up is requested for returned tokens, except from empty pools', () => {
  const demand = demandWith([wanted(1, 9n), wanted(2, 7n)], [3])
  const topUps = (givenBack: readonly number[], isReleasing: boolean) =>
    topUpsOf(demand, nothing, new Set(givenBack.map(account)), isReleasing).topUpRequests
  expect(topUps([1], false)).toEqual([wanted(2, 7n), wanted(3, 0n)])
  expect(topUps([], true)).toEqual([wanted(3, 0n)])
})

test('no more accounts are named than a segment takes, those of waiting requests first', () => {
  const many = Array.from({ length: SEGMENT_ACCOUNTS_MAX }, (_, n) => wanted(n + 1, 1n))
  const { topUpRequests } = topUpsOf(demandWith(many), { needs: [], accounts: [account(0)] }, new Set(), false)
  expect(topUpRequests).toHaveLength(SEGMENT_ACCOUNTS_MAX)
  expect(topUpRequests.slice(0, 2)).toEqual([wanted(0, 0n), wanted(1, 1n)])
})

test('a pool without a limit is unlimited, and returns nothing that is not said', () => {
  const of = (n: number, unlimited: boolean, returnable?: bigint) => ({
    ...{ account: account(n), granted: 1n, exhausted: false, available: 5n, unlimited },
    ...(returnable === undefined ? {} : { returnable }),
  })
  expect(poolBalancesOf({ accounts: [of(1, false, 3n), of(2, true)] })).toEqual(
    new Map([
      [account(1), { available: 5n, returnable: 3n }],
      [account(2), { available: 'UNLIMITED', returnable: 0n }],
    ]),
  )
})
