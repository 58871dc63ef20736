// When answers are given, what is committed and when, over a journal and a log that the test controls step by step.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { Commits } from '../../../src/agent/ledger/commits.ts'
import type { PendingEntry, Reservation } from '../../../src/agent/ledger/journal.ts'
import type { Anchor, VolatileLog } from '../../../src/agent/ledger/volatile-log.ts'
import { type AccountId, lineAccount } from '../../../src/core/accounts/account.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { CHAIN_START } from '../../../src/protocol/signing.ts'
import { STAMP, entry } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { FakeTime } from '../sync/fake-time.ts'

const A = lineAccount(INSTANCE, 'line-1', 0)
const B = lineAccount(INSTANCE, 'line-1', 1)
const FULL = new CodedError('NOT_RECORDED', 'the disk is full')
const NO_SPACE = Object.assign(new Error('no space'), { code: 'ENOSPC' })
const BROKEN = new Error('invariant: the entries of the last write are retracted')

/** A commit that the journal has received and not yet answered. */
interface Commit {
  readonly entries: readonly number[]
  readonly reservations: readonly Reservation[]
  /** Whether it can use the reserved disk space. */
  readonly answered: boolean
  /** Whether all callers wait for it. */
  readonly isForAll: boolean
  readonly outcome: PromiseWithResolvers<string>
}

class Bench {
  readonly time = new FakeTime()
  readonly commits: Commits
  readonly begun: Commit[] = []
  /** Calls to the log. */
  readonly logged: string[] = []
  logFails = false
  /** The call that finds a broken invariant. */
  logBreaksAt: string | null = null
  readonly logErrors: unknown[] = []
  /** The responses to callers, by the number of the entry. */
  readonly answers: Record<number, string> = {}
  readonly recorded: number[] = []
  readonly lost: number[] = []
  readonly broken: unknown[] = []
  readonly #used = new Map<AccountId, bigint>()
  #deferred: (() => void)[] = []
  #last = 0
  #head = 0
  epoch = 1

  constructor(durability: 'write-behind' | 'durable' = 'write-behind') {
    const append = async (
      entries: readonly PendingEntry[],
      reservations: readonly Reservation[] = [],
      answered = false,
      isForAll = false,
    ): Promise<string> => {
      const outcome = Promise.withResolvers<string>()
      this.begun.push({ entries: entries.map(({ n }) => n), reservations, answered, isForAll, outcome })
      return outcome.promise
    }
    const writeBehind = {
      journal: {
        appendWriteBehind: async (
          entries: readonly PendingEntry[],
          reservations: readonly Reservation[],
          _stamp: unknown,
          answered: boolean,
        ) => append(entries, reservations, answered),
      },
      log: this.#log(),
      reservationMax: 1_000n,
      onLog: (error: unknown) => void this.logErrors.push(error),
    }
    this.commits = new Commits(
      {
        journal: {
          append: async (entries, _stamp, isForAll) => void (await append(entries, [], false, isForAll)),
        },
        writeBehind: durability === 'write-behind' ? writeBehind : null,
        spendableOf: (account) => ({ used: this.used(account), usedMax: 10n ** 12n }),
        stamp: () => STAMP,
        owner: () => ({ deviceId: 'device-1', epoch: this.epoch }),
        defer: (call) => void this.#deferred.push(call),
        now: () => this.time.sinceBoot(),
        timers: this.time,
        onRecorded: (decided) => this.recorded.push(...decided.map((each) => each.entry.n)),
        onLost: (decided) => {
          for (const each of decided) {
            this.lost.push(each.entry.n)
            for (const { account, amount } of each.entry.postings) this.#raise(account, -amount)
          }
          this.#last -= decided.length
        },
        onBroken: (error) => void this.broken.push(error),
      },
      { n: 0, head: CHAIN_START },
    )
  }

