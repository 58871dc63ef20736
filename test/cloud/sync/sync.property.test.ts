// Random lives of a few devices against the real use cases over a real store: messages are lost, repeated and late, devices
// are wiped, copied and restored, caps move, the twin fails in mid-transaction. An auditor with arithmetic of its own looks
// at the books after every step.
import { randomUUID } from 'node:crypto'
import fc from '../../support/fast-check.ts'
import { describe, expect, it } from 'vitest'
import { type AccountId, actionAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import type { Reader } from '../../../src/cloud/storage/store.ts'
import { outstanding, available } from '../../../src/core/accounts/grant.ts'
import type { Action } from '../../../src/core/rules/policy.ts'
import type { EntryBodyWire } from '../../../src/protocol/edge/sync.ts'
import type { SyncDeps } from '../../../src/cloud/sync/merge-context.ts'
import { SyncBatcher } from '../../../src/cloud/sync/sync-batcher.ts'
import { sync } from '../../../src/cloud/sync/sync.ts'
import type { MergeResult } from '../../../src/cloud/sync/merge-context.ts'
import { DAY, INSTANCE, Twin } from './twin.ts'
import { TestDevice, topUpRequest } from './test-device.ts'
import { listUsage } from '../usage/list-usage.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const action: Action = {
  id: '5b1f43d9-4f44-4f05-9df5-0d87e43c0a11',
  name: null,
  conditionId: null,
  effect: 'ALLOW',
  allocation: 400n,
}
const ACTION = actionAccount(INSTANCE, 'ACT-1', action.id)
const ACCOUNTS = [LINE, ACTION]

type Step =
  | { readonly do: 'spend' | 'refund'; readonly device: number; readonly amount: bigint }
  | {
      readonly do: 'send'
      readonly device: number
      readonly wanted: bigint
      readonly atLeast: bigint
      readonly entriesMax: number
    }
  | { readonly do: 'giveBack' | 'wipe' | 'stray attach' | 'final' | 'copy'; readonly device: number }
  | { readonly do: 'deliver' | 'deliver twice' | 'lose' | 'fail'; readonly message: number }
  | { readonly do: 'answer' | 'lose answer'; readonly message: number }
  | { readonly do: 'cap'; readonly amount: bigint }
  | { readonly do: 'charge'; readonly amount: bigint }
  | { readonly do: 'wait'; readonly ms: number }

const device = fc.nat(2)
const message = fc.nat(9)
const amount = fc.bigInt(1n, 60n)

const honestSteps = fc.oneof(
  { weight: 8, arbitrary: fc.record({ do: fc.constant('spend' as const), device, amount }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('refund' as const), device, amount }) },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('send' as const),
      device,
      wanted: fc.bigInt(0n, 150n),
      atLeast: fc.constantFrom(0n, 0n, 20n, 100n),
      entriesMax: fc.constantFrom(1, 2, Infinity),
    }),
  },
  {
    weight: 9,
    arbitrary: fc.record({
      do: fc.constantFrom('deliver' as const, 'deliver' as const, 'deliver twice' as const),
      message,
    }),
  },
  { weight: 9, arbitrary: fc.record({ do: fc.constant('answer' as const), message }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('lose' as const, 'fail' as const), message }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('lose answer' as const), message }) },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constantFrom('giveBack' as const, 'stray attach' as const, 'final' as const),
      device,
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('cap' as const), amount: fc.bigInt(0n, 800n) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('charge' as const), amount }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('wait' as const), ms: fc.nat(2 * DAY) }) },
)
const wiping = { weight: 1, arbitrary: fc.record({ do: fc.constant('wipe' as const), device }) }
const copying = { weight: 1, arbitrary: fc.record({ do: fc.constant('copy' as const), device }) }
const many = (arbitrary: fc.Arbitrary<Step>): fc.Arbitrary<Step[]> =>
  fc.array(arbitrary, { minLength: 20, maxLength: 80, size: 'max' })

interface Message {
  readonly device: TestDevice
  readonly document: string
}

