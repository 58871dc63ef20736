// Whatever programs, administrators and time do to a twin, in any order and at once: its books agree with each other. The
// lines of the bill add up to the pools, no pool is over its cap, and no session gets back more than it paid.
import { randomUUID } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { openSqliteStore } from '../../../src/cloud/storage/sqlite/store.ts'
import { replaceActions } from '../../../src/cloud/service-api/change-actions.ts'
import { createRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { deleteLineItem } from '../../../src/cloud/service-api/delete-line-item.ts'
import { commandSession } from '../../../src/cloud/sessions/command-session.ts'
import { Policies } from '../../../src/cloud/policy/load-policy.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { used } from '../../../src/cloud/accounts/pool.ts'
import { renewDuePolicy } from '../../../src/cloud/policy/bump-policy-revision.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import { AccessBatcher } from '../../../src/cloud/service-api/request-access.ts'
import {
  type SessionDeps,
  closeSession,
  heartbeat,
  openSession,
  requestInSession,
  sweepNextSession,
} from '../../../src/cloud/sessions/session-life.ts'
import { removeConsumptionLimit, setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { parseAccount } from '../../../src/core/accounts/account.ts'
import { decimal, wholeTokens } from '../../../src/core/pricing/amount.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import fc from '../../support/fast-check.ts'
import { cloudShortages } from '../sync/grants/shortages.ts'
import { listUsage } from '../usage/list-usage.ts'

const NOON = Date.UTC(2026, 0, 31, 12)
const HOUR = 3_600_000
const DAY = 24 * HOUR
const ITEMS = ['A', 'B'] as const
type Item = (typeof ITEMS)[number]

type Operation =
  | { kind: 'session'; session: number; who: number; counts: string[]; keep: boolean }
  | { kind: 'access'; who: number; count: string }
  | { kind: 'touch'; session: number; touch: 'halt' | 'beat' | 'close' | 'LOCK' | 'UNLOCK' | 'TERMINATE' }
  | { kind: 'pass'; ms: number; sweep: boolean }
  | { kind: 'open' }
  | { kind: 'map'; item: Item; line: Line }
  | { kind: 'delete'; item: Item }
  | { kind: 'limit'; item: Item; tokens: number; frequency: 'DAILY' | 'MONTHLY'; reset: number }
  | { kind: 'actions'; item: Item; allocation: number }
  | { kind: 'rate'; rate: string; in: number }

interface Line {
  readonly state: 'DEPLOYED' | 'INACTIVE' | 'OBSOLETE'
  readonly quantity: number
  readonly overdraft: number | 'Unlimited' | null
  readonly reset: 'NONE' | 'DAILY' | 'WEEKLY' | 'MONTHLY'
  readonly startsIn: number
}

const session = fc.nat(4)
const who = fc.nat(1)
const item = fc.constantFrom(...ITEMS)
const line: fc.Arbitrary<Line> = fc.record({
  state: fc.constantFrom('DEPLOYED', 'DEPLOYED', 'DEPLOYED', 'INACTIVE', 'OBSOLETE'),
  quantity: fc.constantFrom(0, 3, 10, 25, 40),
  overdraft: fc.constantFrom<Line['overdraft'][]>(null, 5, 'Unlimited'),
  reset: fc.constantFrom('NONE', 'DAILY', 'WEEKLY', 'MONTHLY'),
  startsIn: fc.constantFrom(0, 0, DAY, -DAY),
})
const kind = <K extends Operation['kind']>(name: K) => fc.constant(name)
const operation: fc.Arbitrary<Operation> = fc.oneof(
  {
    weight: 10,
    arbitrary: fc.record({
      kind: kind('session'),
      session,
      who,
      counts: fc.array(fc.constantFrom('1', '3.3', '0.0000007', '7', '12'), { minLength: 1, maxLength: 2 }),
      keep: fc.boolean(),
    }),
  },
  { weight: 6, arbitrary: fc.record({ kind: kind('access'), who, count: fc.constantFrom('1', '2.7', '6') }) },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: kind('touch'),
      session,
      touch: fc.constantFrom('halt', 'beat', 'close', 'LOCK', 'UNLOCK', 'TERMINATE'),
    }),
  },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: kind('pass'),
      ms: fc.constantFrom(1, 60_000, 29 * 60_000, HOUR, 13 * HOUR, DAY, 31 * DAY),
      sweep: fc.boolean(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: kind('open') }) },
  { weight: 3, arbitrary: fc.record({ kind: kind('map'), item, line }) },
  { weight: 1, arbitrary: fc.record({ kind: kind('delete'), item }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: kind('limit'),
      item,
      tokens: fc.constantFrom(0, 4, 9),
      frequency: fc.constantFrom('DAILY', 'MONTHLY'),
      reset: fc.constantFrom(HOUR, DAY),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: kind('actions'), item, allocation: fc.constantFrom(0, 5, 15) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: kind('rate'),
      rate: fc.constantFrom('0', '0.3', '1', '2.000001'),
      in: fc.constantFrom(0, HOUR),
    }),
  },
)