  #log(): VolatileLog {
    const note = (call: string): void => {
      if (this.logFails) throw NO_SPACE
      if (call === this.logBreaksAt) throw BROKEN
      this.logged.push(call)
    }
    return {
      write: (entries) => note(`write ${entries.map(({ n }) => n).join(' ')}`),
      retract: (from) => note(`retract ${from}`),
      turn: () => note('turn'),
      forget: ({ n, head }: Anchor) => note(`forget ${n} ${head}`),
      begin: ({ epoch }, { n, head }) => note(`begin ${epoch} ${n} ${head === CHAIN_START ? 'start' : head}`),
      remove: () => note('remove'),
    }
  }

  used(account: AccountId): bigint {
    return this.#used.get(account) ?? 0n
  }

  #raise(account: AccountId, amount: bigint): void {
    this.#used.set(account, this.used(account) + amount)
  }

  /** Decides, and lets the batch of this moment arrive. */
  charge(amounts: Readonly<Record<AccountId, bigint>>, changes: Partial<PendingEntry> = {}): void {
    this.add(amounts, changes)
    this.arrive()
  }

  add(amounts: Readonly<Record<AccountId, bigint>>, changes: Partial<PendingEntry> = {}): void {
    const postings = Object.entries(amounts).map(([account, amount]) => ({ account, amount }))
    if (changes.moves === undefined) for (const { account, amount } of postings) this.#raise(account, amount)
    const decided = entry((this.#last += 1), postings, changes)
    this.commits.add({ entry: decided, atOnce: [], later: [] }).then(
      (durability) => (this.answers[decided.n] = durability),
      (error: unknown) => (this.answers[decided.n] = error instanceof CodedError ? error.code : String(error)),
    )
  }

  /** Nothing more arrives in the next turns. */
  arrive(): void {
    while (this.#deferred.length > 0) this.turn()
  }

  turn(): void {
    expect(this.#deferred.length).toBeLessThanOrEqual(1)
    for (const call of this.#deferred.splice(0)) call()
  }

  beginEpoch(epoch: number): void {
    this.epoch = epoch
    this.#used.clear()
    this.commits.begin()
  }

  get last(): Commit {
    return this.begun.at(-1)!
  }

  reserved(): Readonly<Record<AccountId, bigint>> {
    return Object.fromEntries(this.last.reservations.map(({ account, usedUpTo }) => [account, usedUpTo]))
  }

  async done(): Promise<void> {
    const { entries, outcome } = this.last
    this.#head = entries.at(-1) ?? this.#head
    outcome.resolve(`head ${this.#head}`)
    await nextTurn()
  }

  async fail(error: unknown = FULL): Promise<void> {
    this.last.outcome.reject(error)
    await nextTurn()
  }
}

/** A reservation of 100 tokens on each account. The next charge within them is number 2. */
async function warm(...accounts: readonly AccountId[]): Promise<Bench> {
  const bench = new Bench()
  bench.charge(Object.fromEntries(accounts.map((account) => [account, 100n])))
  expect(bench.reserved()).toEqual(Object.fromEntries(accounts.map((account) => [account, 200n])))
  await bench.done()
  expect(bench.answers).toEqual({ 1: 'durable' })
  return bench
}

/** Resolves to what the promise resolves to, or 'pending'. */
async function stateOf(promise: Promise<unknown>): Promise<unknown> {
  const resolved = promise.then((value) => value ?? 'resolved')
  return Promise.race([resolved, nextTurn().then(() => 'pending')])
}

const denial = { isDenial: true }

describe.each(['durable', 'write-behind'] as const)('a denial, %s', (durability) => {
  it('is answered at once, and is in the next commit', async () => {
    const bench = new Bench(durability)
    bench.charge({ [A]: 1n })
    bench.charge({}, denial)
    await nextTurn()
    expect(bench.answers).toEqual({ 2: 'later' })
    await bench.done()
    expect(bench.answers[1]).toBe('durable')
    expect(bench.commits.isSettled).toBe(durability === 'write-behind' && bench.recorded.length === 2)
    const settled = bench.commits.settled()
    if (bench.recorded.length < 2) await bench.done()
    await settled
    expect(bench.recorded).toEqual([1, 2])
  })

  it('is recorded before a stop ends', async () => {
    const bench = new Bench(durability)
    bench.charge({ [A]: 1n })
    bench.charge({}, denial)
    const closing = bench.commits.close()
    while ((await stateOf(closing)) === 'pending') await bench.done()
    expect(bench.recorded.filter((n) => n <= 2)).toEqual([1, 2])
    expect(bench.commits.isSettled).toBe(true)
  })

  it('with a charge waits like any charge', async () => {
    const bench = new Bench(durability)
    bench.charge({ [A]: 1n }, denial)
    await nextTurn()
    expect(bench.answers).toEqual({})
  })

  it('waits for the commit while 1,000 others do', async () => {
    const bench = new Bench(durability)
    bench.charge({ [A]: 1n })
    for (let n = 0; n < 1_001; n += 1) bench.add({}, denial)
    await nextTurn()
    expect(Object.keys(bench.answers)).toHaveLength(1_000)
    await bench.done()
    const settled = bench.commits.settled()
    if (bench.begun.length > 1) await bench.done()
    await settled
    expect(Object.keys(bench.answers)).toHaveLength(1_002)
  })
})

describe('a commit on fast storage', () => {
  /** Adds entries for callers that wait, after the turns before. */
  const arriveInTurn = (bench: Bench, count: number): void => {
    for (let n = 0; n < count; n += 1) bench.add({ [A]: 1n })
    bench.turn()
  }

  it('waits while each turn of the event loop brings entries', async () => {
    const bench = new Bench('durable')
    arriveInTurn(bench, 2)
    arriveInTurn(bench, 3)
    expect(bench.begun).toEqual([])
    bench.turn()
    expect(bench.last.entries).toEqual([1, 2, 3, 4, 5])
    bench.add({ [A]: 1n })
    await bench.done()
    expect(bench.begun).toHaveLength(1)
    arriveInTurn(bench, 1)
    expect(bench.begun).toHaveLength(1)
    bench.turn()
    expect(bench.last.entries).toEqual([6, 7])
  })

  it('waits neither for a single caller, nor for more than enough', async () => {
    const bench = new Bench('durable')
    for (let n = 1; n <= 2; n += 1) {
      arriveInTurn(bench, 1)
      expect(bench.last.entries).toEqual([n])
      await bench.done()
    }
    arriveInTurn(bench, 64)
    expect(bench.last.entries).toHaveLength(64)
  })

  it('gathers denials for 10 ms, or 64 of them', async () => {
    const bench = new Bench('durable')
    for (let n = 0; n < 3; n += 1) {
      bench.charge({}, denial)
      bench.time.advance(3)
    }
    expect(bench.begun).toEqual([])
    bench.time.advance(1)
    expect(bench.last.entries).toEqual([1, 2, 3])
    await bench.done()
    for (let n = 0; n < 64; n += 1) bench.charge({}, denial)
    expect(bench.last.entries).toHaveLength(64)
  })

  it('takes the denials with it that wait', () => {
    const bench = new Bench('durable')
    bench.charge({}, denial)
    bench.charge({ [A]: 1n })
    bench.arrive()
    expect(bench.last.entries).toEqual([1, 2])
  })

  it('is for all callers if it has no fewer entries that one waits for than each of the last two commits', async () => {
    const bench = new Bench('durable')
    const isForAll = async (count: number, denials = 0): Promise<boolean> => {
      for (let n = 0; n < denials; n += 1) bench.add({}, denial)
      for (let n = 0; n < count; n += 1) bench.add({ [A]: 1n })
      bench.arrive()
      if (count === 0) bench.time.advance(10)
      const { isForAll } = bench.last
      await bench.done()
      return isForAll
    }
    expect(await isForAll(1)).toBe(true)
    expect(await isForAll(3)).toBe(true)
    expect(await isForAll(2)).toBe(false)
    expect(await isForAll(2)).toBe(false)
    expect(await isForAll(2)).toBe(true)
    expect(await isForAll(0, 3)).toBe(false)
    expect(await isForAll(2, 1)).toBe(false)
  })
})

it('a denial waits after a commit that failed, until one succeeds', async () => {
  const bench = new Bench('durable')
  bench.charge({}, denial)
  bench.time.advance(10)
  await bench.fail()
  expect(bench.lost).toEqual([1])
  bench.charge({}, denial)
  await nextTurn()
  expect(bench.answers).toEqual({ 1: 'later' })
  delete bench.answers[1]
  await bench.done()
  expect(bench.answers[1]).not.toBe('later')
  bench.charge({}, denial)
  await nextTurn()
  expect(bench.answers[2]).toBe('later')
})

it('an entry is pending until it is in the journal', async () => {
  const bench = await warm(A)
  bench.charge({ [A]: 1n })
  await nextTurn()
  expect(bench.answers[2]).toBe('write-behind')
  expect([bench.commits.hasPending('"n":2'), bench.commits.hasPending('"n":3'), bench.begun.length]).toEqual([
    true,
    false,
    1,
  ])
  const drained = bench.commits.drained()
  await bench.done()
  expect([await drained, bench.commits.hasPending('"n":2')]).toEqual([true, false])
})

describe('a charge', () => {
  it('begins the log if it is the first, and is answered after the commit that reserves tokens', async () => {
    const bench = new Bench()
    expect(bench.commits.durability).toBe('write-behind')
    bench.charge({ [A]: 100n })
    expect(bench.logged).toEqual(['begin 1 0 start', 'turn', 'write 1'])
    expect(bench.last).toMatchObject({ entries: [1], answered: false })
    await nextTurn()
    expect([bench.answers, bench.commits.isSettled]).toEqual([{}, false])
    await bench.done()
    expect([bench.answers, bench.recorded, bench.commits.isSettled]).toEqual([{ 1: 'durable' }, [1], true])
    expect(bench.logged.at(-1)).toBe('forget 1 head 1')
    expect(bench.logErrors).toEqual([null])
  })

  it('shares its commit with others of the same moment', () => {
    const bench = new Bench()
    for (let n = 0; n < 3; n += 1) bench.add({ [A]: 1n })
    expect(bench.commits.isSettled).toBe(false)
    bench.arrive()
    expect(bench.begun.map(({ entries }) => entries)).toEqual([[1, 2, 3]])
  })

  it('is answered durably without a log', async () => {
    const bench = new Bench('durable')
    expect(bench.commits.durability).toBe('durable')
    bench.charge({ [A]: 100n })
    await bench.done()
    bench.charge({ [A]: 1n })
    await bench.done()
    expect(bench.answers).toEqual({ 1: 'durable', 2: 'durable' })
    expect([bench.logged, bench.time.untilNext]).toEqual([[], Infinity])
  })
})

describe('an entry answered from the log', () => {
  it('goes to the journal one second after the first of them', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    bench.time.advance(500)
    bench.charge({ [A]: 1n })
    await nextTurn()
    expect(bench.answers).toMatchObject({ 2: 'write-behind', 3: 'write-behind' })
    bench.time.advance(499)
    expect(bench.begun).toHaveLength(1)
    bench.time.advance(1)
    expect(bench.last).toMatchObject({ entries: [2, 3], answered: false })
    await bench.done()
    expect(bench.recorded).toEqual([1, 2, 3])
  })

  it('goes to the journal with the 256th', async () => {
    const bench = await warm(A)
    for (let n = 0; n < 255; n += 1) bench.charge({})
    expect(bench.begun).toHaveLength(1)
    bench.charge({})
    expect(bench.last.entries).toHaveLength(256)
  })

  it('may be one of fifty thousand that the journal lacks; the next one waits, so that memory is bounded', async () => {
    const bench = await warm(A)
    for (let n = 0; n < 50_000; n += 1) bench.add({})
    bench.arrive()
    await nextTurn()
    expect(bench.answers[50_001]).toBe('write-behind')
    bench.charge({})
    await nextTurn()
    expect(bench.answers[50_002]).toBeUndefined()
    await bench.done()
    expect(bench.answers[50_002]).toBe('write-behind')
  })

  it('goes to the journal at once when less than half of a reservation is left', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 50n })
    expect(bench.begun).toHaveLength(1)
    bench.charge({ [A]: 1n })
    await nextTurn()
    expect(bench.answers[3]).toBe('write-behind')
    expect(bench.last.entries).toEqual([2, 3])
  })

  it('goes to the journal after the commit during which its reservation became low', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 10n })
    bench.time.advance(1_000)
    expect(bench.last.entries).toEqual([2])
    bench.charge({ [A]: 70n })
    await nextTurn()
    expect(bench.answers[3]).toBe('write-behind')
    expect(bench.begun).toHaveLength(2)
    await bench.done()
    expect(bench.last.entries).toEqual([3])
  })

  it('goes to the journal one second after a commit that took longer than a second', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    bench.time.advance(1_000)
    bench.charge({ [A]: 1n })
    bench.time.advance(1_500)
    expect(bench.begun).toHaveLength(2)
    await bench.done()
    bench.time.advance(999)
    expect(bench.begun).toHaveLength(2)
    bench.time.advance(1)
    expect(bench.last.entries).toEqual([3])
  })
})

