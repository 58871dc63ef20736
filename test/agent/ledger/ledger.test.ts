import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import type { PendingEntry, Snapshot } from '../../../src/agent/ledger/journal.ts'
import { type Posting, lineAccount, limitAccount } from '../../../src/core/accounts/account.ts'
import { METERED_CHARGE_MAX } from '../../../src/core/accounts/grant.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { accountState, entry, grantedAccount, policyInForce } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { policyWith } from '../sync/policies.ts'
import { A, DAY, TestLedger, notRecorded, unlimitedRules } from './test-ledger.ts'

const B = 'action/i/l/b'

const state = (test: TestLedger) => new Map(test.ledger.accounts()).get(A)

describe('the ledger', () => {
  it('counts a charge at once, and responds after it is durable', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 100n })
    let heard = false
    void test.charge({ account: A, amount: 30n }).then(() => (heard = true))
    expect(test.left(A)).toBe(70n)
    test.tick()
    await new Promise((resolve) => setImmediate(resolve))
    expect(heard).toBe(false)
    await test.endBatch()
    expect(heard).toBe(true)
  })

  it('gathers entries that arrive during a commit into the next one', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 100n })
    for (let n = 0; n < 3; n += 1) void test.charge({ account: A, amount: 1n })
    test.tick()
    for (let n = 0; n < 5; n += 1) void test.charge({ account: A, amount: 1n })
    test.tick()
    expect(test.journal.batches.map(({ entries }) => entries.length)).toEqual([3])
    await test.endBatch()
    test.tick()
    expect(test.journal.batches.map(({ entries }) => entries.map(({ n }) => n))).toEqual([[4, 5, 6, 7, 8]])
  })

  it('waits for the next requests of answered callers before a commit, if a commit takes long', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 100n })
    const arrive = (count: number): void => {
      for (let n = 0; n < count; n += 1) void test.charge({ account: A, amount: 1n })
      test.tick()
    }
    const endSlowBatch = async (): Promise<void> => {
      test.time.advance(10)
      await test.endBatch()
    }
    const underWay = (): number[] => test.journal.batches.map(({ entries }) => entries.length)
    arrive(3)
    arrive(1)
    await endSlowBatch()
    // One has come, three were just answered: they make the next commit together ...
    expect(underWay()).toEqual([])
    arrive(1)
    expect(underWay()).toEqual([])
    arrive(1)
    expect(underWay()).toEqual([3])
    arrive(1)
    await endSlowBatch()
    // ... and are not waited for longer than half the time of a commit when they do not come.
    test.time.advance(4)
    expect(underWay()).toEqual([])
    test.time.advance(1)
    expect(underWay()).toEqual([1])
    await endSlowBatch()
    test.time.advance(5)
    arrive(1)
    expect(underWay()).toEqual([1])
  })

  it('does not wait for more entries without a turn that brings some if commits are quick, or for a single caller', async () => {
    const quick = new TestLedger()
    quick.grant({ [A]: 100n })
    for (let n = 0; n < 3; n += 1) void quick.charge({ account: A, amount: 1n })
    quick.tick()
    void quick.charge({ account: A, amount: 1n })
    quick.time.advance(3)
    await quick.endBatch()
    quick.tick()
    expect(quick.journal.batches.length).toBe(1)

    const alone = new TestLedger()
    alone.grant({ [A]: 100n })
    for (let n = 0; n < 3; n += 1) {
      void alone.charge({ account: A, amount: 1n })
      alone.tick()
      expect(alone.journal.batches.length).toBe(1)
      alone.time.advance(10)
      await alone.endBatch()
    }
  })

  it('reverts exactly the unrecorded charges and the decisions based on them, and continues', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 100n, [B]: 50n })
    const durable = test.charge({ account: A, amount: 10n })
    test.tick()
    await test.endBatch()
    await durable
    const lost = [test.charge({ account: A, amount: 20n }, { account: B, amount: 20n })]
    test.tick()
    lost.push(test.charge({ account: A, amount: 5n }), test.charge())
    await test.endBatch(notRecorded())
    for (const one of lost) await expect(one).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect([test.left(A), test.left(B), test.ledger.lastEntry()]).toEqual([90n, 50n, 1])
    expect(test.fatal).toEqual([])

    const next = test.charge({ account: A, amount: 90n })
    test.tick()
    await test.endBatch()
    await next
    expect(test.left(A)).toBe(0n)
  })

  it('stops permanently when the outcome of a commit is unknown', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 100n })
    const lost = test.charge({ account: A, amount: 1n })
    test.tick()
    const behind = test.charge({ account: A, amount: 1n })
    const failure = new CodedError('DISK_FAILED', 'a flush failed')
    await test.endBatch(failure)
    await expect(lost).rejects.toBe(failure)
    await expect(behind).rejects.toBe(failure)
    expect(test.fatal).toEqual([failure])
    expect(test.ledger.status()).toBe('BROKEN')
    await expect(test.charge()).rejects.toMatchObject({ code: 'NOT_ATTACHED' })
  })

  it('refuses a charge that does not fit, and changes nothing', () => {
    const test = new TestLedger()
    test.grant({ [A]: 100n, [B]: 5n })
    expect(() => test.charge({ account: A, amount: 6n }, { account: B, amount: 6n })).toThrow(
      'fits the available balance',
    )
    expect(() => test.charge({ account: 'line/i/unknown/0', amount: 1n })).toThrow('is known')
    expect([test.left(A), test.left(B), test.ledger.lastEntry()]).toEqual([100n, 5n, 0])
  })

  it('makes refunded tokens available only when the refund is durable', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 10n })
    void test.charge({ account: A, amount: 10n })
    test.tick()
    await test.endBatch()
    void test.ledger.record(entry(2, [{ account: A, amount: 4n }], { moves: 'refunded' }))
    test.tick()
    expect(test.left(A)).toBe(0n)
    await test.endBatch()
    expect(test.left(A)).toBe(4n)
  })

  it('reports whether the pool, the grant or the time of the grant ran out', () => {
    const test = new TestLedger()
    test.grant({ [A]: 10n })
    test.grant({ [B]: 0n }, 2, { exhausted: true })
    const available = () => test.ledger.availableAt(test.clock.reading())
    expect(available()(A)).toEqual({ left: 10n, shortage: 'GRANT' })
    expect(available()(B)).toEqual({ left: 0n, shortage: 'POOL' })
    expect(available()('line/i/never-heard-of/0')).toEqual({ left: 0n, shortage: 'GRANT' })
    test.time.advance(DAY + 1)
    expect(available()(A)).toEqual({ left: 0n, shortage: 'GRANT_EXPIRED' })
    expect(available()(B)).toEqual({ left: 0n, shortage: 'POOL' })
  })

  it('meters an account without limit, and never refuses it for want of a grant', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 0n }, 1, { unlimited: true })
    void test.charge({ account: A, amount: 10n ** 15n })
    expect(test.left(A)).toBe(METERED_CHARGE_MAX)
    expect(new Map(test.ledger.accounts()).get(A)).toMatchObject({ used: 10n ** 15n, unlimited: true })
  })

  it('has no balance on an account that gets a limit, until its use and more is granted', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await unlimitedRules(1))
    test.grant({ [A]: 100n }, 1, { unlimited: true })
    void test.charge({ account: A, amount: 500n })
    const limiting = test.prepare({ [A]: 200n }, 2)
    // In memory at once; the grant waits until the journal has all that was decided before.
    expect(test.left(A)).toBe(0n)
    test.tick()
    expect(test.journal.limited).toEqual([])
    await test.endBatch()
    await limiting
    expect(test.journal.limited).toEqual([A])
    test.grant({ [A]: 200n }, 2)
    expect(test.left(A)).toBe(0n)
    expect(state(test)).toMatchObject({ granted: 200n, used: 500n, unlimited: false, allowance: 400n })
    test.grant({ [A]: 510n }, 3)
    test.ledger.settleAboveGrant()
    expect(test.left(A)).toBe(10n)
    expect(state(test)).toMatchObject({ granted: 510n, allowance: 0n })
  })

  it('obeys a limit in newer rules whatever it was granted, and requests the tokens that it needs from then on', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await unlimitedRules(1))
    test.grant({ [A]: 100n }, 1, { unlimited: true })
    expect(test.ledger.demand.topUpRequests()).toEqual([])
    const rules = await policyInForce(2)
    await test.ledger.prepareRules(rules.compiled.policy)
    test.activePolicies.put(rules)
    expect([test.left(A), test.journal.limited, test.needs]).toEqual([100n, [A], [0]])
    void test.charge({ account: A, amount: 80n })
    expect(test.ledger.demand.topUpRequests()).toMatchObject([{ account: A }])
    expect(() => test.charge({ account: A, amount: 21n })).toThrow('fits the available balance')
  })

  it('stays limited after a grant if the rules in force have a limit, and asks again when they have none', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await policyInForce(1))
    const { accounts } = await test.prepare({ [A]: 1_000n }, 1, { unlimited: true })
    expect(accounts).toMatchObject([{ account: A, unlimited: false }])
    test.grant({ [A]: 1_000n }, 1)
    expect(test.ledger.demand.topUpRequests()).toEqual([])
    test.activePolicies.put(await unlimitedRules(2))
    expect(test.ledger.demand.topUpRequests()).toMatchObject([{ account: A }])
  })

  it('continues limited when the disk is full on the way to the limit, and takes the limit up with the next grant', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await unlimitedRules(1))
    test.grant({ [A]: 100n }, 1, { unlimited: true })
    test.journal.refusesLimits = true
    await expect(test.prepare({ [A]: 100n }, 2)).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect(state(test)).toMatchObject({ unlimited: false })
    test.journal.refusesLimits = false
    await test.prepare({ [A]: 100n }, 2)
    expect(test.journal.limited).toEqual([A])
  })

  it('says from which entry on all was decided by the newest grant, also when entries before it are lost', async () => {
    const test = new TestLedger()
    expect(test.ledger.receivedGrant()).toBeNull()
    test.grant({ [A]: 100n }, 1)
    expect(test.ledger.receivedGrant()).toEqual({ term: 1, lastEntry: 0 })
    void test.charge({ account: A, amount: 1n })
    void test.charge({ account: A, amount: 1n })
    test.tick()
    test.grant({ [A]: 100n }, 2)
    expect(test.ledger.receivedGrant()).toEqual({ term: 2, lastEntry: 2 })
    await test.endBatch(notRecorded())
    expect(test.ledger.receivedGrant()).toEqual({ term: 2, lastEntry: 0 })
  })
})

