// The counters of accounts in memory: what may be charged, given back, returned and granted, to the last micro-token.
import { describe, expect, it } from 'vitest'
import { Balances, counterBytesMax } from '../../../src/agent/ledger/balances.ts'
import type { AccountState } from '../../../src/agent/ledger/journal.ts'
import { METERED_CHARGE_MAX, METERED_MAX } from '../../../src/core/accounts/grant.ts'
import { MICRO_MAX } from '../../../src/core/pricing/amount.ts'
import { accountState, grantedAccount } from '../harness.ts'

const [A, B, C] = ['line/i/a/0', 'line/i/b/0', 'line/i/c/0'] as const
const NO_LIMIT = { accounts: 100, bytes: 1_000_000 }

const posting = (amount: bigint, account: string = A) => [{ account, amount }]

function balances(...states: readonly Partial<AccountState>[]): Balances {
  return new Balances(states.map((state, index) => [[A, B, C][index] ?? '', accountState(state)] as const))
}

describe('a charge', () => {
  it.each<[string, Partial<AccountState>, bigint, boolean]>([
    ['of all that is left', { granted: 10n, used: 4n, refunded: 1n, returned: 2n }, 5n, true],
    ['of more than is left', { granted: 10n, used: 4n, refunded: 1n, returned: 2n }, 6n, false],
    ['of nothing', { granted: 10n }, 0n, false],
    ['of less than nothing', { granted: 10n }, -1n, false],
    ['up to the allowance', { granted: 10n, used: 12n, allowance: 5n }, 3n, true],
    ['beyond the allowance', { granted: 10n, used: 12n, allowance: 5n }, 4n, false],
    ['without limit', { unlimited: true, used: MICRO_MAX - 5n }, 5n, true],
    ['of more than a counter holds', { unlimited: true, used: MICRO_MAX - 5n }, 6n, false],
  ])('%s', (_name, state, amount, fits) => {
    const held = balances(state)
    const charge = (): boolean => held.charge(posting(amount))
    if (fits) charge()
    else expect(charge).toThrow('invariant')
    expect(held.get(A)?.used).toBe((state.used ?? 0n) + (fits ? amount : 0n))
  })

  it('that does not fit one account changes none', () => {
    const held = balances({ granted: 10n }, { granted: 5n })
    expect(() => held.charge([...posting(6n), ...posting(6n, B)])).toThrow('invariant')
    expect([held.get(A)?.used, held.get(B)?.used]).toEqual([0n, 0n])
  })

  it('on an unknown account needs permitted overspend, and the largest permission counts', () => {
    const held = balances()
    expect(() => held.charge(posting(1n))).toThrow('invariant')
    held.charge(posting(4n), new Map([[A, 5n]]))
    held.charge(posting(1n), new Map([[A, 3n]]))
    expect(() => held.charge(posting(1n), new Map([[A, 5n]]))).toThrow('invariant')
    expect(held.overspendOf(A)).toBe(5n)
    expect(held.availableOf(A)).toEqual({ left: 0n, shortage: 'GRANT' })
  })

  it('reports each account once when a quarter of its balance is left', () => {
    const held = balances({ granted: 100n })
    expect([74n, 1n, 1n].map((amount) => held.charge(posting(amount)))).toEqual([false, true, false])
    held.grant([grantedAccount(A, 176n)])
    expect([74n, 1n].map((amount) => held.charge(posting(amount)))).toEqual([false, true])
  })

  it('is reverted down to its refunds, and no further', () => {
    const held = balances({ granted: 10n, used: 6n, refunded: 4n })
    held.uncharge(posting(2n))
    expect(held.get(A)?.used).toBe(4n)
    expect(() => held.uncharge(posting(1n))).toThrow('invariant')
  })
})

describe('a refund', () => {
  it.each<[bigint, boolean]>([
    [3n, true],
    [4n, false],
    [0n, false],
    [-1n, false],
  ])('of %s of the 3 that were charged', (amount, fits) => {
    const held = balances({ granted: 10n, used: 5n, refunded: 2n })
    const refund = (): void => held.refund(posting(amount))
    if (!fits) {
      expect(refund).toThrow('invariant')
      return
    }
    refund()
    expect(held.availableOf(A).left).toBe(10n)
    held.unrefund(posting(amount + 2n))
    expect(held.get(A)?.refunded).toBe(0n)
    expect(() => held.unrefund(posting(1n))).toThrow('invariant')
  })
})