describe('an entry waits for a commit', () => {
  it('when another one of the same moment is not covered', async () => {
    const bench = await warm(A)
    bench.add({ [A]: 1n })
    bench.add({ [B]: 1n })
    bench.arrive()
    await nextTurn()
    expect(Object.keys(bench.answers)).toEqual(['1'])
    expect(bench.last.entries).toEqual([2, 3])
    await bench.done()
    expect(bench.answers).toMatchObject({ 2: 'durable', 3: 'durable' })
  })

  it('behind one that waits, and not behind a commit of answered entries', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    bench.time.advance(1_000)
    bench.charge({ [A]: 1n })
    await nextTurn()
    expect(bench.answers[3]).toBe('write-behind')
    await bench.done()
    bench.charge({ [B]: 1n })
    bench.charge({ [A]: 1n })
    await nextTurn()
    expect([bench.answers[4], bench.answers[5]]).toEqual([undefined, undefined])
    await bench.done()
    expect([bench.answers[4], bench.answers[5]]).toEqual(['durable', 'write-behind'])
  })

  it('when it is a refund, which reserves nothing', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n, [B]: 1n }, { moves: 'refunded' })
    expect(bench.last.entries).toEqual([2])
    expect(bench.reserved()).toEqual({})
    await bench.done()
    expect(bench.answers[2]).toBe('durable')
  })
})

