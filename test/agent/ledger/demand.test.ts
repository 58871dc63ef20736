// What a device asks for and gives back: its expected use, what it held at its start, and what others recall.
import { describe, expect, it } from 'vitest'
import { type AccountId, lineAccount, limitAccount } from '../../../src/core/accounts/account.ts'
import { SEGMENT_ACCOUNTS_MAX } from '../../../src/protocol/edge/sync.ts'
import { accountState, policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { policyWith } from '../sync/policies.ts'
import { A, DAY, TestLedger, unlimitedRules } from './test-ledger.ts'

const HOUR = 3_600_000
const ELSEWHERE = lineAccount('9d9f0f5e-5d3a-4c53-9f43-0a2f8f1b7c11', 'line-1', 0)
const NONE: ReadonlyMap<AccountId, bigint> = new Map()

async function withRules(...how: ConstructorParameters<typeof TestLedger>): Promise<TestLedger> {
  const test = new TestLedger(...how)
  test.activePolicies.put(await policyInForce(1))
  learn(test)
  return test
}

function learn(test: TestLedger): void {
  const sinceBoot = test.time.sinceBoot()
  test.clock.learn({ time: test.time.truth(), sentAt: sinceBoot, receivedAt: sinceBoot })
}

describe('recalled tokens', () => {
  it('are returned but for the expected use, at most the amount that the cloud leaves, and waiting requests', async () => {
    const test = await withRules()
    test.grant({ [A]: 10_000n, [ELSEWHERE]: 500n })
    void test.charge({ account: A, amount: 10n })
    test.time.advance(HOUR)
    // 10 in the first hour are 240 in a day.
    const recall = (keep: bigint, needed = NONE) => [
      test.ledger.demand.hasSpare(new Map([[A, keep]]), needed),
      test.ledger.giveUpSpare(new Map([[A, keep]]), needed),
    ]
    expect(recall(9_990n)).toEqual([true, [{ account: A, amount: 9_750n }]])
    expect(recall(9_990n)).toEqual([false, []])
    expect(recall(100n, new Map([[A, 141n]]))).toEqual([false, []])
    expect(recall(100n, new Map([[A, 139n]]))).toEqual([true, [{ account: A, amount: 1n }]])
    expect(recall(100n)).toEqual([true, [{ account: A, amount: 139n }]])
    expect(test.left(A)).toBe(100n)
  })

  it('of accounts that the device neither has nor uses are returned whole, or not at all', async () => {
    const test = await withRules()
    test.grant({ [ELSEWHERE]: 500n })
    const unknown = lineAccount(INSTANCE, 'line-9', 0)
    const recalled = new Map([
      [unknown, 0n],
      [ELSEWHERE, 100n],
    ])
    expect(test.ledger.demand.hasSpare(new Map([[unknown, 0n]]), NONE)).toBe(false)
    expect(test.ledger.demand.hasSpare(recalled, NONE)).toBe(true)
    expect(test.ledger.giveUpSpare(recalled, NONE)).toEqual([{ account: ELSEWHERE, amount: 500n }])
  })
})

describe('surplus', () => {
  it('of unlimited accounts and of instances without rules stays', async () => {
    const test = await withRules()
    test.activePolicies.put(await unlimitedRules(2))
    test.grant({ [A]: 10_000n }, 1, { unlimited: true })
    test.grant({ [ELSEWHERE]: 10_000n }, 2)
    expect(test.ledger.giveUpSpare(NONE, NONE)).toEqual([])
  })

  it('above a recalled amount is not counted twice', async () => {
    const test = await withRules()
    test.grant({ [A]: 10_000n })
    expect(test.ledger.giveUpSpare(new Map([[A, 0n]]), NONE)).toEqual([{ account: A, amount: 10_000n }])
  })

  it('at the start of the process stays for the time of a grant', async () => {
    const test = await withRules({ epoch: 1, accounts: new Map([[A, accountState({ granted: 5_000n })]]) })
    expect(test.ledger.giveUpSpare(NONE, NONE)).toEqual([])
    test.time.advance(DAY - 1)
    learn(test)
    expect(test.ledger.giveUpSpare(NONE, NONE)).toEqual([])
    test.time.advance(1)
    expect(test.ledger.giveUpSpare(NONE, NONE)).toEqual([{ account: A, amount: 4_900n }])
  })

  it('of a new epoch does not count the balance at its start', async () => {
    const test = await withRules({ epoch: 1, accounts: new Map([[A, accountState({ granted: 5_000n })]]) })
    await test.ledger.freeze()
    test.ledger.begin('device-1', 2)
    expect(test.ledger.epoch()).toBe(2)
    test.grant({ [A]: 5_000n })
    expect(test.ledger.giveUpSpare(NONE, NONE)).toEqual([{ account: A, amount: 4_900n }])
  })
})

describe('the supply', () => {
  it('shows the remaining tokens of each line item that can be charged now, and how long they last', async () => {
    const test = await withRules()
    const [initial] = test.ledger.demand.supplies()
    expect(initial).toMatchObject({ account: A, left: 0n, lastsMs: null, exhausted: false })
    test.grant({ [A]: 10_000n, [ELSEWHERE]: 500n }, 1, { exhausted: true })
    void test.charge({ account: A, amount: 1_000n })
    test.time.advance(2 * HOUR)
    expect(test.ledger.demand.supplies()).toMatchObject([
      { account: A, left: 9_000n, lastsMs: 18 * HOUR, exhausted: true },
    ])
    expect(initial?.quantity).toBeGreaterThan(0n)
  })

  it('does not list unlimited accounts', async () => {
    const test = await withRules()
    test.grant({ [A]: 10n }, 1, { unlimited: true })
    expect(test.ledger.demand.supplies()).toEqual([])
  })
})

describe('a top-up', () => {
  it('is requested below half of the target, not at half', async () => {
    const test = await withRules()
    test.grant({ [A]: 50n })
    expect(test.ledger.demand.topUpRequests()).toEqual([])
    test.grant({ [A]: 49n }, 2)
    const less = await withRules()
    less.grant({ [A]: 49n })
    expect(less.ledger.demand.topUpRequests()).toEqual([{ account: A, wanted: 100n }])
  })

  it('is requested for as many accounts as fit a segment, and for others the next time', async () => {
    const test = new TestLedger()
    const periods = Array.from({ length: SEGMENT_ACCOUNTS_MAX + 1 }, (_, index) => ({ index, from: null, until: null }))
    const rules = await policyInForce(1)
    const policy = { ...rules.compiled.policy, lineItems: [{ ...rules.compiled.policy.lineItems[0]!, periods }] }
    test.activePolicies.put({ ...rules, compiled: { ...rules.compiled, policy } })
    const first = test.ledger.demand.topUpRequests()
    expect(first).toHaveLength(SEGMENT_ACCOUNTS_MAX)
    test.time.advance(1)
    const all = new Set([...first, ...test.ledger.demand.topUpRequests()].map(({ account }) => account))
    expect(all.size).toBe(SEGMENT_ACCOUNTS_MAX + 1)
  })

  it('follows all charges of the last day', async () => {
    const test = await withRules()
    test.grant({ [A]: 1_000n })
    for (let n = 0; n < 3; n += 1) void test.charge({ account: A, amount: 300n })
    test.time.advance(HOUR)
    expect(test.ledger.demand.topUpRequests()).toEqual([{ account: A, wanted: 21_600n }])
  })

  it('is requested for a consumption limit only under rules that still have it', async () => {
    const ada = { type: 'user', value: 'ada' }
    const accounts = [
      limitAccount(INSTANCE, 'line-1', ada, 0),
      limitAccount(INSTANCE, 'line-2', ada, 0),
      limitAccount(INSTANCE, 'line-3', ada, 0),
      limitAccount('9d9f0f5e-5d3a-4c53-9f43-0a2f8f1b7c11', 'line-1', ada, 0),
    ]
    const [item] = policyWith(1).lineItems
    const consumptionLimit = { limit: '50', periods: [{ index: 0, from: null, until: null }] }
    const test = new TestLedger()
    test.activePolicies.put(
      await policyInForce(1, {
        lineItems: [
          { ...item!, id: 'line-2' },
          { ...item!, consumptionLimit },
        ],
      }),
    )
    test.grant(Object.fromEntries(accounts.map((account) => [account, 10n])))
    void test.charge(...accounts.map((account) => ({ account, amount: 9n })))
    const requested = test.ledger.demand.topUpRequests().map(({ account }) => account)
    expect(requested.filter((account) => accounts.includes(account))).toEqual([accounts[0]])
  })
})

it('pools that the cloud reported empty are listed while they can be charged', async () => {
  const test = await withRules()
  const past = lineAccount(INSTANCE, 'line-1', 9)
  expect(test.ledger.demand.exhaustedAccounts()).toEqual([])
  test.grant({ [A]: 5n, [past]: 5n }, 1, { exhausted: true })
  expect(test.ledger.demand.exhaustedAccounts()).toEqual([A])
  test.grant({ [A]: 5n }, 2)
  expect(test.ledger.demand.exhaustedAccounts()).toEqual([])
})

describe('rules that limit an account', () => {
  it('limit only the pools of their own instance that they do not leave unlimited', async () => {
    const test = new TestLedger()
    const other = lineAccount(INSTANCE, 'line-2', 0)
    const ofRequester = limitAccount(INSTANCE, 'line-1', { type: 'user', value: 'ada' }, 0)
    test.activePolicies.put(await unlimitedRules(1))
    test.grant({ [A]: 5n, [other]: 5n, [ELSEWHERE]: 5n, [ofRequester]: 5n }, 1, { unlimited: true })
    const rules = await unlimitedRules(2)
    await test.ledger.prepareRules(rules.compiled.policy)
    expect(test.journal.limited).toEqual([other, ofRequester])
    const { accounts } = await test.prepare({ [A]: 5n, [ELSEWHERE]: 5n }, 2, { unlimited: true })
    expect(accounts.map(({ unlimited }) => unlimited)).toEqual([true, false])
    expect(test.journal.limited).toEqual([other, ofRequester, ELSEWHERE])
  })

  it('limit each account once', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await unlimitedRules(1))
    test.grant({ [A]: 5n }, 1, { unlimited: true })
    const rules = await policyInForce(2)
    await test.ledger.prepareRules(rules.compiled.policy)
    await test.ledger.prepareRules(rules.compiled.policy)
    expect([test.journal.limited, test.needs]).toEqual([[A], [0]])
  })
})