describe('a grant', () => {
  it('of an earlier term changes nothing', () => {
    const test = new TestLedger()
    test.grant({ [A]: 10n }, 2)
    test.grant({ [A]: 99n }, 1)
    test.grant({ [A]: 99n }, 2)
    expect(test.left(A)).toBe(10n)
    test.grant({ [A]: 12n }, 3)
    expect(test.left(A)).toBe(12n)
  })

  it('ends by the time that the device was on, whatever the clock shows, over restarts and reboots', () => {
    const aged = (test: TestLedger): Partial<Snapshot> => ({
      accounts: new Map(test.ledger.accounts()),
      grant: { ...test.ledger.grant()!, agedMs: test.ledger.stamp().grantAgedMs },
      clock: test.ledger.stamp().clock,
    })
    const first = new TestLedger()
    first.ledger.applyGrant({
      term: 1,
      lifetimeMs: 10_000_000,
      expiresAt: first.time.truth() + 1_000 * DAY,
      agedMs: 0,
      accounts: [grantedAccount(A, 10n)],
    })
    first.time.advance(4_000_000)
    expect(first.left(A)).toBe(10n)

    // Another process in the same boot, which began a while later: the time in between counts.
    const snapshot = aged(first)
    const second = new TestLedger({ ...snapshot, clock: { ...snapshot.clock!, sinceBoot: 5_000 } })
    expect(second.ledger.grant()).toMatchObject({ agedMs: 4_000_000 + 5_000 })

    // Another boot: what the device was on since then counts, and the time that it was off does not.
    const third = new TestLedger({ ...snapshot, clock: { ...snapshot.clock!, bootId: 'an earlier boot' } })
    expect(third.ledger.grant()).toMatchObject({ agedMs: 4_000_000 + 10_000 })
    third.time.advance(5_900_000)
    expect(third.left(A)).toBe(10n)
    third.time.advance(100_000)
    expect(third.ledger.availableAt(third.clock.reading())(A)).toEqual({ left: 0n, shortage: 'GRANT_EXPIRED' })
  })

  it('ends by the later end of the clock, and by the earlier one where there is no later', () => {
    const test = new TestLedger()
    test.clock.learn({ time: test.time.truth(), sentAt: test.time.sinceBoot(), receivedAt: test.time.sinceBoot() })
    test.ledger.applyGrant({
      term: 1,
      lifetimeMs: 1_000 * DAY,
      expiresAt: test.time.truth() + DAY,
      agedMs: 0,
      accounts: [grantedAccount(A, 10n)],
    })
    // The interval is 200 ppm wide by then: its later end is beyond the expiry before the true time is.
    test.time.advance(DAY - 1_000)
    expect(test.left(A)).toBe(0n)
    const rebooted = new TestLedger({
      accounts: new Map([[A, accountState({ granted: 10n })]]),
      grant: { term: 1, lifetimeMs: DAY, expiresAt: 1, agedMs: 0 },
      clock: { bootId: 'an earlier boot', sinceBoot: 0, earliest: 5, latest: 6 },
    })
    expect(rebooted.left(A)).toBe(0n)
    expect(rebooted.ledger.grantStatus(rebooted.clock.reading())).toEqual({ term: 1, expiresAt: 1, remainingMs: 0 })
  })

  it('remains until it expires by the clock or by powered-on time, whichever is first', () => {
    const remainingMs = (lifetimeMs: number, expiresInMs: number): number | undefined => {
      const test = new TestLedger()
      const reading = test.clock.reading()
      test.ledger.applyGrant({
        term: 1,
        lifetimeMs,
        expiresAt: reading.earliest + expiresInMs,
        agedMs: 0,
        accounts: [grantedAccount(A, 10n)],
      })
      return test.ledger.grantStatus(reading)?.remainingMs
    }
    expect([remainingMs(7 * DAY, DAY), remainingMs(DAY, 7 * DAY), remainingMs(DAY, -DAY)]).toEqual([DAY, DAY, 0])
  })
})

