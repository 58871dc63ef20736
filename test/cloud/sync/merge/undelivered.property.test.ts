// An epoch that was given up, delivered later in whatever parts, while rules change and time passes.
import { describe, expect, it } from 'vitest'
import { type AccountId, actionAccount, lineAccount } from '../../../../src/core/accounts/account.ts'
import type { Reader } from '../../../../src/cloud/storage/store.ts'
import { deleteLineItem } from '../../../../src/cloud/service-api/delete-line-item.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import fc from '../../../support/fast-check.ts'
import { type Successor, successorOf } from '../successor.ts'
import { DAY, INSTANCE, Twin } from '../twin.ts'
import { TestDevice, topUpRequest } from '../test-device.ts'
import { listUsage } from '../../usage/list-usage.ts'

const LINE = lineAccount(INSTANCE, 'ACT-1', 0)
const ACTION = actionAccount(INSTANCE, 'ACT-1', 'a')
const OTHER = lineAccount(INSTANCE, 'ACT-2', 0)
const ACCOUNTS = [LINE, ACTION, OTHER]
const actions = [{ id: 'a', name: null, effect: 'ALLOW', conditionId: null, allocation: 1_000n }] as const
const first = { lineItemId: 'ACT-1', accounts: [LINE, ACTION] }
const second = { lineItemId: 'ACT-2', accounts: [OTHER] }

type Use = { readonly do: 'charge' | 'refund'; readonly onFirst: boolean; readonly amount: bigint }
type Change =
  | { readonly do: 'cap'; readonly amount: bigint }
  | { readonly do: 'delete' | 'settle as used' | 'settle as released' | 'another device' }
type Delivery =
  | { readonly do: 'deliver'; readonly back: number; readonly count: number; readonly twice: boolean }
  | { readonly do: 'late' | 'begin anew' }

const use = fc.record({
  do: fc.constantFrom('charge' as const, 'charge' as const, 'refund' as const),
  onFirst: fc.boolean(),
  amount: fc.bigInt(1n, 60n),
})
const change: fc.Arbitrary<Change> = fc.oneof(
  fc.record({ do: fc.constant('cap' as const), amount: fc.bigInt(0n, 1_200n) }),
  fc.record({
    do: fc.constantFrom('delete' as const, 'settle as used' as const, 'settle as released' as const, 'another device' as const), // prettier-ignore
  }),
)
const delivery: fc.Arbitrary<Delivery> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('deliver' as const),
      back: fc.nat(4),
      count: fc.integer({ min: 1, max: 5 }),
      twice: fc.boolean(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('late' as const, 'begin anew' as const) }) },
)
const history = fc.record({
  told: fc.array(use, { maxLength: 6 }),
  untold: fc.array(use, { maxLength: 12 }),
  /** Entries of the segment with which the epoch ends, and whether the cloud has refused it or could not read it. */
  sealed: fc.integer({ min: 1, max: 6 }),
  refused: fc.boolean(),
  after: fc.array(fc.oneof({ weight: 2, arbitrary: delivery }, { weight: 1, arbitrary: change }), { maxLength: 16 }),
})

async function accountsOf(reader: Reader): Promise<readonly AccountId[]> {
  return (await reader.accounts.ofInstance(INSTANCE)).map(({ account }) => account)
}

class Life {
  readonly twin: Twin
  readonly device: TestDevice
  #successor: Successor | undefined
  /** Entries that the later epoch has delivered. */
  #delivered: number
  #isDeleted = false

  constructor(twin: Twin, device: TestDevice) {
    this.twin = twin
    this.device = device
    this.#delivered = device.state.sealedEntry
  }

  static async begin(): Promise<Life> {
    const twin = await Twin.open()
    await twin.setLineItem('ACT-1', { quantity: 1_000n, actions })
    await twin.setLineItem('ACT-2', { quantity: 1_000n })
    const device = await TestDevice.join(twin)
    await device.sync(ACCOUNTS.map((account) => topUpRequest(account, 600n)))
    return new Life(twin, device)
  }

  use({ do: what, onFirst, amount }: Use): void {
    const on = onFirst ? first : second
    if (what === 'charge') {
      this.device.charge({ ...on, amount })
      return
    }
    const { used, refunded } = this.device.counters(on.accounts[0]!)
    const back = amount < used - refunded ? amount : used - refunded
    if (back > 0n) this.device.refund({ ...on, amount: back })
  }

