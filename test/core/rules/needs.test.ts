import { describe, expect, it } from 'vitest'
import { actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import type { Decision, ItemOutcome, ChargeShare } from '../../../src/core/rules/decision.ts'
import { isShort, needsOf, payingAccounts } from '../../../src/core/rules/needs.ts'

const [pool, other] = [lineAccount('i', 'L', 0), lineAccount('i', 'M', 0)]
const [allocation, foreign] = [actionAccount('i', 'L', 'a'), actionAccount('i', 'L', 'b')]
const limit = limitAccount('i', 'L', { type: 'user', value: 'ada' }, 0)

const part = (lineItemId: string, charged: bigint, actionId: string | null = null): ChargeShare => {
  return { lineItemId, rate: decimal(1), actionId, charged }
}
const granted = (...shares: readonly ChargeShare[]): ItemOutcome => ({ outcome: 'GRANTED', shares, total: 0n })
const decided = (...items: readonly ItemOutcome[]): Decision => ({
  items,
  postings: [pool, other, allocation, foreign, limit, 'no account'].map((account) => ({ account, amount: 9n })),
  warnings: [],
})

describe('the needs of a request', () => {
  it('have one entry for each granted item where items are granted separately', () => {
    const refused: ItemOutcome = { outcome: 'REFUSED', reason: 'DENIED_BY_RULE', rejectionDetails: [] }
    const free = granted(part('M', 0n))
    const decision = decided(granted(part('L', 5n, 'a'), part('M', 2n)), refused, free, granted(part('M', 3n)))
    expect(needsOf(decision, 'BEST_EFFORT')).toEqual([
      [
        { account: pool, amount: 5n },
        { account: allocation, amount: 5n },
        { account: limit, amount: 5n },
        { account: other, amount: 2n },
      ],
      [{ account: other, amount: 3n }],
    ])
  })

  it('have one entry for all items where all items are granted or none', () => {
    const decision = decided(granted(part('L', 5n, 'a')), granted(part('M', 3n)))
    expect(needsOf(decision, 'ALL_OR_NOTHING')).toEqual([decision.postings])
  })

  it('are empty where nothing is charged', () => {
    const decision = { ...decided(granted(part('L', 0n))), postings: [] }
    expect([needsOf(decision, 'BEST_EFFORT'), needsOf(decision, 'ALL_OR_NOTHING')]).toEqual([[], []])
  })
})

it('a part is paid by its line item, the action that allowed it and the limit of the requester', () => {
  const accountsOf = payingAccounts(decided())
  expect(accountsOf(part('L', 1n, 'b'))).toEqual([pool, foreign, limit])
  expect(accountsOf(part('L', 1n))).toEqual([pool, limit])
  expect(accountsOf(part('N', 1n))).toEqual([])
})

it.each<[string, readonly ItemOutcome[], boolean]>([
  [
    'an item that lacked tokens',
    [granted(), { outcome: 'REFUSED', reason: 'GRANT_EXHAUSTED', rejectionDetails: [] }],
    true,
  ],
  ['an item that the rules deny', [{ outcome: 'REFUSED', reason: 'DENIED_BY_RULE', rejectionDetails: [] }], false],
  ['granted items', [granted(), granted()], false],
  ['items that others made fail', [{ outcome: 'NOT_CHARGED' }], false],
  ['no items', [], false],
])('a decision with %s is short of tokens: %s', (_name, items, isIt) => {
  expect(isShort(decided(...items))).toBe(isIt)
})