describe('a reservation', () => {
  it('ends ten seconds after the last charge', async () => {
    const bench = await warm(A)
    bench.time.advance(5_000)
    bench.charge({ [A]: 1n })
    void bench.commits.flushed()
    await bench.done()
    bench.time.advance(9_999)
    expect(bench.begun).toHaveLength(2)
    bench.time.advance(1)
    expect(bench.last.entries).toEqual([])
    expect(bench.reserved()).toEqual({ [A]: 101n })
    await bench.done()
    expect(bench.logged.slice(-2)).toEqual(['turn', 'forget 2 head 2'])
    expect(bench.time.untilNext).toBe(10_000)
    bench.time.advance(60_000)
    expect(bench.begun).toHaveLength(3)
    bench.charge({ [A]: 1n })
    await bench.done()
    expect(bench.answers[3]).toBe('durable')
  })

  it('ends one second later when the disk was full, which is no failure of the log', async () => {
    const bench = await warm(A)
    bench.time.advance(10_000)
    await bench.fail()
    expect(bench.begun).toHaveLength(2)
    bench.time.advance(1_000)
    expect(bench.last).toMatchObject({ entries: [], answered: false })
    expect(bench.reserved()).toEqual({ [A]: 100n })
    expect(bench.logErrors).toEqual([null])
  })

  it('ends on request, and a charge waits for a new one', async () => {
    const bench = await warm(A, B)
    bench.charge({ [A]: 1n })
    bench.commits.endReservations([A])
    expect(bench.reserved()).toEqual({ [A]: 101n })
    await bench.done()
    bench.charge({ [B]: 1n })
    bench.charge({ [A]: 1n })
    await nextTurn()
    expect([bench.answers[3], bench.answers[4]]).toEqual(['write-behind', undefined])
    await bench.done()
    expect(bench.answers[4]).toBe('durable')
    bench.commits.endReservations([])
    expect(bench.begun).toHaveLength(3)
  })

  it('is not needed without a log', () => {
    const bench = new Bench('durable')
    bench.commits.endReservations([A])
    expect(bench.begun).toEqual([])
  })

  it('that the journal did not record covers nothing', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    bench.charge({ [A]: 500n })
    expect(bench.reserved()[A]).toBeGreaterThan(700n)
    await bench.fail()
    await bench.done()
    bench.charge({ [A]: 500n })
    await nextTurn()
    expect(bench.answers[3]).toBe('NOT_RECORDED')
    expect(bench.last.entries).toEqual([3])
  })

  it('ends with the epoch, and the log begins again at the start of the chain', async () => {
    const bench = await warm(A, B)
    bench.beginEpoch(2)
    bench.logged.length = 0
    bench.charge({ [A]: 1n })
    expect(bench.logged).toEqual(['begin 2 0 start', 'turn', 'write 2'])
    await bench.done()
    bench.charge({ [B]: 1n })
    await nextTurn()
    expect([bench.answers[2], bench.answers[3]]).toEqual(['durable', undefined])
  })
})