/** A twin's use cases over a store, with a clock that stands still in between, and what went wrong in them. */
class Books {
  readonly instanceId = randomUUID()
  /** Anything but an answer that has a code. */
  readonly wrong: unknown[] = []
  readonly #store: Store
  readonly #deps: SessionDeps
  readonly #batcher: AccessBatcher
  readonly #sessions: string[] = []
  readonly #pending: Promise<unknown>[] = []
  readonly #atOnce: boolean
  #now = NOON
  #tables = 0

  constructor(store: Store, atOnce: boolean) {
    const policies = new Policies({ max: 10, undecidedClock: 'refuse' })
    this.#store = store
    this.#atOnce = atOnce
    this.#deps = {
      store,
      policies,
      shortages: cloudShortages(),
      newId: randomUUID,
      sessionIntervalMs: HOUR,
      trustsClock: () => true,
    }
    this.#batcher = new AccessBatcher({ store, policies, shortages: cloudShortages(), defer: setImmediate })
  }

  async open(): Promise<void> {
    const { instanceId } = this
    await this.#rate('1', -DAY)
    await createInstance(this.#store, { id: instanceId, shortName: 's', accountId: 'customer' }, this.#now)
    const line: Line = { state: 'DEPLOYED', quantity: 25, overdraft: null, reset: 'NONE', startsIn: 0 }
    await this.#map('A', line)
    await this.#map('B', { ...line, quantity: 10, overdraft: 5, reset: 'DAILY' })
    for (let n = 0; n < 2; n += 1) await this.#openSession()
  }

  async run(each: Operation): Promise<void> {
    if (each.kind === 'pass') {
      this.#now += each.ms
      if (!each.sweep) return
      await this.done()
      await this.#watch(this.#sweep())
      return
    }
    const running = this.#watch(this.#start(each))
    if (this.#atOnce && each.kind !== 'open') this.#pending.push(running)
    else await running
  }

  /** All that is under way. */
  async done(): Promise<void> {
    await Promise.all(this.#pending.splice(0))
  }

  async #watch(work: Promise<unknown>): Promise<void> {
    try {
      await work
    } catch (error) {
      if (!(error instanceof CodedError)) this.wrong.push(error)
    }
  }

  async #start(each: Exclude<Operation, { kind: 'pass' }>): Promise<unknown> {
    const [store, now, { instanceId }] = [this.#store, this.#now, this]
    switch (each.kind) {
      case 'open':
        return this.#openSession()
      case 'session':
        return this.#ask(each.session, each.who, each.counts, each.keep)
      case 'touch':
        return this.#touch(each.session, each.touch)
      case 'access': {
        const order = { instanceId, correlationId: randomUUID(), metaData: [null] }
        return this.#batcher.request({ ...order, request: requestOf(each.who, [each.count]) }, now)
      }
      case 'map':
        return this.#map(each.item, each.line)
      case 'delete':
        return deleteLineItem(store, instanceId, each.item, now)
      case 'limit': {
        const place = { instanceId, lineItemId: each.item }
        if (each.tokens === 0) return removeConsumptionLimit(store, place, now)
        const order = { limit: wholeTokens(each.tokens), frequency: each.frequency, nextReset: now + each.reset }
        return setConsumptionLimit(store, place, order, now)
      }
      case 'actions': {
        const allow = { action: 'ALLOW', allocation: wholeTokens(each.allocation) } as const
        const place = { instanceId, lineItemId: each.item }
        return replaceActions({ store, newId: randomUUID }, place, each.allocation === 0 ? [] : [allow], now)
      }
      case 'rate':
        return this.#rate(each.rate, each.in)
    }
  }

  async #openSession(): Promise<void> {
    const order = { instanceId: this.instanceId, deviceId: null, opening: null }
    this.#sessions.push((await openSession(this.#deps, order, this.#now)).id)
  }

  #ask(session: number, who: number, counts: readonly string[], rollbackOnDeny: boolean): Promise<unknown> {
    const order = { sessionId: this.#session(session), correlationId: randomUUID(), rollbackOnDeny }
    const asked = { request: requestOf(who, counts), metaData: counts.map(() => null) }
    return requestInSession(this.#deps, { ...order, ...asked }, anybody, this.#now)
  }

  #touch(session: number, touch: Extract<Operation, { kind: 'touch' }>['touch']): Promise<unknown> {
    const id = this.#session(session)
    switch (touch) {
      case 'halt':
        return this.#ask(session, 0, [], false)
      case 'beat':
        return heartbeat(this.#deps, id, anybody, this.#now)
      case 'close':
        return closeSession(this.#deps, id, anybody, this.#now)
      default:
        return commandSession(this.#deps, { id, command: touch }, this.#now)
    }
  }

  #session(n: number): string {
    return this.#sessions[n % this.#sessions.length] ?? ''
  }

  #map(activationId: Item, { state, quantity, overdraft, reset, startsIn }: Line): Promise<unknown> {
    const overdrafts =
      overdraft === null
        ? {}
        : overdraft === 'Unlimited'
          ? { overdraftType: overdraft }
          : { overdraftType: 'Number' as const, overdraftLimit: overdraft }
    const body = {
      ...{ activationId, state, quantity },
      start: NOON - 3 * DAY + startsIn,
      end: NOON + (activationId === 'A' ? 300 : 400) * DAY,
      attributes: { elastic: true, resetFrequency: reset, ...overdrafts },
    }
    return mapLineItem(this.#store, this.instanceId, body, this.#now)
  }

  #rate(rate: string, inMs: number): Promise<unknown> {
    this.#tables += 1
    const items = [{ name: 'Print', version: '', rate: decimal(rate) }]
    const table = { version: `v${this.#tables}`, effectiveFrom: this.#now + inMs, items }
    return createRateTable(this.#store, table, this.#now)
  }

  async #sweep(): Promise<void> {
    const at = this.#now
    while (await sweepNextSession(this.#deps, at)) continue
    while (await this.#store.transaction((tx) => renewDuePolicy(tx, at))) continue
  }
}

function anybody(): void {
  // Every session belongs to the caller.
}

const requestOf = (who: number, counts: readonly string[]) => ({
  requester: { type: 'user', value: `user ${who}`, dictionary: {} },
  items: counts.map((count) => ({ name: 'Print', version: '', count: decimal(count) })),
})

async function expectBooksToAgree(store: Store, instanceId: string, records: readonly UsageRecord[]): Promise<void> {
  const billed = new Map<string, bigint>()
  for (const { activationId, tokens } of records) {
    if (activationId !== null) billed.set(activationId, (billed.get(activationId) ?? 0n) + tokens)
  }
  for (const id of ITEMS) {
    const pools = await store.read((reader) => reader.accounts.ofLineItem(instanceId, id))
    const lines = pools.filter(({ account }) => parseAccount(account)?.kind === 'line')
    expect(
      lines.reduce((sum, pool) => sum + used(pool), 0n),
      id,
    ).toBe(billed.get(id) ?? 0n)
    for (const { charged, grantedOut, capInForce } of pools) {
      expect(charged).toBeGreaterThanOrEqual(0n)
      if (capInForce !== null) expect(charged + grantedOut).toBeLessThanOrEqual(capInForce)
    }
  }
}

/** @param records oldest first */
function expectRefundsWithinCharges(records: readonly UsageRecord[]): void {
  const operations = new Map<string, { sessionId: string; isRefund: boolean; tokens: bigint }>()
  for (const { correlationId, source, operation, tokens } of records) {
    if (source.kind !== 'session') continue
    const { sessionId } = source
    const before = operations.get(correlationId)?.tokens ?? 0n
    operations.set(correlationId, { sessionId, isRefund: operation === 'REFUND', tokens: before + tokens })
  }
  const paid = new Map<string, bigint>()
  for (const { sessionId, isRefund, tokens } of operations.values()) {
    if (isRefund) expect(-tokens).toBeLessThanOrEqual(paid.get(sessionId) ?? 0n)
    if (isRefund || tokens > 0n) paid.set(sessionId, isRefund ? 0n : tokens)
  }
}

it('the books of a twin agree after any requests', { timeout: 120_000 }, async () => {
  const property = fc.asyncProperty(
    fc.array(operation, { minLength: 5, maxLength: 50 }),
    fc.boolean(),
    async (operations, atOnce) => {
      const folder = await mkdtemp(join(tmpdir(), 'tallygate-books-'))
      const store = openSqliteStore({ path: join(folder, 'twin.db'), check: false, onBroken: () => undefined })
      try {
        const books = new Books(store, atOnce)
        await books.open()
        for (const each of operations) await books.run(each)
        await books.done()
        expect(books.wrong).toEqual([])
        const { instanceId } = books
        const { records } = await store.read((reader) => listUsage(reader, { instanceId, limit: 100_000 }))
        await expectBooksToAgree(store, instanceId, records)
        expectRefundsWithinCharges(records.toReversed())
      } finally {
        await store.close()
        await rm(folder, { recursive: true })
      }
    },
  )
  await fc.assert(property, { numRuns: 25 })
})