describe('the top-up requests of the ledger', () => {
  it('is a starting grant of every account that may soon be charged', async () => {
    const test = new TestLedger()
    const { lineItems } = policyWith(1)
    const at = test.time.truth()
    test.activePolicies.put(
      await policyInForce(1, {
        lineItems: [
          {
            ...lineItems[0]!,
            periods: [
              { index: 3, from: null, until: at + 1_000 },
              { index: 4, from: at + 1_000, until: at + 3 * DAY },
              { index: 5, from: at + 3 * DAY, until: null },
            ],
            consumptionLimit: { limit: '50', periods: [{ index: 7, from: null, until: null }] },
          },
          { ...lineItems[0]!, id: 'ended', endsAt: at - 1 },
          { ...lineItems[0]!, id: 'inactive', state: 'INACTIVE' },
        ],
      }),
    )
    const wanted = () => test.ledger.demand.topUpRequests().map(({ account, wanted }) => [account, wanted])
    const line = (period: number) => lineAccount(INSTANCE, 'line-1', period)
    expect(wanted()).toEqual([
      [line(3), 100n],
      [line(4), 100n],
    ])
    // The limit of a requester comes into sight when it is charged, and goes with its period, or after a day.
    const requester = { type: 'user', value: 'ada' }
    const limit = limitAccount(INSTANCE, 'line-1', requester, 7)
    const past = limitAccount(INSTANCE, 'line-1', requester, 6)
    test.grant({ [line(3)]: 60n, [limit]: 10n, [past]: 10n })
    expect(wanted()).toEqual([[line(4), 100n]])
    void test.charge({ account: limit, amount: 1n }, { account: past, amount: 1n })
    expect(wanted()).toEqual([
      [line(4), 100n],
      [limit, 100n],
    ])
    test.time.advance(2 * DAY)
    expect(wanted()).not.toContainEqual([limit, 100n])
  })

  it('follow the burn rate, and leave out unlimited accounts', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await policyInForce(1))
    test.grant({ [A]: 1_000n })
    void test.charge({ account: A, amount: 900n })
    test.time.advance(3_600_000)
    expect(test.ledger.demand.topUpRequests()).toEqual([{ account: A, wanted: 21_600n }])
    test.grant({ [A]: 1_000n }, 2, { unlimited: true })
    expect(test.ledger.demand.topUpRequests()).toEqual([])
  })

  it('is notified once when an account falls to a quarter of its balance, and once for so many entries', async () => {
    const test = new TestLedger({}, 5)
    test.grant({ [A]: 100n })
    for (let n = 1; n <= 3; n += 1) void test.charge({ account: A, amount: 25n })
    expect(test.needs).toEqual([3])
    void test.charge({ account: A, amount: 10n })
    expect(test.needs).toEqual([3])
    void test.charge({ account: A, amount: 10n })
    expect(test.needs).toEqual([3, 5])
    test.grant({ [A]: 200n }, 2)
    void test.charge({ account: A, amount: 80n })
    expect(test.needs).toEqual([3, 5, 6])
  })
})