describe('the available balance', () => {
  it.each<[string, Partial<AccountState>, bigint, bigint, bigint]>([
    ['within the grant', { granted: 10n, used: 4n }, 0n, 6n, 0n],
    ['with a refund', { granted: 10n, used: 4n }, 2n, 8n, 0n],
    ['above the grant', { granted: 10n, used: 14n, allowance: 9n }, 0n, 0n, 4n],
    ['with a refund of less than is owed', { granted: 10n, used: 14n, allowance: 9n }, 3n, 0n, 1n],
    ['with a refund of what is owed', { granted: 10n, used: 14n, allowance: 9n }, 4n, 0n, 0n],
    ['with a refund of more than is owed', { granted: 10n, used: 14n, allowance: 9n }, 6n, 2n, 0n],
    ['of more than is counted', { granted: MICRO_MAX, used: MICRO_MAX - 5n, refunded: 9n }, 2n, 5n, 0n],
    ['without limit', { used: 14n, unlimited: true }, 6n, METERED_CHARGE_MAX, 0n],
    ['without limit, near the most that is counted', { used: METERED_MAX - 5n, unlimited: true }, 6n, 5n, 0n],
    ['without limit, of all that is counted', { used: METERED_MAX, unlimited: true }, 6n, 0n, 0n],
    ['without limit, of more than is counted', { used: MICRO_MAX, unlimited: true }, 6n, 0n, 0n],
  ])('%s', (_name, state, refund, left, overspend) => {
    const held = balances(state)
    expect([held.availableOf(A, refund).left, held.overspendOf(A, refund)]).toEqual([left, overspend])
  })

  it('of an unknown account is zero', () => {
    expect(balances().availableOf(A, 5n)).toEqual({ left: 0n, shortage: 'GRANT' })
    expect(balances().overspendOf(A)).toBe(0n)
    expect(() => balances().spendableOf(A)).toThrow('invariant')
  })

  it('is spendable up to the granted and refunded tokens', () => {
    expect(balances({ granted: 10n, used: 6n, refunded: 2n }).spendableOf(A)).toEqual({ used: 6n, usedMax: 12n })
    expect(balances({ used: 6n, unlimited: true }).spendableOf(A)).toEqual({
      used: 6n,
      usedMax: METERED_CHARGE_MAX + 6n,
    })
  })

  it('is never beyond the allowance in what was stored', () => {
    balances({ granted: 10n, used: 15n, allowance: 5n })
    balances({ granted: 10n, used: 15n, unlimited: true })
    expect(() => balances({ granted: 10n, used: 16n, allowance: 5n })).toThrow('invariant')
    expect(() => balances({ granted: 10n, used: 11n })).toThrow('invariant')
  })
})

describe('a grant', () => {
  it('only raises the granted counter', () => {
    const held = balances({ granted: 10n })
    held.grant([grantedAccount(A, 9n)])
    expect(held.get(A)?.granted).toBe(10n)
    held.grant([grantedAccount(A, 11n), grantedAccount(B, 5n)])
    expect([held.get(A)?.granted, held.get(B)?.granted]).toEqual([11n, 5n])
  })

  it('is accepted for an account that was unlimited only once it has a limit', () => {
    const held = balances({ granted: 10n, used: 25n, unlimited: true }, { granted: 10n, used: 13n, allowance: 3n })
    expect(() => held.grant([grantedAccount(A, 10n)])).toThrow('invariant')
    expect(held.limit([A, B, C])).toEqual([A])
    expect(held.limit([A])).toEqual([])
    held.grant([grantedAccount(A, 12n), grantedAccount(B, 10n)])
    expect(held.get(A)).toMatchObject({ granted: 12n, allowance: 15n, unlimited: false })
    expect(held.get(B)).toMatchObject({ granted: 10n, allowance: 3n })
    expect(held.availableOf(A).left).toBe(0n)
    held.grant([{ ...grantedAccount(A, 12n), unlimited: true }])
    held.charge(posting(5n))
    expect(held.get(A)).toMatchObject({ granted: 12n, used: 30n })
  })
})

describe('returned tokens', () => {
  it('is all that the counters leave, of unlimited accounts too', () => {
    const held = balances({ granted: 10n, used: 3n }, { granted: 5n, used: 5n }, { granted: 9n, unlimited: true })
    const returns = held.giveUp(NO_LIMIT)
    expect(returns).toEqual([...posting(7n), ...posting(9n, C)])
    expect([held.get(A)?.returned, held.availableOf(A).left]).toEqual([7n, 0n])
    held.takeBack(returns)
    expect(held.availableOf(A).left).toBe(7n)
    expect(() => held.takeBack(posting(1n))).toThrow('invariant')
  })

  it('are the tokens above the level that is named for each account', () => {
    const held = balances({ granted: 10n, used: 3n }, { granted: 5n }, { granted: 9n, unlimited: true })
    const keeps = new Map([
      ['line/i/unknown/0', 0n],
      [A, 4n],
      [B, 5n],
      [C, 0n],
    ])
    expect(held.giveUpAbove(keeps, NO_LIMIT)).toEqual([...posting(3n), ...posting(9n, C)])
    expect(held.availableOf(A).left).toBe(4n)
    // Being low is no news after that.
    expect(held.charge(posting(4n))).toBe(false)
  })

  it.each([
    ['so many accounts', { accounts: 2, bytes: 1_000_000 }, [A, B]],
    ['so many bytes', { accounts: 100, bytes: 2 * counterBytesMax(A) }, [A, B]],
    ['less than one takes', { accounts: 100, bytes: counterBytesMax(A) - 1 }, []],
  ])('is as much as fits: %s', (_name, most, accounts) => {
    const three = () => balances({ granted: 1n }, { granted: 1n }, { granted: 1n })
    expect(
      three()
        .giveUp(most)
        .map(({ account }) => account),
    ).toEqual(accounts)
    const keeps = new Map([A, B, C].map((account) => [account, 0n]))
    expect(
      three()
        .giveUpAbove(keeps, most)
        .map(({ account }) => account),
    ).toEqual(accounts)
  })
})

describe('overspend', () => {
  it('is settled when the grants cover it, and only then permits no further use', () => {
    const held = balances({ granted: 10n, used: 14n, allowance: 20n })
    held.grant([{ account: A, granted: 12n, exhausted: false, unlimited: false }])
    held.settle()
    expect(held.get(A)).toMatchObject({ granted: 12n, allowance: 20n })
    expect(held.overspendOf(A)).toBe(2n)
    held.charge(posting(18n))
    expect(() => held.charge(posting(1n))).toThrow(/invariant/)
    held.grant([{ account: A, granted: 32n, exhausted: false, unlimited: false }])
    held.settle()
    expect(held.get(A)).toMatchObject({ granted: 32n, allowance: 0n })
    expect(() => held.charge(posting(1n))).toThrow(/invariant/)
  })
})
