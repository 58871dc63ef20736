// Use above the grant: of essential line items, while the cloud is out of reach.
import { describe, expect, it } from 'vitest'
import { type AccountId, type Posting, actionAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { entry } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { A, DAY, TestLedger, essentialRules, notRecorded } from './test-ledger.ts'

const OTHER_INSTANCE = '9d9f0f5e-5d3a-4c53-9f43-0a2f8f1b7c11'
const NEXT_PERIOD = lineAccount(INSTANCE, 'line-1', 1)
const OTHER_LINE = lineAccount(INSTANCE, 'line-2', 0)
const ALLOCATION = actionAccount(INSTANCE, 'line-1', 'a')
const ELSEWHERE = lineAccount(OTHER_INSTANCE, 'line-1', 0)

class EssentialLedger extends TestLedger {
  readonly rules = essentialRules({ 'line-1': 50n, 'line-2': 50n }, 'line-3')

  async #chargeable(refund: ReadonlyMap<AccountId, bigint> = new Map()) {
    return this.ledger.chargeableAboveGrant(this.clock.reading(), (await this.rules).compiled.policy, refund)
  }

  async above(account: AccountId, refund = 0n) {
    return (await this.#chargeable(new Map([[account, refund]]))).of(account)
  }

  /** What charging this amount would use above the grant, and how far it may. */
  async overspend(account: AccountId, amount: bigint, refund = 0n) {
    const { above, allowances } = (await this.#chargeable(new Map([[account, refund]]))).overspendOf([
      { account, amount },
    ])
    return [above.get(account), allowances.get(account)]
  }

  /** Charges with the allowance of the rules. */
  async spend(account: AccountId, amount: bigint): Promise<void> {
    const { allowances } = (await this.#chargeable()).overspendOf([{ account, amount }])
    void this.record([{ account, amount }], { allowances })
  }
}

describe('an essential line item', () => {
  it('may exceed its grant up to the cap, which use above the grant reduces and a refund restores', async () => {
    const test = new EssentialLedger()
    test.grant({ [A]: 100n })
    expect(await test.above(A)).toEqual({ left: 100n, shortage: 'GRANT', overspend: 50n })
    await test.spend(A, 120n)
    expect(await test.above(A)).toMatchObject({ left: 0n, overspend: 30n })
    expect(await test.above(A, 5n)).toMatchObject({ left: 0n, overspend: 35n })
    expect(await test.above(A, 22n)).toMatchObject({ left: 2n, overspend: 50n })
    await test.spend(A, 30n)
    expect(await test.above(A)).toMatchObject({ left: 0n, overspend: 0n })
    await expect(test.spend(A, 1n)).rejects.toThrow('fits the available balance')
  })

  it('has one cap for all its periods, beside those of other line items and of its allocations', async () => {
    const test = new EssentialLedger()
    test.grant({ [A]: 10n, [NEXT_PERIOD]: 10n, [OTHER_LINE]: 10n, [ALLOCATION]: 10n })
    await test.spend(A, 30n)
    const above = async (account: AccountId) => (await test.above(account)).overspend
    expect(await above(A)).toBe(30n)
    expect(await above(NEXT_PERIOD)).toBe(30n)
    expect(await above(OTHER_LINE)).toBe(50n)
    expect(await above(ALLOCATION)).toBe(50n)
    await test.spend(ALLOCATION, 15n)
    expect(await above(ALLOCATION)).toBe(45n)
    expect(await above(A)).toBe(30n)
    await test.spend(NEXT_PERIOD, 40n)
    expect([await above(A), await above(NEXT_PERIOD)]).toEqual([0n, 0n])
  })

  it('spends its expired balance before its cap', async () => {
    const test = new EssentialLedger()
    test.grant({ [A]: 100n })
    await test.spend(A, 30n)
    test.time.advance(2 * DAY)
    expect(await test.above(A)).toEqual({ left: 0n, shortage: 'GRANT_EXPIRED', overspend: 120n })
    expect(await test.above(A, 10n)).toMatchObject({ left: 0n, overspend: 130n })
  })

  it('is one of the policy in question, of no other instance', async () => {
    const test = new EssentialLedger()
    const third = lineAccount(INSTANCE, 'line-3', 0)
    test.grant({ [third]: 10n, [ELSEWHERE]: 10n })
    expect(await test.above(third)).toEqual({ left: 10n, shortage: 'GRANT' })
    expect(await test.above(ELSEWHERE)).toEqual({ left: 10n, shortage: 'GRANT' })
    expect(await test.overspend(third, 11n)).toEqual([1n, undefined])
    expect(await test.overspend(ELSEWHERE, 11n)).toEqual([1n, undefined])
  })
})

it('an expired grant is the reason for a refusal unless the cloud reported an empty pool', () => {
  const next = lineAccount(INSTANCE, 'line-1', 2)
  const test = new TestLedger()
  expect(test.ledger.hasExpired(test.clock.reading())).toBe(false)
  test.grant({ [A]: 0n, [next]: 10n }, 1, { exhausted: true })
  test.grant({ [OTHER_LINE]: 0n }, 2)
  test.time.advance(2 * DAY)
  const availableOf = test.ledger.availableAt(test.clock.reading())
  expect(availableOf(A)).toEqual({ left: 0n, shortage: 'POOL' })
  expect(availableOf(next)).toEqual({ left: 0n, shortage: 'GRANT_EXPIRED' })
  expect(availableOf(OTHER_LINE)).toEqual({ left: 0n, shortage: 'GRANT_EXPIRED' })
})

it('the part of a charge above the grant excludes the balance and refunded tokens', async () => {
  const test = new EssentialLedger()
  test.grant({ [A]: 100n })
  const above = (amount: bigint, refund = 0n) => test.overspend(A, amount, refund)
  expect(await above(100n)).toEqual([undefined, undefined])
  expect(await above(130n)).toEqual([30n, 50n])
  expect(await above(130n, 20n)).toEqual([10n, 50n])
  expect(await above(130n, 30n)).toEqual([undefined, undefined])
})

it('use above the grants is overspend until the cloud has granted it', async () => {
  const test = new EssentialLedger()
  test.grant({ [A]: 100n })
  await test.spend(A, 1n)
  const fresh = new TestLedger()
  fresh.grant({ [A]: 100n })
  void fresh.charge({ account: A, amount: 1n })
  expect(fresh.ledger.hasOverspend()).toBe(false)
  await test.spend(A, 120n)
  expect(test.ledger.hasOverspend()).toBe(true)
  test.ledger.settleAboveGrant()
  expect(test.ledger.hasOverspend()).toBe(true)
  test.grant({ [A]: 121n }, 2)
  test.ledger.settleAboveGrant()
  expect(test.ledger.hasOverspend()).toBe(false)
})

describe('entries recorded together', () => {
  const together = (test: TestLedger, ...postings: readonly Posting[]) =>
    postings.map((posting, index) => entry(test.ledger.lastEntry() + 1 + index, [posting]))

  it('may exceed the grant by the widest allowance among them', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 10n })
    const entries = together(test, { account: A, amount: 15n }, { account: A, amount: 15n }).map((each, index) => {
      return { ...each, allowances: new Map([[A, index === 0 ? 20n : 5n]]) }
    })
    void test.ledger.recordTogether(entries)
    expect(test.ledger.lastEntry()).toBe(2)
    const more = { ...together(test, { account: A, amount: 1n })[0]!, allowances: new Map([[A, 20n]]) }
    await expect(test.ledger.recordTogether([more])).rejects.toThrow('fits the available balance')
  })

  it('ask for a sync when a balance becomes low, or when enough entries wait for delivery', () => {
    const test = new TestLedger({}, 5)
    test.grant({ [A]: 100n })
    const charge = (...amounts: readonly bigint[]) =>
      void test.ledger.recordTogether(together(test, ...amounts.map((amount) => ({ account: A, amount }))))
    charge(1n, 1n, 1n)
    expect(test.needs).toEqual([])
    charge(1n, 1n, 1n)
    expect(test.needs).toEqual([6])
    charge(1n, 1n, 1n)
    expect(test.needs).toEqual([6])
    charge(70n)
    expect(test.needs).toEqual([6, 10])
    charge(1n)
    expect(test.needs).toEqual([6, 10])
    test.grant({ [A]: 1_000n }, 2)
    charge(800n, 1n)
    expect(test.needs).toEqual([6, 10, 13])
  })

  it('are refused outside an epoch, and with gaps in their numbers', async () => {
    const test = new TestLedger({ fenced: true })
    const rejected = test.ledger.recordTogether([entry(1, [])])
    await expect(rejected).rejects.toMatchObject({ code: 'NOT_ATTACHED' })
    expect(test.ledger.lastEntry()).toBe(0)
    const gap = new TestLedger().ledger.recordTogether([entry(1, []), entry(3, [])])
    await expect(gap).rejects.toThrow('invariant: entries are numbered without gaps')
    expect(() => new TestLedger().ledger.record(entry(2, []))).toThrow('invariant: entries are numbered without gaps')
  })
})

it('only charges that the journal has are reported as charged', async () => {
  const test = new TestLedger()
  test.grant({ [A]: 100n })
  void test.charge({ account: A, amount: 7n })
  test.tick()
  expect(test.charged).toEqual([])
  await test.endBatch()
  void test.record([{ account: A, amount: 2n }], { moves: 'refunded' })
  test.tick()
  await test.endBatch()
  void test.charge({ account: A, amount: 9n })
  test.tick()
  await test.endBatch(notRecorded())
  expect(test.charged).toEqual([{ account: A, amount: 7n }])
})