describe('the end of an epoch', () => {
  it('stops recording at once, and waits for commits in progress', async () => {
    const test = new TestLedger()
    test.grant({ [A]: 10n })
    void test.charge({ account: A, amount: 1n })
    test.tick()
    let isFrozen = false
    const frozen = test.ledger.freeze().then(() => (isFrozen = true))
    await expect(test.charge({ account: A, amount: 1n })).rejects.toMatchObject({ code: 'NOT_ATTACHED' })
    await new Promise((resolve) => setImmediate(resolve))
    expect(isFrozen).toBe(false)
    await test.endBatch()
    await frozen
    expect(() => test.ledger.begin('device-1', 1)).toThrow('epochs rise')
    test.ledger.begin('device-1', 2)
    expect([test.left(A), test.ledger.lastEntry(), test.ledger.status()]).toEqual([0n, 0, 'ATTACHED'])
  })

  it('begins frozen where the journal says so, and not attached where it never was', () => {
    expect(new TestLedger({ fenced: true }).ledger.status()).toBe('FROZEN')
    expect(new TestLedger({ epoch: 0 }).ledger.status()).toBe('NOT_ATTACHED')
  })
})

describe('any sequence of events', () => {
  type Step =
    | { do: 'charge'; account: string; amount: bigint }
    | { do: 'refund'; account: string; amount: bigint }
    | { do: 'grant'; account: string; amount: bigint }
    | { do: 'tick' | 'commit' | 'fail' | 'giveUp' | 'takeBack' }
  const account = fc.constantFrom(A, B)
  const amount = fc.bigInt({ min: 1n, max: 60n })
  const step: fc.Arbitrary<Step> = fc.oneof(
    { weight: 6, arbitrary: fc.record({ do: fc.constant('charge' as const), account, amount }) },
    { weight: 2, arbitrary: fc.record({ do: fc.constant('refund' as const), account, amount }) },
    { weight: 2, arbitrary: fc.record({ do: fc.constant('grant' as const), account, amount }) },
    {
      weight: 8,
      arbitrary: fc.record({ do: fc.constantFrom('tick' as const, 'commit', 'commit', 'fail', 'giveUp', 'takeBack') }),
    },
  )

  it('keeps balances from becoming negative, and counts exactly the durable and pending entries', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 80, size: 'max' }), async (steps) => {
        const test = new TestLedger()
        // The auditor's own books: durable sums by account, and the entries that are on their way.
        const granted = new Map<string, bigint>()
        const used = new Map<string, bigint>()
        const refunded = new Map<string, bigint>()
        const returned = new Map<string, bigint>()
        let onTheirWay: PendingEntry[] = []
        let lastReturns: readonly Posting[] = []
        let term = 0
        let durable = 0
        const of = (book: Map<string, bigint>, key: string): bigint => book.get(key) ?? 0n
        const add = (book: Map<string, bigint>, key: string, value: bigint) => book.set(key, of(book, key) + value)
        const pending = (key: string, moves: PendingEntry['moves']): bigint =>
          onTheirWay
            .filter((one) => one.moves === moves)
            .flatMap(({ postings }) => postings)
            .reduce((sum, posting) => (posting.account === key ? sum + posting.amount : sum), 0n)
        const record = (moves: PendingEntry['moves'], postings: Posting[]): void => {
          const taken = entry(test.ledger.lastEntry() + 1, postings, { moves })
          test.ledger.record(taken).catch(() => undefined)
          onTheirWay.push(taken)
        }

        test.grant({ [A]: 0n, [B]: 0n }, (term += 1))
        for (const one of steps) {
          switch (one.do) {
            case 'charge':
              if (test.left(one.account) >= one.amount) record('used', [{ account: one.account, amount: one.amount }])
              else
                expect(() => test.charge({ account: one.account, amount: one.amount })).toThrow(
                  'fits the available balance',
                )
              break
            case 'refund': {
              const open = of(used, one.account) - of(refunded, one.account) - pending(one.account, 'refunded')
              if (open >= one.amount) record('refunded', [{ account: one.account, amount: one.amount }])
              break
            }
            case 'grant':
              add(granted, one.account, one.amount)
              test.grant({ [one.account]: of(granted, one.account) }, (term += 1))
              break
            case 'giveUp':
              lastReturns = test.ledger.returnUnused()
              for (const posting of lastReturns) add(returned, posting.account, posting.amount)
              break
            case 'takeBack':
              test.ledger.takeBackUnused(lastReturns)
              for (const posting of lastReturns) add(returned, posting.account, -posting.amount)
              lastReturns = []
              break
            case 'tick':
              test.tick()
              break
            case 'commit': {
              const batch = test.journal.batches[0]?.entries ?? []
              if (batch.length === 0) break
              for (const { moves, postings } of batch) {
                for (const posting of postings) add(moves === 'used' ? used : refunded, posting.account, posting.amount)
              }
              durable += batch.length
              onTheirWay = onTheirWay.slice(batch.length)
              await test.endBatch()
              break
            }
            case 'fail':
              if (test.journal.batches.length === 0) break
              onTheirWay = []
              await test.endBatch(notRecorded())
          }
          expect(test.ledger.lastEntry()).toBe(durable + onTheirWay.length)
          for (const [key, state] of test.ledger.accounts()) {
            expect(state).toMatchObject({
              granted: of(granted, key),
              used: of(used, key) + pending(key, 'used'),
              refunded: of(refunded, key),
              returned: of(returned, key),
            })
            const available = state.granted - state.returned - state.used + state.refunded
            expect(available >= 0n).toBe(true)
            expect(test.left(key)).toBe(available)
          }
        }
        expect(test.fatal).toEqual([])
      }),
      { numRuns: 200 },
    )
  })
})