describe('a full disk', () => {
  it('refuses the waiting entries and all behind them, and records the answered ones with reserved space', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    bench.charge({ [A]: 500n })
    bench.charge({ [A]: 1n })
    expect(bench.last).toMatchObject({ entries: [2, 3], answered: false })
    await bench.fail()
    expect(bench.lost).toEqual([3, 4])
    expect(bench.answers).toEqual({ 1: 'durable', 2: 'write-behind', 3: 'NOT_RECORDED', 4: 'NOT_RECORDED' })
    expect(bench.logged).toContain('retract 3')
    expect(bench.last).toMatchObject({ entries: [2], reservations: [], answered: true })
    await bench.done()
    expect(bench.recorded).toEqual([1, 2])
    expect(bench.commits.isSettled).toBe(true)
    // The log was not turned for this commit: it forgets nothing.
    expect(bench.logged.at(-1)).toBe('retract 3')
  })

  it('leaves nothing to record when no entry was answered', async () => {
    const bench = new Bench()
    bench.charge({ [A]: 1n })
    const settled = bench.commits.settled()
    await bench.fail()
    expect(bench.begun).toHaveLength(1)
    expect(await stateOf(settled)).toBe('resolved')
    expect(bench.logged.at(-1)).toBe('retract 1')
    bench.time.advance(60_000)
    expect(bench.begun).toHaveLength(1)
  })

  it('settles answered entries only when the journal has them, and tries again each second', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    const settled = bench.commits.settled()
    await bench.fail()
    await bench.fail()
    expect(await stateOf(settled)).toBe('pending')
    bench.time.advance(1_000)
    expect(bench.begun).toHaveLength(4)
    expect(bench.last).toMatchObject({ entries: [2], answered: false })
    await bench.done()
    expect(await stateOf(settled)).toBe('resolved')
    expect(bench.recorded).toEqual([1, 2])
  })
})