async function accountsOf(reader: Reader): Promise<readonly AccountId[]> {
  return (await reader.accounts.ofInstance(INSTANCE)).map(({ account }) => account)
}

class Simulation {
  readonly twin: Twin
  readonly devices: TestDevice[]
  /** On their way to the twin, and back. */
  readonly up: Message[] = []
  readonly down: { readonly device: TestDevice; readonly answer: string }[] = []
  /** The first answer to each segment that was merged, by its text. */
  readonly answers = new Map<string, string>()
  /** What lives that are over have really spent, net, and whether everything of it has been heard of. */
  readonly past: { readonly net: Map<string, bigint>; readonly heard: boolean }[] = []
  copied = false
  directly = 0n

  constructor(twin: Twin, devices: TestDevice[]) {
    this.twin = twin
    this.devices = devices
  }

  static async open(): Promise<Simulation> {
    const twin = await Twin.open()
    await twin.setLineItem('ACT-1', { quantity: 500n, actions: [action] })
    const devices = [await TestDevice.join(twin), await TestDevice.join(twin), await TestDevice.join(twin)]
    return new Simulation(twin, devices)
  }

  async run(step: Step): Promise<void> {
    switch (step.do) {
      case 'spend': {
        const device = this.#device(step)
        if (!device.frozen) device.charge({ lineItemId: 'ACT-1', accounts: ACCOUNTS, amount: step.amount })
        return
      }
      case 'refund': {
        const device = this.#device(step)
        if (device.frozen) return
        const { used, refunded } = device.counters(LINE)
        const amount = step.amount < used - refunded ? step.amount : used - refunded
        if (amount > 0n) device.refund({ lineItemId: 'ACT-1', accounts: ACCOUNTS, amount })
        return
      }
      case 'giveBack': {
        const device = this.#device(step)
        if (!device.frozen) for (const account of ACCOUNTS) device.giveBack(account)
        return
      }
      case 'send': {
        const device = this.#device(step)
        if (device.state.closed) return
        const topUpRequests = ACCOUNTS.map((account) => topUpRequest(account, step.wanted, step.atLeast))
        // A fenced device stops, and says what is left with its final segment.
        const sealed = await device.seal(topUpRequests, device.state.fenced, step.entriesMax)
        this.up.push({ device, document: sealed.document })
        return
      }
      case 'final': {
        const device = this.#device(step)
        if (device.state.closed) await this.#attach(device)
        return
      }
      case 'stray attach':
        await this.twin.attach(this.#device(step).id, randomUUID())
        return
      case 'wipe': {
        const device = this.#device(step)
        this.past.push({ net: device.state.net, heard: false })
        await this.#attach(device, false)
        return
      }
      case 'copy':
        this.copied = true
        if (this.devices.length < 5) this.devices.push(this.#device(step).copy())
        return
      case 'lose':
        this.#take(this.up, step)
        return
      case 'lose answer':
        this.#take(this.down, step)
        return
      case 'deliver':
      case 'deliver twice': {
        const message = this.#take(this.up, step)
        if (message === undefined) return
        await this.deliver(message)
        if (step.do === 'deliver twice') this.up.push(message)
        return
      }
      case 'fail': {
        const message = this.#take(this.up, step)
        if (message !== undefined) await this.failInTheMiddle(message)
        return
      }
      case 'answer': {
        const message = this.#take(this.down, step)
        await message?.device.accept(message.answer)
        return
      }
      case 'cap':
        await this.twin.setLineItem('ACT-1', { quantity: step.amount, actions: [action] })
        return
      case 'charge':
        if (await this.twin.chargeDirectly(LINE, step.amount)) this.directly += step.amount
        return
      case 'wait':
        this.twin.time += step.ms
        return
    }
  }

  async deliver({ device, document }: Message): Promise<MergeResult> {
    const taken = await this.twin.sync(device.id, document)
    if (!taken.accepted) throw new Error(`an honest segment was refused: ${taken.problem}`)
    const { answer } = taken
    const first = this.answers.get(document)
    const outcome = JSON.parse(Buffer.from(answer.split('.')[1] ?? '', 'base64url').toString()) as { outcome: string }
    if (outcome.outcome === 'MERGED') {
      if (first !== undefined) expect(answer).toBe(first)
      this.answers.set(document, answer)
    }
    this.down.push({ device, answer })
    return taken
  }

  /** The twin stops before its commit: nothing of the segment may remain. */
  async failInTheMiddle({ device, document }: Message): Promise<void> {
    const before = await this.#dump()
    const deps: SyncDeps = {
      store: this.twin.store,
      keys: this.twin.keys,
      now: this.twin.now,
      present: this.twin.present,
      terms: this.twin.terms,
      policies: this.twin.policies,
      trustsClock: () => true,
      heartbeat: async () => {
        throw new Error('the power fails')
      },
    }
    const failing = sync(
      { ...deps, syncBatcher: new SyncBatcher(deps, setImmediate) },
      await this.twin.device(device.id),
      document,
    )
    await failing.catch((error: unknown) => {
      if (!(error instanceof Error) || error.message !== 'the power fails') throw error
    })
    const merged = await failing.then(
      () => true,
      () => false,
    )
    if (!merged) expect(await this.#dump()).toEqual(before)
  }

  /** The books agree with themselves, and with what the devices really did. */
  async audit(): Promise<void> {
    const { pools, records, entries, usage, broken } = await this.twin.store.read(async (reader) => ({
      pools: await reader.accounts.ofInstance(INSTANCE),
      records: await reader.edge.deviceAccounts.ofAccounts(await accountsOf(reader)),
      entries: (
        await Promise.all(
          [...new Set(this.devices.map(({ id }) => id))].map(async (id) => {
            const { epoch } = (await reader.edge.devices.get(id))!
            const all = []
            for (let n = 1; n <= epoch; n++) all.push(...(await reader.edge.entries.of(id, n)))
            return all
          }),
        )
      ).flat(),
      usage: (await listUsage(reader, { limit: 100_000 })).records,
      broken: await Promise.all(
        [...new Set(this.devices.map(({ id }) => id))].map((id) => reader.edge.evidence.of(id, 100)),
      ),
    }))

    for (const pool of pools) {
      const mine = records.filter(({ record }) => record.account === pool.account).map(({ record }) => record)
      const billed = sum(mine.map((record) => record.used - record.refunded + record.branchUsed))
      const held = sum(
        mine.map((record) => {
          const spent = record.used - record.refunded + record.branchUsed
          return outstanding(record) > spent ? outstanding(record) : spent
        }),
      )
      // The totals are the sums.
      expect(pool.billedByDevices).toBe(billed)
      expect(pool.grantedOut).toBe(held)
      // Never oversold.
      expect(pool.charged + pool.grantedOut <= (pool.capInForce ?? 0n)).toBe(true)
      if (!this.copied) {
        const target = pool.capTarget ?? 0n
        const out = pool.charged + pool.grantedOut
        expect(pool.capInForce).toBe(target > out ? target : out)
      }
      // The bill is the sum of the entries, each once.
      expect(billed).toBe(sum(entries.flatMap(({ text }) => netOf(text, pool.account))))
      // What was really spent is covered by what is out.
      if (!this.copied) expect(this.#spent(pool.account) <= pool.grantedOut).toBe(true)
      for (const record of mine) expect(available(record) >= 0n).toBe(true)
    }
    const line = pools.find(({ account }) => account === LINE)
    if (line !== undefined) {
      expect(sum(usage.map(({ tokens }) => tokens))).toBe(line.billedByDevices)
      expect(line.charged).toBe(this.directly)
    }
    // No device is accused without a copy.
    if (!this.copied) expect(broken.flat()).toEqual([])
    expect(broken.flat().filter(({ kind }) => kind === 'REJECTED')).toEqual([])
  }

  /** The network heals: every device says all that it has to say. */
  async drain(): Promise<void> {
    this.up.length = 0
    this.down.length = 0
    for (const device of this.devices) {
      for (let tries = 0; tries < 10; tries++) {
        const { state } = device
        const done = state.unacknowledged === null && state.sealedEntry === state.lastEntry && state.changed.size === 0
        if (done || state.closed) break
        const { answer } = (await this.deliver({
          device,
          document: (await device.seal([], state.fenced)).document,
        })) as {
          answer: string
        }
        await device.accept(answer)
      }
      expect(device.state.unacknowledged).toBeNull()
    }
  }

  /** After everybody was heard: billed is what was spent, to the micro-token. */
  async auditAfterQuiet(): Promise<void> {
    if (this.copied || this.past.some(({ heard }) => !heard)) return
    for (const account of ACCOUNTS) {
      const pool = (await this.twin.store.read((reader) => reader.accounts.get([account]))).get(account)
      expect(pool?.billedByDevices ?? 0n).toBe(this.#spent(account))
    }
  }

  #spent(account: string): bigint {
    return sum(
      [...this.devices.map(({ state }) => state.net), ...this.past.map(({ net }) => net)].map(
        (net) => net.get(account) ?? 0n,
      ),
    )
  }

  async #attach(device: TestDevice, heard = true): Promise<void> {
    if (heard) this.past.push({ net: device.state.net, heard: true })
    await device.attach()
  }

  async #dump(): Promise<unknown> {
    return this.twin.store.read(async (reader) => ({
      pools: await reader.accounts.ofInstance(INSTANCE),
      records: await reader.edge.deviceAccounts.ofAccounts(await accountsOf(reader)),
      devices: await reader.edge.devices.find({ instanceId: INSTANCE }, 0, 10),
      usage: await listUsage(reader, { limit: 100_000 }),
      evidence: await Promise.all(this.devices.map(({ id }) => reader.edge.evidence.of(id, 100))),
    }))
  }

  #device({ device }: { readonly device: number }): TestDevice {
    return this.devices[device % this.devices.length]!
  }

  #take<T>(queue: T[], { message }: { readonly message: number }): T | undefined {
    return queue.length === 0 ? undefined : queue.splice(message % queue.length, 1)[0]
  }
}