describe('the balance above twice the target', () => {
  const learn = (test: TestLedger): void => {
    const sinceBoot = test.time.sinceBoot()
    test.clock.learn({ time: test.time.truth(), sentAt: sinceBoot, receivedAt: sinceBoot })
  }

  it('is returned down to the target, except the tokens that waiting requests need', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await policyInForce(1))
    learn(test)
    test.grant({ [A]: 900n })
    expect(test.ledger.giveUpSpare(new Map(), new Map([[A, 700n]]))).toEqual([])
    expect(test.ledger.giveUpSpare(new Map(), new Map([[A, 500n]]))).toEqual([{ account: A, amount: 300n }])
    expect(test.left(A)).toBe(600n)
    expect(test.ledger.giveUpSpare(new Map(), new Map())).toEqual([{ account: A, amount: 500n }])
    test.grant({ [A]: 900n }, 2)
    expect(test.left(A)).toBe(100n)
    test.grant({ [A]: 1_000n }, 3)
    expect(test.ledger.giveUpSpare(new Map(), new Map())).toEqual([])
  })

  it('is kept while nothing bounds the clock, because it is not known which accounts can be charged', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await policyInForce(1))
    test.grant({ [A]: 900n })
    expect(test.clock.reading().latest).toBeNull()
    expect(test.ledger.giveUpSpare(new Map(), new Map())).toEqual([])
    learn(test)
    expect(test.ledger.giveUpSpare(new Map(), new Map())).toEqual([{ account: A, amount: 800n }])
  })

  it('is the whole balance of an account that can no longer be charged', async () => {
    const test = new TestLedger()
    test.activePolicies.put(await policyInForce(1))
    learn(test)
    const past = lineAccount(INSTANCE, 'line-1', 7)
    test.grant({ [past]: 3n })
    expect(test.ledger.giveUpSpare(new Map(), new Map())).toEqual([{ account: past, amount: 3n }])
  })
})