describe('waiting for the journal', () => {
  it('is over at once when nothing is pending', async () => {
    const bench = await warm(A)
    const { commits } = bench
    expect(await stateOf(commits.flushed())).toBe('resolved')
    expect(await stateOf(commits.drained())).toBe(true)
    expect(await stateOf(commits.settled())).toBe('resolved')
    expect(bench.begun).toHaveLength(1)
  })

  it('includes entries that wait behind the commit under way', async () => {
    const bench = new Bench()
    bench.charge({ [A]: 1n })
    const first = bench.commits.drained()
    bench.add({ [A]: 1n })
    const both = bench.commits.drained()
    const settled = bench.commits.settled()
    await bench.done()
    expect(await stateOf(first)).toBe(true)
    expect([await stateOf(both), await stateOf(settled)]).toEqual(['pending', 'pending'])
    expect(bench.last.entries).toEqual([2])
    await bench.done()
    expect([await stateOf(both), await stateOf(settled)]).toEqual([true, 'resolved'])
  })

  it('includes entries answered during a commit, which begin the next one', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    const first = bench.commits.flushed()
    expect(bench.last.entries).toEqual([2])
    bench.charge({ [A]: 1n })
    const both = bench.commits.flushed()
    await bench.done()
    expect([await stateOf(first), await stateOf(both)]).toEqual(['resolved', 'pending'])
    expect(bench.last.entries).toEqual([3])
    await bench.done()
    expect(await stateOf(both)).toBe('resolved')
  })

  it('ends well where the entry is undone, and badly where an answered one is not recorded', async () => {
    const bench = await warm(A)
    bench.charge({ [B]: 1n })
    const undone = bench.commits.drained()
    await bench.fail()
    expect(await stateOf(undone)).toBe(true)
    bench.charge({ [A]: 1n })
    const answered = bench.commits.drained()
    await bench.fail()
    expect(await stateOf(answered)).toBe('pending')
    await bench.fail()
    expect(await stateOf(answered)).toBe(false)
  })
})