function sum(amounts: readonly bigint[]): bigint {
  return amounts.reduce((total, amount) => total + amount, 0n)
}

function netOf(body: string, account: string): bigint[] {
  const { kind, postings } = JSON.parse(body) as EntryBodyWire
  return postings
    .filter((posting) => posting.account === account)
    .map((posting) => (kind === 'access' ? BigInt(posting.amount) : -BigInt(posting.amount)))
}

/** Only these can change the books. */
const AT_THE_TWIN: ReadonlySet<Step['do']> = new Set([
  'deliver',
  'deliver twice',
  'fail',
  'cap',
  'charge',
  'stray attach',
  'wipe',
])

async function live(steps: readonly Step[]): Promise<void> {
  const simulation = await Simulation.open()
  try {
    for (const step of steps) {
      await simulation.run(step)
      if (AT_THE_TWIN.has(step.do)) await simulation.audit()
    }
    await simulation.drain()
    await simulation.audit()
    await simulation.auditAfterQuiet()
  } finally {
    await simulation.twin[Symbol.asyncDispose]()
  }
}

const runs = { numRuns: Number(process.env['TALLYGATE_PROPERTY_RUNS'] ?? 10) }

describe('any faults on the way', () => {
  it(
    'honest devices are billed exactly what they spent, and the pool is never oversold',
    { timeout: 120_000 },
    async () => {
      await fc.assert(fc.asyncProperty(many(honestSteps), live), runs)
    },
  )

  it('a wiped device costs its outstanding tokens, and nothing is sold twice', { timeout: 120_000 }, async () => {
    await fc.assert(fc.asyncProperty(many(fc.oneof({ weight: 30, arbitrary: honestSteps }, wiping)), live), runs)
  })

  it('copies of a device are billed both, each entry once', { timeout: 120_000 }, async () => {
    await fc.assert(fc.asyncProperty(many(fc.oneof({ weight: 30, arbitrary: honestSteps }, copying)), live), runs)
  })
})