  async tell(): Promise<void> {
    await this.device.sync()
    this.#delivered = this.device.state.sealedEntry
  }

  /** The segment that ends the epoch, as an honest device sealed it. */
  async giveUp(count: number, refused: boolean): Promise<SegmentWire> {
    const honest = this.device.payload([], false, count)
    if (refused && honest.counters.length > 0) {
      const lie = { ...honest, counters: honest.counters.map((each) => ({ ...each, returned: '9999' })) }
      expect(await this.#send(this.device, lie)).toMatchObject({ accepted: false })
    }
    return honest
  }

  async run(step: Change | Delivery, late: SegmentWire): Promise<void> {
    const { twin, device } = this
    switch (step.do) {
      case 'cap':
        if (!this.#isDeleted) await twin.setLineItem('ACT-1', { quantity: step.amount, actions: [{ ...actions[0], allocation: step.amount / 2n }] }) // prettier-ignore
        return
      case 'delete':
        if (this.#isDeleted) return
        this.#isDeleted = true
        await twin.setLineItem('ACT-1', { quantity: 100n, actions, state: 'OBSOLETE' })
        await deleteLineItem(twin.store, INSTANCE, 'ACT-1', twin.time)
        return
      case 'settle as used':
      case 'settle as released':
        twin.time += 31 * DAY
        await twin.settle(step.do === 'settle as used' ? 'CHARGED' : 'RELEASED')
        return
      case 'another device': {
        const other = await TestDevice.join(twin)
        await other.sync([topUpRequest(OTHER, 100n, 100n)])
        return
      }
      case 'late':
        expect(await this.#send(device, late)).toMatchObject({ accepted: true, unbilled: null })
        return
      case 'begin anew':
        this.#successor = await successorOf(this.#successor?.next ?? device)
        return
      case 'deliver': {
        const from = Math.max(late.entries.first, this.#delivered + 1 - step.back)
        const to = Math.min(from + step.count - 1, device.state.lastEntry)
        if (to < from) return
        for (let times = 0; times < (step.twice ? 2 : 1); times += 1)
          await this.#deliver(device.undeliveredRange(from, to, true))
        this.#delivered = Math.max(this.#delivered, to)
      }
    }
  }

  /** What is left, to the end. */
  async finish(): Promise<void> {
    await this.#deliver(this.device.undeliveredRange(this.#delivered + 1, this.device.state.lastEntry, true))
  }

  /** The totals are sums, and the lines of the bill come to them. */
  async audit(): Promise<void> {
    const { pools, records, lines } = await this.twin.store.read(async (reader) => ({
      pools: await reader.accounts.ofInstance(INSTANCE),
      records: await reader.edge.deviceAccounts.ofAccounts(await accountsOf(reader)),
      lines: (await listUsage(reader, { limit: 10_000 })).records,
    }))
    for (const { account, charged, grantedOut, billedByDevices, capInForce } of pools) {
      let [out, billed] = [0n, 0n]
      for (const { record } of records.filter((each) => each.record.account === account)) {
        const spent = record.used - record.refunded + record.branchUsed
        const left = record.granted - record.returned - record.released
        out += left > spent ? left : spent
        billed += spent + record.presumed
      }
      expect([account, grantedOut, billedByDevices]).toEqual([account, out, billed])
      expect(charged + grantedOut <= (capInForce ?? 0n)).toBe(true)
    }
    for (const [account, lineItemId] of [
      [LINE, 'ACT-1'],
      [OTHER, 'ACT-2'],
    ] as const) {
      // prettier-ignore
      const total = lines
        .filter(({ activationId }) => activationId === lineItemId)
        .reduce((sum, { tokens }) => sum + tokens, 0n)
      expect(pools.find((pool) => pool.account === account)?.billedByDevices ?? 0n).toBe(total)
    }
  }

  async #deliver(undeliveredRange: SegmentWire['undeliveredRange']): Promise<void> {
    this.#successor ??= await successorOf(this.device)
    expect(await this.#successor.deliver(undeliveredRange)).not.toHaveProperty('unbilled')
  }

  async #send(device: TestDevice, payload: SegmentWire) {
    return this.twin.sync(device.id, (await device.sealAs(payload)).document)
  }
}

const runs = { numRuns: Number(process.env['TALLYGATE_PROPERTY_RUNS'] ?? 25) }

describe('an epoch that was given up', () => {
  it(
    'with one writer is billed what it used and closed, whatever is delivered how often and whatever changes meanwhile',
    { timeout: 120_000 },
    async () => {
      await fc.assert(
        fc.asyncProperty(history, async ({ told, untold, sealed, refused, after }) => {
          const life = await Life.begin()
          const { twin, device } = life
          try {
            for (const each of told) life.use(each)
            await life.tell()
            for (const each of untold) life.use(each)
            const late = await life.giveUp(sealed, refused)
            for (const step of after) {
              await life.run(step, late)
              await life.audit()
            }
            await life.finish()
            await life.audit()
            twin.time += 31 * DAY
            await twin.settle()
            await life.audit()
            const records = await twin.store.read((reader) => reader.edge.deviceAccounts.ofDevice(device.id))
            for (const account of ACCOUNTS) {
              const mine = records.filter((record) => record.account === account)
              const billed = mine.reduce((sum, { used, refunded, branchUsed, presumed }) => sum + used - refunded + branchUsed + presumed, 0n) // prettier-ignore
              expect([account, billed]).toEqual([account, device.state.net.get(account) ?? 0n])
              expect(mine).toMatchObject([{ branchUsed: 0n, presumed: 0n, released: 0n }])
            }
            const epoch = await twin.store.read((reader) => reader.edge.epochs.get(device.id, 1))
            expect(epoch).toMatchObject({ status: 'CLOSED', forked: false })
            const evidence = await twin.store.read((reader) => reader.edge.evidence.of(device.id, 10))
            expect(evidence.filter(({ kind }) => kind !== 'REJECTED')).toEqual([])
          } finally {
            await twin[Symbol.asyncDispose]()
          }
        }),
        runs,
      )
    },
  )

  it('with two writers is billed each charge of both once', { timeout: 120_000 }, async () => {
    const writer = fc.record({ uses: fc.array(use, { maxLength: 6 }), after: fc.array(delivery, { maxLength: 8 }) })
    await fc.assert(
      fc.asyncProperty(fc.array(use, { maxLength: 4 }), writer, writer, async (common, ...writers) => {
        const life = await Life.begin()
        const { twin, device } = life
        try {
          for (const each of common) life.use(each)
          const lives = [life, new Life(twin, device.copy())]
          for (const [index, { uses }] of writers.entries()) for (const each of uses) lives[index]!.use(each)
          const lates = await Promise.all(lives.map((each) => each.giveUp(Infinity, false)))
          for (let n = 0; n < 8; n += 1) {
            for (const [index, { after }] of writers.entries()) {
              const step = after[n]
              if (step !== undefined) await lives[index]!.run(step, lates[index]!)
              await life.audit()
            }
          }
          for (const each of lives) await each.finish()
          await life.audit()
          const entries = new Map(
            lives.flatMap((each) => each.device.state.entries.map(({ body }) => [body, JSON.parse(body) as Body])),
          )
          const records = await twin.store.read((reader) => reader.edge.deviceAccounts.ofDevice(device.id))
          for (const account of ACCOUNTS) {
            let [charged, refunded] = [0n, 0n]
            for (const { kind, postings } of entries.values()) {
              const amount = postings.find((posting) => posting.account === account)?.amount ?? '0'
              if (kind === 'refund') refunded += BigInt(amount)
              else charged += BigInt(amount)
            }
            const mine = records.filter((record) => record.account === account && record.epoch === 1)
            expect(mine.reduce((sum, { used, branchUsed }) => sum + used + branchUsed, 0n)).toBe(charged)
            expect(mine.reduce((sum, record) => sum + record.refunded, 0n) <= refunded).toBe(true)
          }
        } finally {
          await twin[Symbol.asyncDispose]()
        }
      }),
      runs,
    )
  })
})

interface Body {
  readonly kind: string
  readonly postings: readonly { readonly account: string; readonly amount: string }[]
}