it('a write with an unknown outcome ends all commits', async () => {
  const bench = await warm(A)
  bench.charge({ [A]: 1n })
  bench.charge({ [A]: 500n })
  const drained = bench.commits.drained()
  const error = new Error('torn')
  await bench.fail(error)
  expect(bench.broken).toEqual([error])
  expect(bench.lost).toEqual([])
  expect(bench.answers[3]).toBe('Error: torn')
  expect(await stateOf(drained)).toBe(false)
  expect(await stateOf(bench.commits.drained())).toBe(false)
  expect(await stateOf(bench.commits.settled())).toBe('resolved')
  await bench.commits.close()
  bench.charge({ [A]: 1n })
  bench.time.advance(60_000)
  expect(bench.begun).toHaveLength(2)
  expect(bench.logged).not.toContain('remove')
})

describe('a log that fails', () => {
  it('ends all reservations with the next commit, is left alone for ten seconds, and then begins again', async () => {
    const bench = await warm(A, B)
    bench.logFails = true
    bench.charge({ [A]: 1n })
    expect(bench.commits.durability).toBe('durable')
    expect(bench.logErrors).toEqual([null, NO_SPACE])
    expect(bench.reserved()).toEqual({ [A]: 101n, [B]: 100n })
    bench.charge({ [A]: 1n })
    expect(bench.begun).toHaveLength(2)
    await bench.done()
    expect(bench.last.entries).toEqual([3])
    await bench.done()
    bench.logFails = false
    const before = bench.logged.length
    bench.time.advance(9_999)
    bench.charge({ [B]: 1n })
    await bench.done()
    expect(bench.logged).toHaveLength(before)
    bench.time.advance(1)
    bench.charge({ [B]: 1n })
    expect(bench.logged.slice(before)).toEqual(['begin 1 4 head 4', 'turn', 'write 5'])
    expect([bench.logErrors.at(-1), bench.commits.durability]).toEqual([null, 'write-behind'])
    await bench.done()
    // Only the account of this commit has a reservation again.
    bench.charge({ [A]: 1n })
    await nextTurn()
    expect(bench.answers[6]).toBeUndefined()
  })

  it('stays failed in a new epoch', async () => {
    const bench = await warm(A)
    bench.logFails = true
    bench.charge({ [A]: 1n })
    await bench.done()
    bench.commits.begin()
    expect(bench.commits.durability).toBe('durable')
  })

  it('that fails during a commit is not used after it', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    bench.time.advance(1_000)
    bench.logFails = true
    bench.charge({ [A]: 1n })
    const errors = bench.logErrors.length
    bench.logFails = false
    const before = bench.logged.length
    await bench.done()
    expect(bench.last.entries).toEqual([3])
    await bench.done()
    expect(bench.answers[3]).toBe('durable')
    expect(bench.logged).toHaveLength(before)
    expect(bench.logErrors).toHaveLength(errors)
  })

  it('does not begin again before the journal has all answered entries and no reservation', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    bench.logFails = true
    bench.charge({ [A]: 1n })
    bench.logFails = false
    const before = bench.logged.length
    bench.time.advance(20_000)
    await bench.fail()
    await bench.fail()
    bench.time.advance(1_000)
    expect(bench.last.entries).toEqual([2])
    await bench.done()
    bench.charge({ [A]: 1n })
    expect(bench.logged[before]).toBe('begin 1 2 head 2')
  })

  it('that cannot begin leaves charges to the journal', async () => {
    const bench = new Bench()
    bench.logFails = true
    bench.charge({ [A]: 1n })
    expect(bench.logErrors).toEqual([NO_SPACE])
    expect(bench.reserved()).toEqual({})
    await bench.done()
    expect(bench.answers).toEqual({ 1: 'durable' })
  })
})

