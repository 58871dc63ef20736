// A device with write-behind, over a real journal and a real volatile log. A test kills the process, or cuts the power, by
// copying both directories at that moment and starting another process with the copy.
import { cpSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import fc from '../../support/fast-check.ts'
import { describe, expect, it, onTestFinished } from 'vitest'
import { TmpfsLog } from '../../../src/agent/platform/tmpfs/volatile-log.ts'
import { Clock } from '../../../src/agent/runtime/clock.ts'
import type { Durability } from '../../../src/agent/ledger/commits.ts'
import type { Journal, PendingEntry, Reservation } from '../../../src/agent/ledger/journal.ts'
import { Ledger } from '../../../src/agent/ledger/ledger.ts'
import { ActivePolicies } from '../../../src/agent/policy/active-policies.ts'
import { recoverReservations } from '../../../src/agent/ledger/recover-reservations.ts'
import type { Anchor, VolatileLog } from '../../../src/agent/ledger/volatile-log.ts'
import { type Posting, actionAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import { type Segment, type SegmentWire, entryBody } from '../../../src/protocol/edge/sync.ts'
import { SEAL, STAMP, attach, entry, grant, journalIn, payloadOf, temporaryDirectory } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'
import { FakeTime } from '../sync/fake-time.ts'

const A = lineAccount(INSTANCE, 'line-1', 0)
const B = actionAccount(INSTANCE, 'line-1', 'b')
const BLOCK = 1_000n
const NO_SPACE = Object.assign(new Error('no space'), { code: 'ENOSPC' })

/** Tokens by account: of the responses that were sent, and of all decisions. */
interface Told {
  answered: Map<string, bigint>
  decided: Map<string, bigint>
}

/** One life of the agent's process. */
class Process {
  readonly time: FakeTime
  readonly directory: string
  journal!: Journal
  ledger!: Ledger
  readonly told: Told = { answered: new Map(), decided: new Map() }
  readonly answers: Durability[] = []
  readonly logErrors: unknown[] = []
  readonly warned: string[] = []
  logFails = false
  turnFails = false
  /** The journal refuses entries that were not answered yet, or all entries. */
  journalFails: 'NO' | 'NEW' | 'ALL' = 'NO'
  commits = 0
  onStep: (step: string) => void = () => undefined

  readonly #fatal = Promise.withResolvers<never>()

  private constructor(directory: string, time: FakeTime) {
    this.directory = directory
    this.time = time
    this.#fatal.promise.catch(() => undefined)
  }

  static async on(directory: string, time = new FakeTime()): Promise<Process> {
    const process = new Process(directory, time)
    await process.#open()
    return process
  }

  async #open(): Promise<void> {
    const { time, directory } = this
    this.journal = await journalIn(join(directory, 'state'))
    const found = await this.journal.read()
    const clock = new Clock(time, found.clock)
    const log = new TmpfsLog({ directory: join(directory, 'run'), name: 'ledger', bootId: time.bootId })
    let ids = 0
    const parts = {
      journal: this.journal,
      left: log.left(),
      bootId: time.bootId,
      reading: clock.reading(),
      stamp: STAMP,
      newCorrelationId: () => `0c1d8a1e-0000-4000-8000-${String((ids += 1)).padStart(12, '0')}`,
      engine: 1,
      log: { warn: (_fields: unknown, message: string) => void this.warned.push(message) },
    }
    await recoverReservations(parts, found)
    const ledger: Ledger = new Ledger(
      {
        journal: this.journal,
        clock,
        policies: new ActivePolicies(),
        startingGrant: 0n,
        batchEntries: 1_000_000,
        defer: (call) => void setImmediate(call),
        writeBehind: {
          journal: { appendWriteBehind: (...order) => this.#append(...order) },
          log: this.#watched(log),
          reservationMax: BLOCK,
          onLog: (error) => this.logErrors.push(error),
        },
        now: () => time.sinceBoot(),
        timers: time,
        onNeed: () => undefined,
        onFatal: (error) => {
          this.#fatal.reject(error)
          throw error
        },
      },
      await this.journal.read(),
    )
    this.ledger = ledger
    onTestFinished(() => ledger.stop())
  }

  /** Rejects when the ledger is broken: then nothing is flushed any more. */
  async flushed(): Promise<void> {
    await Promise.race([this.ledger.flushed(), this.#fatal.promise])
  }

  async #append(
    entries: readonly PendingEntry[],
    reservations: readonly Reservation[],
    stamp: typeof STAMP,
    answered: boolean,
  ): Promise<string> {
    this.onStep('before a commit')
    if (this.journalFails === 'ALL' || (this.journalFails === 'NEW' && !answered)) {
      await nextTurn()
      throw new CodedError('NOT_RECORDED', 'the disk is full')
    }
    const head = await this.journal.appendWriteBehind(entries, reservations, stamp, answered)
    this.commits += 1
    this.onStep('after a commit')
    return head
  }

  #watched(log: VolatileLog): VolatileLog {
    const step = (name: string, work: () => void): void => {
      this.onStep(`before ${name}`)
      if (this.logFails || (this.turnFails && name === 'turn')) throw NO_SPACE
      work()
      this.onStep(`after ${name}`)
    }
    return {
      write: (entries) => step('write', () => log.write(entries)),
      retract: (from) => step('retract', () => log.retract(from)),
      turn: () => step('turn', () => log.turn()),
      forget: (anchor: Anchor) => step('forget', () => log.forget(anchor)),
      begin: (owner, anchor) => step('begin', () => log.begin(owner, anchor)),
      remove: () => step('remove', () => log.remove()),
    }
  }

  /** Decides; the promise is watched. */
  charge(amounts: Readonly<Record<string, bigint>>): Promise<Durability> {
    const postings = Object.entries(amounts).map(([account, amount]) => ({ account, amount }))
    const add = (to: Map<string, bigint>): void => {
      for (const { account, amount } of postings) to.set(account, (to.get(account) ?? 0n) + amount)
    }
    const done = this.ledger.record(entry(this.ledger.lastEntry() + 1, postings))
    add(this.told.decided)
    done.then(
      (durability) => {
        this.answers.push(durability)
        add(this.told.answered)
      },
      () => undefined,
    )
    return done
  }

  copyOfTold(): Told {
    return { answered: new Map(this.told.answered), decided: new Map(this.told.decided) }
  }

  /** Another directory with the present content of this one. */
  copy(): string {
    const directory = temporaryDirectory()
    cpSync(this.directory, directory, { recursive: true })
    return directory
  }

  async used(account: string): Promise<bigint> {
    return (await this.journal.read()).accounts.get(account)?.used ?? 0n
  }
}

async function prepared(
  granted: Readonly<Record<string, bigint>> = { [A]: 10n ** 9n, [B]: 10n ** 9n },
): Promise<Process> {
  const directory = temporaryDirectory()
  const journal = await journalIn(join(directory, 'state'))
  await attach(journal, granted)
  await journal.close()
  return Process.on(directory)
}

/** Charges until charges are answered ahead of the disk. */
async function warm(device: Process): Promise<void> {
  for (let round = 0; round < 6; round += 1) {
    await device.charge({ [A]: 10n, [B]: 7n })
    device.time.advance(50)
    await nextTurn()
  }
  await device.flushed()
  expect(device.answers.at(-1)).toBe('write-behind')
}

const rebooted = (time: FakeTime): FakeTime => Object.assign(new FakeTime(time.truth()), { bootId: 'boot-2' })

/** A process that starts after a kill at this moment counts exactly the answered use, and burns nothing. */
async function expectAnsweredOnly(device: Process): Promise<void> {
  const after = await Process.on(device.copy(), device.time)
  expect(await after.used(A)).toBe(device.told.answered.get(A))
  expect((await after.journal.read()).burned.size).toBe(0)
  await after.journal.close()
}

async function expectExact(directory: string, told: Told, time: FakeTime): Promise<void> {
  const after = await Process.on(directory, time)
  const snapshot = await after.journal.read()
  for (const account of [A, B]) {
    const used = snapshot.accounts.get(account)?.used ?? 0n
    expect(used >= (told.answered.get(account) ?? 0n)).toBe(true)
    expect(used <= (told.decided.get(account) ?? 0n)).toBe(true)
  }
  expect(snapshot.burned.size).toBe(0)
  expect(snapshot.openReservations.size).toBe(0)
  await after.journal.close()
}

describe('a device that spends ahead of its disk', () => {
  it('answers charges within a block without a commit, and marks each answer as write-behind', async () => {
    const device = await prepared()
    expect(await device.charge({ [A]: 10n })).toBe('durable')
    await warm(device)
    const before = device.commits
    for (let n = 0; n < 5; n += 1) expect(await device.charge({ [A]: 1n })).toBe('write-behind')
    expect(device.commits).toBe(before)
    await device.flushed()
    expect(await device.used(A)).toBe(device.told.answered.get(A))
  })

  it('answers the charge of a session after a commit, so that a power cut leaves session and charge together', async () => {
    const device = await prepared()
    await warm(device)
    const session = { id: 'one', ended: false, since: 1, document: '{"charged":10}', snapshot: '{}' }
    const charge = entry(device.ledger.lastEntry() + 1, [{ account: A, amount: 10n }])
    const before = await device.used(A)
    expect(await device.ledger.record({ ...charge, session })).toBe('durable')
    const directory = device.copy()
    rmSync(join(directory, 'run'), { recursive: true })
    const after = await Process.on(directory, rebooted(device.time))
    expect((await after.journal.read()).sessions).toMatchObject([session])
    expect(await after.used(A)).toBeGreaterThanOrEqual(before + 10n)
    // A charge beside it is answered ahead of the disk again.
    expect(await device.charge({ [A]: 10n })).toBe('write-behind')
  })

  it('makes longer blocks for an account that is spent faster, up to the most that may be burned', async () => {
    const device = await prepared()
    await warm(device)
    for (let n = 0; n < 400; n += 1) {
      await device.charge({ [A]: 10n })
      device.time.advance(1)
    }
    await device.flushed()
    const { openReservations } = await device.journal.read()
    const used = await device.used(A)
    expect(openReservations.get(A)! - used).toBeGreaterThan(100n)
    expect(openReservations.get(A)! - used).toBeLessThanOrEqual(BLOCK)
  })

  it('that is idle has nothing reserved', async () => {
    const device = await prepared()
    await warm(device)
    expect((await device.journal.read()).openReservations.size).toBe(2)
    device.time.advance(60_000)
    await device.ledger.settled()
    expect((await device.journal.read()).openReservations.size).toBe(0)
    expect(await device.charge({ [A]: 1n })).toBe('durable')
  })

  it('that ends well has nothing reserved and leaves no log', async () => {
    const device = await prepared()
    await warm(device)
    await device.charge({ [A]: 1n })
    await device.ledger.close()
    const next = await Process.on(device.copy(), rebooted(device.time))
    const { accounts, burned } = await next.journal.read()
    expect(accounts.get(A)?.used).toBe(device.told.answered.get(A))
    expect(burned.size).toBe(0)
  })

  it('that is killed at any step loses no answered charge, and counts none twice', async () => {
    const device = await prepared()
    const moments: { step: string; directory: string; told: Told }[] = []
    device.onStep = (step) => moments.push({ step, directory: device.copy(), told: device.copyOfTold() })
    await warm(device)
    for (let n = 0; n < 3; n += 1) await device.charge({ [A]: 3n, [B]: 2n })
    device.time.advance(1_000)
    await device.ledger.settled()
    // More than the block holds: it waits for a commit.
    void device.charge({ [A]: 900n })
    void device.charge({ [A]: 900n })
    await device.charge({ [B]: 1n })
    await device.ledger.close()
    expect(new Set(moments.map(({ step }) => step)).size).toBeGreaterThan(9)
    for (const { directory, told } of moments) await expectExact(directory, told, device.time)
  }, 120_000)

  it('that is killed while it records its first use above the grant restarts with all answered requests', async () => {
    const device = await prepared({ [A]: 1_000n, [B]: 10n ** 9n })
    await warm(device)
    const used = await device.used(A)
    const moments: { directory: string; answered: bigint }[] = []
    const above = 1_005n
    let answered = used
    device.onStep = () => moments.push({ directory: device.copy(), answered })
    // An essential line item while the cloud is away.
    const charge = entry(device.ledger.lastEntry() + 1, [{ account: A, amount: above - used }], {
      allowances: new Map([[A, 100n]]),
    })
    await device.ledger.record(charge)
    answered = above
    device.time.advance(1_000)
    await device.ledger.close()
    expect(new Set(moments.map((each) => each.answered))).toEqual(new Set([used, above]))
    for (const { directory, answered: least } of moments) {
      const again = await Process.on(directory, device.time)
      const found = await again.used(A)
      expect([least, above]).toContain(found)
      expect((await again.journal.read()).burned.size).toBe(0)
      await again.journal.close()
    }
  }, 120_000)

  it('has nothing of a charge that neither its log nor its disk could take, if it is killed then', async () => {
    const device = await prepared()
    await warm(device)
    await device.charge({ [A]: 1n })
    Object.assign(device, { turnFails: true, journalFails: 'ALL' })
    // More than the block holds: it waits for a commit.
    await expect(device.charge({ [A]: 5n * BLOCK })).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await expectAnsweredOnly(device)
  })

  it('takes no more space for its log while the disk refuses repeated charges', async () => {
    const device = await prepared()
    await warm(device)
    await device.charge({ [A]: 1n })
    const files = () => readdirSync(join(device.directory, 'run'))
    device.journalFails = 'NEW'
    // More than the block holds: each waits for a commit.
    const refused = () => expect(device.charge({ [A]: 5n * BLOCK })).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await refused()
    const before = files()
    for (let n = 0; n < 5; n += 1) await refused()
    expect(files()).toEqual(before)
    device.journalFails = 'NO'
    expect(await device.charge({ [A]: 5n * BLOCK })).toBe('durable')
    await expectAnsweredOnly(device)
  })

  it('has after a power cut all answered use, and at most its blocks above it', async () => {
    const device = await prepared()
    await warm(device)
    for (let n = 0; n < 7; n += 1) await device.charge({ [A]: 5n, [B]: 1n })
    const before = await device.journal.read()
    for (const remains of [true, false]) {
      const directory = device.copy()
      if (!remains) rmSync(join(directory, 'run'), { recursive: true })
      const after = await Process.on(directory, rebooted(device.time))
      const { accounts, burned, openReservations, lastEntry, entryHead } = await after.journal.read()
      for (const account of [A, B]) {
        expect(accounts.get(account)?.used).toBe(before.openReservations.get(account))
        expect(accounts.get(account)!.used).toBeGreaterThanOrEqual(device.told.answered.get(account)!)
        expect(burned.get(account)).toBe(accounts.get(account)!.used - before.accounts.get(account)!.used)
        expect(burned.get(account)).toBeLessThanOrEqual(BLOCK)
      }
      expect(openReservations.size).toBe(0)
      expect(after.warned).toHaveLength(1)
      // It is an entry of the ledger like any other, and a second start does nothing more.
      const { document } = await after.journal.seal(SEAL)
      const { entries } = payloadOf(document) as Segment
      expect(entryBody.parse(JSON.parse(entries.bodies.at(-1)!))).toMatchObject({
        kind: 'burn',
        n: lastEntry,
        items: [],
      })
      expect(entries.head).toBe(entryHead)
      await after.journal.close()
      const again = await Process.on(directory, rebooted(device.time))
      expect(await again.journal.read()).toMatchObject({ lastEntry, entryHead })
      expect(again.warned).toEqual([])
      await again.journal.close()
    }
  })

  it('burns also when the log of this boot is damaged or of another history', async () => {
    const device = await prepared()
    await warm(device)
    await device.charge({ [A]: 5n })
    const directory = device.copy()
    rmSync(join(directory, 'run'), { recursive: true })
    const after = await Process.on(directory, device.time)
    expect((await after.journal.read()).burned.get(A)).toBeGreaterThan(0n)
  })

  it('never lowers sealed counters after the seal', async () => {
    const device = await prepared()
    await warm(device)
    await device.charge({ [A]: 5n })
    // The seal holds what the journal has; what is in the log only comes with the next one.
    const { document, seq } = await device.journal.seal(SEAL)
    const sealed = (payloadOf(document) as SegmentWire).counters.find(({ account }) => account === A)
    await device.charge({ [A]: 5n })
    for (const time of [device.time, rebooted(device.time)]) {
      const after = await Process.on(device.copy(), time)
      await after.journal.acknowledge(seq, null, null)
      const next = payloadOf((await after.journal.seal(SEAL)).document) as SegmentWire
      const counter = next.counters.find(({ account }) => account === A)
      expect(BigInt(counter!.used)).toBeGreaterThanOrEqual(BigInt(sealed!.used) + 10n)
      expect(await after.used(A)).toBe(BigInt(counter!.used))
      await after.journal.close()
    }
  })

  it('returns the whole balance with its reservations, and a power cut burns nothing', async () => {
    const device = await prepared({ [A]: 10_000n, [B]: 10_000n })
    await warm(device)
    await device.charge({ [A]: 5n })
    const returns = device.ledger.returnUnused()
    await device.journal.seal({ ...SEAL, returns })
    await device.flushed()
    for (const time of [device.time, rebooted(device.time)]) {
      const after = await Process.on(device.copy(), time)
      const { accounts } = await after.journal.read()
      expect(accounts.get(A)).toMatchObject({ used: device.told.answered.get(A), granted: 10_000n })
      expect(accounts.get(A)!.used + accounts.get(A)!.returned).toBe(10_000n)
      await after.journal.close()
    }
  })

  it('returns recalled tokens with their reservations, and a power cut burns nothing', async () => {
    const device = await prepared({ [A]: 10_000n, [B]: 10_000n })
    await warm(device)
    await device.charge({ [A]: 5n })
    const returns = device.ledger.giveUpSpare(new Map([[A, 0n]]), new Map())
    expect(returns.map(({ account }) => account)).toEqual([A])
    await device.journal.seal({ ...SEAL, returns })
    await device.flushed()
    const after = await Process.on(device.copy(), rebooted(device.time))
    const { accounts } = await after.journal.read()
    expect(accounts.get(A)).toMatchObject({ used: device.told.answered.get(A), granted: 10_000n })
    expect(accounts.get(A)!.used + accounts.get(A)!.returned).toBe(10_000n)
    await after.journal.close()
  })

  it('does not spend through an old block tokens that were returned during its commit and granted again', async () => {
    const device = await prepared({ [A]: 10_000n, [B]: 10_000n })
    await warm(device)
    let returns: readonly Posting[] = []
    device.onStep = (step) => {
      if (step !== 'before a commit') return
      device.onStep = () => undefined
      returns = device.ledger.returnUnused()
    }
    void device.charge({ [A]: 900n })
    await device.ledger.settled()
    const term = 2
    const { seq } = await device.journal.seal({ ...SEAL, returns })
    await device.journal.acknowledge(seq, null, null)
    await grant(device.journal, term, { [A]: 20_000n })
    const terms = { lifetimeMs: 86_400_000, expiresAt: Number.MAX_SAFE_INTEGER, agedMs: 0 }
    const accounts = [{ account: A, granted: 20_000n, exhausted: false, unlimited: false }]
    device.ledger.applyGrant({ ...terms, term, accounts })
    for (let n = 0; n < 5; n += 1) await device.charge({ [A]: 100n })
    const after = await Process.on(device.copy(), rebooted(device.time))
    expect(await after.used(A)).toBeGreaterThanOrEqual(device.told.answered.get(A)!)
  })

  it('has nothing reserved of an account that gets a limit, and loses nothing that was answered before, at any step', async () => {
    const device = await prepared({ [A]: 10n, [B]: 10n ** 9n })
    const terms = { lifetimeMs: 86_400_000, expiresAt: Number.MAX_SAFE_INTEGER, agedMs: 0 }
    const account = { account: A, granted: 10n, exhausted: false }
    const unlimited = { ...terms, term: 2, accounts: [{ ...account, unlimited: true }] }
    await device.journal.acknowledge((await device.journal.seal(SEAL)).seq, unlimited, null)
    device.ledger.applyGrant(unlimited)
    await warm(device)
    const { seq } = await device.journal.seal(SEAL)
    // Answered ahead of the disk, and waiting for a commit: both are above the grant.
    await device.charge({ [A]: 1n })
    expect(device.answers.at(-1)).toBe('write-behind')
    void device.charge({ [A]: 5_000n })

    const moments: { directory: string; told: Told }[] = []
    const look = (): void => void moments.push({ directory: device.copy(), told: device.copyOfTold() })
    device.onStep = look
    look()
    const limited = await device.ledger.prepareGrant({
      ...terms,
      term: 3,
      accounts: [{ ...account, unlimited: false }],
    })
    look()
    expect((await device.journal.read()).openReservations.has(A)).toBe(false)
    expect(() => device.charge({ [A]: 1n })).toThrow('fits the available balance')
    await device.journal.acknowledge(seq, limited, null)
    device.ledger.applyGrant(limited)
    look()
    device.onStep = () => undefined
    expect(moments.length).toBeGreaterThan(4)
    for (const { directory, told } of moments) {
      const again = await Process.on(directory, device.time)
      expect(await again.used(A)).toBeGreaterThanOrEqual(told.answered.get(A)!)
      await again.journal.close()
    }
    const after = await Process.on(moments.at(-1)!.directory, rebooted(device.time))
    expect((await after.journal.read()).burned.has(A)).toBe(false)
    expect(await after.used(A)).toBe(device.told.answered.get(A))
  })

  it('takes no new limit while answered requests are not on disk, and takes it once they are', async () => {
    const device = await prepared({ [A]: 10n, [B]: 10n ** 9n })
    const terms = { lifetimeMs: 86_400_000, expiresAt: Number.MAX_SAFE_INTEGER, agedMs: 0 }
    const account = { account: A, granted: 10n, exhausted: false }
    const unlimited = { ...terms, term: 2, accounts: [{ ...account, unlimited: true }] }
    await device.journal.acknowledge((await device.journal.seal(SEAL)).seq, unlimited, null)
    device.ledger.applyGrant(unlimited)
    await warm(device)
    await device.charge({ [A]: 1n })
    device.journalFails = 'ALL'
    const limit = () => device.ledger.prepareGrant({ ...terms, term: 3, accounts: [{ ...account, unlimited: false }] })
    await expect(limit()).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    expect((await device.journal.read()).accounts.get(A)?.unlimited).toBe(true)
    device.journalFails = 'NO'
    await limit()
    expect((await device.journal.read()).accounts.get(A)).toMatchObject({
      unlimited: false,
      allowance: device.told.answered.get(A)! - 10n,
    })
  })

  it('answers after commits while its log accepts nothing, and marks the answers as durable', async () => {
    const device = await prepared()
    await warm(device)
    device.logFails = true
    expect(await device.charge({ [A]: 1n })).toBe('durable')
    expect(device.ledger.durability).toBe('durable')
    expect(device.logErrors.at(-1)).toBeInstanceOf(Error)
    await device.ledger.settled()
    expect((await device.journal.read()).openReservations.size).toBe(0)
    // Killed now, its log is behind the journal: nothing was reserved, so nothing is burned.
    await expectExact(device.copy(), device.copyOfTold(), device.time)
    device.logFails = false
    device.time.advance(11_000)
    await device.charge({ [A]: 1n })
    await device.charge({ [A]: 1n })
    expect(device.answers.at(-1)).toBe('write-behind')
    expect(device.logErrors.at(-1)).toBeNull()
  })

  it('refuses charges beyond a block on a full disk, keeps answered ones, and continues when there is space', async () => {
    const device = await prepared()
    await warm(device)
    device.journalFails = 'ALL'
    expect(await device.charge({ [A]: 1n })).toBe('write-behind')
    await expect(device.charge({ [A]: 900n })).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await expectExact(device.copy(), { answered: device.told.answered, decided: device.told.answered }, device.time)
    expect(await device.charge({ [A]: 1n })).toBe('write-behind')
    device.journalFails = 'NEW'
    await expect(device.charge({ [A]: 900n })).rejects.toMatchObject({ code: 'NOT_RECORDED' })
    await device.flushed()
    expect(await device.used(A)).toBe(device.told.answered.get(A))
    device.journalFails = 'NO'
    expect(await device.charge({ [A]: 900n })).toBe('durable')
    expect(await device.used(A)).toBe(device.told.answered.get(A))
  })

  it('is exact over any history of charges, kills and power cuts, except for tokens that it reports as burned', async () => {
    const step = fc.oneof(
      {
        weight: 12,
        arbitrary: fc.record({ kind: fc.constant('charge' as const), a: fc.bigInt(1n, 40n), b: fc.boolean() }),
      },
      {
        weight: 4,
        arbitrary: fc.record({ kind: fc.constant('pass' as const), ms: fc.integer({ min: 1, max: 3_000 }) }),
      },
      { weight: 3, arbitrary: fc.record({ kind: fc.constant('wait' as const) }) },
      { weight: 1, arbitrary: fc.record({ kind: fc.constant('seal' as const) }) },
      { weight: 1, arbitrary: fc.record({ kind: fc.constantFrom('kill' as const, 'cut' as const) }) },
    )
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 60 }), async (steps) => {
        let device = await prepared()
        const answered = new Map<string, bigint>()
        const burned = new Map<string, bigint>()
        const decided = new Map<string, bigint>()
        const settle = (): void => {
          for (const [total, part] of [
            [answered, device.told.answered],
            [decided, device.told.decided],
          ] as const) {
            for (const [account, amount] of part) total.set(account, (total.get(account) ?? 0n) + amount)
          }
        }
        for (const each of steps) {
          if (each.kind === 'charge') void device.charge(each.b ? { [A]: each.a, [B]: each.a } : { [A]: each.a })
          else if (each.kind === 'pass') device.time.advance(each.ms)
          else if (each.kind === 'wait') await nextTurn()
          else if (each.kind === 'seal') {
            const { seq } = await device.journal.seal(SEAL)
            await device.journal.acknowledge(seq, null, null)
          } else {
            settle()
            const time = each.kind === 'cut' ? rebooted(device.time) : device.time
            if (each.kind === 'cut') time.bootId = `${device.time.bootId}x`
            const directory = device.copy()
            device.ledger.stop()
            await device.journal.close()
            device = await Process.on(directory, time)
            const found = await device.journal.read()
            for (const [account, amount] of found.burned) burned.set(account, amount)
            for (const account of [A, B]) {
              const used = found.accounts.get(account)?.used ?? 0n
              const lost = used - (answered.get(account) ?? 0n)
              expect(lost >= 0n).toBe(true)
              expect(used <= (decided.get(account) ?? 0n) + (burned.get(account) ?? 0n)).toBe(true)
              // Charges without a response, and what was burned, are known from here on.
              answered.set(account, used)
              decided.set(account, used - (burned.get(account) ?? 0n))
            }
          }
        }
        await device.ledger.settled()
        await device.journal.close()
      }),
      { numRuns: 12 },
    )
  }, 300_000)
})