describe('the whole balance', () => {
  it('is given up in as many parts as segments take of it', () => {
    const device = new TestLedger()
    const accounts = Array.from({ length: 900 }, (_, n) => `line/i/${'x'.repeat(2_000)}/${n}`)
    device.grant(Object.fromEntries(accounts.map((account) => [account, 5n])))
    const parts: number[] = []
    for (let returns = device.ledger.returnUnused(); returns.length > 0; returns = device.ledger.returnUnused()) {
      parts.push(returns.length)
    }
    expect(parts.length).toBeGreaterThan(1)
    expect(parts.reduce((sum, part) => sum + part, 0)).toBe(900)
  })
})

describe('entries that are recorded together', () => {
  const give = (n: number, amount: bigint) => entry(n, [{ account: A, amount }], { moves: 'refunded' })
  const take = (n: number, amount: bigint) => entry(n, [{ account: A, amount }])

  async function charged(): Promise<TestLedger> {
    const device = new TestLedger()
    device.grant({ [A]: 10n })
    void device.charge({ account: A, amount: 9n })
    device.tick()
    await device.endBatch()
    return device
  }

  it('may spend their own refunds, and the rest counts once it is durable', async () => {
    const device = await charged()
    const done = device.ledger.recordTogether([give(2, 6n), take(3, 4n)])
    expect(device.left(A)).toBe(1n)
    device.tick()
    expect(device.journal.batches[0]?.entries.map(({ n }) => n)).toEqual([2, 3])
    await device.endBatch()
    await done
    expect(device.left(A)).toBe(3n)
  })

  it('may charge more than they give back', async () => {
    const device = await charged()
    const done = device.ledger.recordTogether([give(2, 6n), take(3, 7n)])
    expect(device.left(A)).toBe(0n)
    device.tick()
    await device.endBatch()
    await done
    expect(device.left(A)).toBe(0n)
  })

  it('are reverted together, exactly, with everything recorded after them', async () => {
    const device = await charged()
    const done = device.ledger.recordTogether([give(2, 6n), take(3, 7n)])
    device.tick()
    done.catch(() => undefined)
    await device.endBatch(notRecorded())
    await expect(done).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect([device.left(A), device.ledger.lastEntry()]).toEqual([1n, 1])
    void device.charge({ account: A, amount: 1n })
    device.tick()
    await device.endBatch()
    expect(device.left(A)).toBe(0n)
  })

  it('keep no refund when their charge does not fit', async () => {
    const device = await charged()
    await expect(device.ledger.recordTogether([give(2, 6n), take(3, 8n)])).rejects.toThrow(
      'a charge fits the available balance',
    )
    expect([device.left(A), device.ledger.lastEntry()]).toEqual([1n, 1])
    void device.charge({ account: A, amount: 1n })
    device.tick()
    await device.endBatch()
    expect(device.left(A)).toBe(0n)
  })
})