describe('a log whose invariant is broken', () => {
  it('ends all commits instead of an answer from it', async () => {
    const bench = await warm(A)
    bench.logBreaksAt = 'write 2'
    bench.charge({ [A]: 1n })
    expect(bench.broken).toEqual([BROKEN])
    await nextTurn()
    expect(bench.answers[2]).toBeUndefined()
    bench.time.advance(60_000)
    expect(bench.begun).toHaveLength(1)
  })

  it('ends all commits after one that the journal refuses', async () => {
    const bench = await warm(A)
    bench.logBreaksAt = 'retract 2'
    bench.charge({ [A]: 500n })
    await bench.fail()
    expect(bench.broken).toEqual([BROKEN])
    expect(bench.lost).toEqual([2])
    expect(await stateOf(bench.commits.drained())).toBe(false)
  })
})

describe('closing', () => {
  it('records the answered entries, ends all reservations and removes the log', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    const closed = bench.commits.close()
    expect(bench.last.entries).toEqual([2])
    await bench.done()
    expect(bench.last.entries).toEqual([])
    expect(bench.reserved()).toEqual({ [A]: 101n })
    expect(bench.logged).not.toContain('remove')
    await bench.done()
    await closed
    expect(bench.logged.at(-1)).toBe('remove')
    expect(bench.time.untilNext).toBe(Infinity)
    bench.charge({ [A]: 1n })
    expect(bench.logged).toContain('begin 1 2 head 2')
  })

  it('still ends a reservation of a later charge when it is idle', async () => {
    const bench = await warm(A)
    const closed = bench.commits.close()
    await nextTurn()
    await bench.done()
    await closed
    bench.charge({ [A]: 1n })
    await bench.done()
    bench.time.advance(10_000)
    expect(bench.reserved()).toEqual({ [A]: 101n })
  })

  it('keeps the log while the journal lacks answered entries', async () => {
    const bench = await warm(A)
    bench.charge({ [A]: 1n })
    const closed = bench.commits.close()
    await bench.fail()
    await bench.fail()
    await closed
    expect(bench.logged).not.toContain('remove')
    expect(bench.begun).toHaveLength(3)
  })

  it('keeps the log while the journal has open reservations', async () => {
    const bench = await warm(A)
    const closed = bench.commits.close()
    await nextTurn()
    await bench.fail()
    await closed
    expect(bench.logged).not.toContain('remove')
    // And continues it: an open reservation without a log would be burned after a kill.
    bench.charge({ [A]: 500n })
    expect(bench.logged.slice(-2)).toEqual(['turn', 'write 2'])
  })

  it('ends although the log cannot be removed', async () => {
    const bench = await warm(A)
    const closed = bench.commits.close()
    await nextTurn()
    bench.logFails = true
    await bench.done()
    await closed
    expect(bench.logErrors.at(-1)).toBe(NO_SPACE)
    expect(bench.reserved()).toEqual({ [A]: 100n })
  })

  it('needs no commit before the first charge', async () => {
    for (const durability of ['write-behind', 'durable'] as const) {
      const bench = new Bench(durability)
      await bench.commits.close()
      expect(bench.begun).toEqual([])
    }
  })

  it('waits for the last commit without a log', async () => {
    const bench = new Bench('durable')
    bench.charge({ [A]: 1n })
    const closed = bench.commits.close()
    expect(await stateOf(closed)).toBe('pending')
    await bench.done()
    expect(await stateOf(closed)).toBe('resolved')
    expect(bench.logged).toEqual([])
  })
})

it('answers at once after a slow commit that contains only answered entries', async () => {
  const bench = new Bench()
  for (let n = 0; n < 3; n += 1) bench.add({ [A]: 100n })
  bench.arrive()
  await bench.done()
  bench.charge({ [A]: 1n })
  bench.time.advance(1_000)
  bench.time.advance(50)
  await bench.done()
  bench.charge({ [A]: 1n })
  await nextTurn()
  expect(bench.answers[5]).toBe('write-behind')
})
