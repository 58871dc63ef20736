// One-off access requests that come at the same time, over any store: the books are those of some sequence.
import { randomUUID } from 'node:crypto'
import fc from '../../support/fast-check.ts'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { MICRO_MAX, decimal, wholeTokens } from '../../../src/core/pricing/amount.ts'
import type { Decision } from '../../../src/core/rules/decision.ts'
import { createRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { Policies } from '../../../src/cloud/policy/load-policy.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import { AccessBatcher, type AccessCommand } from '../../../src/cloud/service-api/request-access.ts'
import { IDEMPOTENCY_LIFETIME_MS, forgetAnswers } from '../../../src/cloud/service-api/idempotency-key.ts'
import { setConsumptionLimit } from '../../../src/cloud/service-api/set-consumption-limit.ts'
import { closeSession, openSession, requestInSession } from '../../../src/cloud/sessions/session-life.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import type { LineItemBody } from '../../../src/protocol/service/line-items.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import type { ShortageNotes } from '../../../src/cloud/policy/decide-over-pools.ts'
import { cloudShortages } from '../sync/grants/shortages.ts'
import { listUsage } from '../usage/list-usage.ts'

const NOW = Date.UTC(2026, 4, 6)
const DAY = 86_400_000

interface Ask {
  readonly who: number
  /** Index of its instance. Default: the first. */
  readonly instance?: number
  readonly count: string
  /** Counts of more items of the same request. */
  readonly more?: readonly string[]
}

/** @param open a node over the same store as the others that are open; over an empty one if no other is open */
export function requestAccessSuite(name: string, open: () => Promise<Store>): void {
  describe(name, () => {
    let store: Store
    const nodes: Store[] = []
    beforeEach(async () => {
      store = await another()
      await createRateTable(store, table('1', 'P', '0.7'), NOW)
    })
    afterEach(async () => {
      for (const node of nodes.splice(0)) await node.close()
    })

    const another = async (): Promise<Store> => {
      const node = await open()
      nodes.push(node)
      return node
    }

    const table = (version: string, item: string, rate: string) => ({
      version,
      effectiveFrom: NOW - DAY,
      items: [{ name: item, version: '', rate: decimal(rate) }],
    })

    const handlerOver = (over: Pick<Store, 'transaction'> = store): AccessBatcher =>
      new AccessBatcher({
        ...{ store: over, policies: new Policies({ max: 10, undecidedClock: 'refuse' }) },
        ...{ shortages: cloudShortages(), defer: setImmediate },
      })

    /** Line items A and B of some tokens, with a limit for each requester on the first. */
    const newInstance = async (quantities = [20, 10], change: Partial<LineItemBody['attributes']> = {}) => {
      const id = randomUUID()
      await createInstance(store, { id, shortName: 's', accountId: id }, NOW)
      for (const [index, quantity] of quantities.entries()) {
        const activationId = String.fromCharCode(65 + index)
        const body = {
          activationId,
          state: 'DEPLOYED' as const,
          quantity,
          start: NOW - DAY,
          end: NOW + (100 + index) * DAY,
          attributes: { elastic: true, ...change },
        }
        await mapLineItem(store, id, body, NOW)
      }
      return id
    }

    const limit = (id: string, tokens: number) =>
      setConsumptionLimit(
        store,
        { instanceId: id, lineItemId: 'A' },
        { limit: wholeTokens(tokens), frequency: 'DAILY', nextReset: NOW + DAY },
        NOW,
      )

    const commandOf = (instanceId: string, { who, count, more = [] }: Ask, item = 'P'): AccessCommand => ({
      instanceId,
      correlationId: randomUUID(),
      request: {
        requester: { type: 'user', value: `user ${who}`, dictionary: {} },
        items: [count, ...more].map((each) => ({ name: item, version: '', count: decimal(each) })),
      },
      metaData: [count, ...more].map(() => null),
    })

    /** What was decided, without ids that differ from one instance to another. */
    const gist = ({ items }: Decision): unknown =>
      items.map((item) => {
        if (item.outcome === 'REFUSED') return item.reason
        if (item.outcome === 'NOT_CHARGED') return item.outcome
        return item.shares.map(({ lineItemId, charged }) => `${lineItemId} ${charged}`)
      })

    /** Oldest first. */
    const usageOf = async (instanceId: string): Promise<readonly UsageRecord[]> => {
      const { records } = await store.read((reader) => listUsage(reader, { instanceId, limit: 10_000 }))
      return records.toReversed()
    }

    /** Charged is what the usage records say, in each of which the total continues from the one before; never over the cap. */
    const requireExactBooks = async (instanceId: string): Promise<bigint> => {
      const totals = new Map<string, bigint>()
      let all = 0n
      for (const { activationId, tokens, used } of await usageOf(instanceId)) {
        if (activationId === null) continue
        totals.set(activationId, (totals.get(activationId) ?? 0n) + tokens)
        expect(used).toBe(totals.get(activationId))
        all += tokens
      }
      for (const lineItemId of ['A', 'B']) {
        const pools = await store.read((reader) => reader.accounts.ofLineItem(instanceId, lineItemId))
        for (const { capInForce, charged } of pools) expect(capInForce === null || charged <= capInForce).toBe(true)
        const line = pools.find(({ account }) => account.startsWith('line/'))
        expect(line?.charged ?? 0n).toBe(totals.get(lineItemId) ?? 0n)
      }
      return all
    }

    const counts = fc.constantFrom('1', '0.1', '2.5', '7', '40', '0.0000001')
    const asks = fc.array(
      fc.record({
        ...{ who: fc.integer({ min: 0, max: 3 }), instance: fc.integer({ min: 0, max: 1 }) },
        ...{ count: counts, more: fc.array(counts, { maxLength: 3 }) },
      }),
      { minLength: 1, maxLength: 60 },
    )
    const overdrafts = fc.constantFrom<Partial<LineItemBody['attributes']>>({}, { overdraftType: 'Unlimited' })

    it('decides concurrent requests as if they came one after another', { timeout: 120_000 }, async () => {
      await fc.assert(
        fc.asyncProperty(asks, overdrafts, fc.boolean(), async (list, attributes, limited) => {
          const newPair = async () => [await newInstance([20, 10], attributes), await newInstance([20, 10], attributes)]
          const [together, alone] = [await newPair(), await newPair()]
          if (limited) for (const id of [...together, ...alone]) await limit(id, 9)
          const [crowd, queue] = [handlerOver(), handlerOver()]
          const of = (ids: readonly string[], ask: Ask) => commandOf(ids[ask.instance ?? 0]!, ask)
          const parallel = await Promise.all(list.map((ask) => crowd.request(of(together, ask), NOW)))
          const sequential: Decision[] = []
          for (const ask of list) sequential.push(await queue.request(of(alone, ask), NOW))
          expect(parallel.map(gist)).toEqual(sequential.map(gist))
          const seen = (records: readonly UsageRecord[]) =>
            records.map(({ requesterValue, status, tokens, used }) => [requesterValue, status, tokens, used])
          for (const index of [0, 1]) {
            expect(await requireExactBooks(together[index]!)).toBe(await requireExactBooks(alone[index]!))
            expect(seen(await usageOf(together[index]!))).toEqual(seen(await usageOf(alone[index]!)))
          }
        }),
        { numRuns: 12 },
      )
    })

    it('charges no more than the balance, in one transaction for each batch', async () => {
      const id = await newInstance([10, 3])
      let transactions = 0
      const counted: Pick<Store, 'transaction'> = {
        transaction: (work) => {
          transactions += 1
          return store.transaction(work)
        },
      }
      const batcher = handlerOver(counted)
      const decisions = await Promise.all(
        Array.from({ length: 100 }, (_, who) => batcher.request(commandOf(id, { who, count: '1' }), NOW)),
      )
      // The request that gets the last tokens of A has the rest from B: 13 tokens are 18 times 0.7 and no more.
      expect(decisions.filter(({ items }) => items[0]?.outcome === 'GRANTED')).toHaveLength(18)
      expect(await requireExactBooks(id)).toBe(12_600_000n)
      expect(await usageOf(id)).toHaveLength(101)
      expect(transactions).toBe(2)
    })

    it('counts all requests of a batch as waiting, including those that are already decided', async () => {
      const id = await newInstance()
      const waiting: number[] = []
      const counting: Pick<Store, 'transaction'> = {
        transaction: (work) => store.transaction((tx) => work({ ...tx, serves: (count) => void waiting.push(count) })),
      }
      const batcher = handlerOver(counting)
      const commands = [1, 2, 3].map((who) => ({
        ...commandOf(id, { who, count: '1' }),
        once: { claim: { scope: `${id} ${who}`, requestHash: '', created: NOW }, answerOf: () => '' },
      }))
      const send = () => Promise.all(commands.map((command) => batcher.requestOnce(command, NOW)))
      await send()
      await send()
      expect(waiting).toEqual([3, 3])
    })

    it('charges requests of several instances in one transaction, each from its own tokens', async () => {
      const ids = [await newInstance([5]), await newInstance([10]), await newInstance([2])]
      const calls: string[] = []
      const batcher = handlerOver(watched(store, (name) => calls.push(name)))
      const unknown = randomUUID()
      const outcomes = await Promise.allSettled(
        [...ids, unknown, ...ids, unknown].map((id, who) => batcher.request(commandOf(id, { who, count: '3' }), NOW)),
      )
      expect(
        outcomes.map((each) => (each.status === 'fulfilled' ? gist(each.value) : (each.reason as unknown))),
      ).toEqual([
        [['A 2100000']],
        [['A 2100000']],
        ['INSUFFICIENT_TOKENS'],
        expect.objectContaining({ code: 'NOT_FOUND' }),
        [['A 2100000']],
        [['A 2100000']],
        ['INSUFFICIENT_TOKENS'],
        expect.objectContaining({ code: 'NOT_FOUND' }),
      ])
      expect(calls.filter((name) => name === 'transaction')).toHaveLength(1)
      expect(await Promise.all(ids.map(requireExactBooks))).toEqual([4_200_000n, 4_200_000n, 0n])
    })

    it('fails only the requests of an instance that the store refuses', async () => {
      const [broken, ...others] = [await newInstance(), await newInstance(), await newInstance()]
      const refusing: Pick<Store, 'transaction'> = {
        transaction: (work) =>
          store.transaction(async (tx) => {
            const result = await work(tx)
            if ((await tx.accounts.ofLineItem(broken, 'A')).some(({ charged }) => charged > 0n))
              throw new Error('no row')
            return result
          }),
      }
      const batcher = handlerOver(refusing)
      const ids = [...others, broken, ...others, broken, ...others]
      const outcomes = await Promise.allSettled(
        ids.map((id, who) => batcher.request(commandOf(id, { who, count: '1' }), NOW)),
      )
      expect(outcomes.map(({ status }) => status)).toEqual(ids.map((id) => (id === broken ? 'rejected' : 'fulfilled')))
      expect(await Promise.all([broken, ...others].map(requireExactBooks))).toEqual([0n, 2_100_000n, 2_100_000n])
    })

    it('fails only the requests of an instance whose locks are not free in time', async () => {
      const [stuck, other] = [await newInstance(), await newInstance()]
      const timeout = new CodedError('OVERLOADED', 'waited too long', { details: { sqlState: '55P03' } })
      const locking: Pick<Store, 'transaction'> = {
        transaction: (work) =>
          store.transaction((tx) => {
            const lockSomeShared: typeof tx.policyRevisions.lockSomeShared = async (ids, likely) => {
              if (ids.includes(stuck)) throw timeout
              return tx.policyRevisions.lockSomeShared(ids, likely)
            }
            return work({ ...tx, policyRevisions: { ...tx.policyRevisions, lockSomeShared } })
          }),
      }
      const batcher = handlerOver(locking)
      const ask = (id: string) => batcher.request(commandOf(id, { who: 0, count: '1' }), NOW)
      const together = await Promise.allSettled([ask(stuck), ask(other), ask(stuck)])
      expect(together).toMatchObject([{ reason: timeout }, { status: 'fulfilled' }, { reason: timeout }])
      expect(await Promise.all([requireExactBooks(stuck), requireExactBooks(other)])).toEqual([0n, 700_000n])
    })

    it('adds requests to a batch that waits for its locks', async () => {
      const id = await newInstance([10, 3])
      const policies = new Policies({ max: 10, undecidedClock: 'refuse' })
      const [waits, locked] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
      const lockSomeShared: typeof policies.lockSomeShared = async (...inputs) => {
        const rules = await policies.lockSomeShared(...inputs)
        waits.resolve(undefined)
        await locked.promise
        return rules
      }
      const calls: string[] = []
      const waiting = { lockSomeShared, lastOf: (instanceId: string) => policies.lastOf(instanceId) }
      const over = watched(store, (name) => calls.push(name))
      const batcher = new AccessBatcher({
        ...{ store: over, policies: waiting },
        ...{ shortages: cloudShortages(), defer: setImmediate },
      })
      const first = batcher.request(commandOf(id, { who: 0, count: '1' }), NOW)
      await waits.promise
      const once = { claim: { scope: 's', requestHash: 'h', created: NOW }, answerOf: () => '{}' }
      const others = [1, 2].map((who) => batcher.request(commandOf(id, { who, count: '1' }), NOW))
      const withKey = batcher.requestOnce({ ...commandOf(id, { who: 3, count: '1' }), once }, NOW)
      locked.resolve(undefined)
      const decisions = await Promise.all([first, ...others])
      expect(decisions.map(gist)).toEqual([0, 1, 2].map(() => [['A 700000']]))
      expect(await withKey).toHaveProperty('decision')
      expect(calls.filter((name) => name === 'transaction')).toHaveLength(1)
      expect(await requireExactBooks(id)).toBe(2_800_000n)
    })

    it('charges added requests once if the batch starts over and another node has answered one', async () => {
      const id = await newInstance([10, 3])
      const policies = new Policies({ max: 10, undecidedClock: 'refuse' })
      const once = { claim: { scope: 's', requestHash: 'h', created: NOW }, answerOf: () => 'here' }
      const joined: Promise<unknown>[] = []
      let starts = 0
      const startingOver: Pick<Store, 'transaction'> = {
        transaction: async (work) => {
          starts += 1
          if (starts > 1) return store.transaction(work)
          const rolledBack = new Error('the transaction starts over')
          const undone = store.transaction(async (tx) => {
            await work(tx)
            throw rolledBack
          })
          await expect(undone).rejects.toBe(rolledBack)
          const elsewhere = { ...once, answerOf: () => 'elsewhere' }
          await handlerOver().requestOnce({ ...commandOf(id, { who: 2, count: '1' }), once: elsewhere }, NOW)
          return store.transaction(work)
        },
      }
      const lockSomeShared: typeof policies.lockSomeShared = async (...inputs) => {
        const rules = await policies.lockSomeShared(...inputs)
        if (joined.length === 0) {
          joined.push(batcher.request(commandOf(id, { who: 1, count: '1' }), NOW))
          joined.push(batcher.requestOnce({ ...commandOf(id, { who: 2, count: '1' }), once }, NOW))
        }
        return rules
      }
      const batcher = new AccessBatcher({
        ...{ store: startingOver, policies: { lockSomeShared, lastOf: (each: string) => policies.lastOf(each) } },
        ...{ shortages: cloudShortages(), defer: setImmediate },
      })
      const first = await batcher.request(commandOf(id, { who: 0, count: '1' }), NOW)
      const [second, third] = await Promise.all(joined)
      expect([first, second as Decision].map(gist)).toEqual([[['A 700000']], [['A 700000']]])
      expect(third).toEqual({ answer: 'elsewhere' })
      expect(starts).toBe(1)
      expect(await usageOf(id)).toHaveLength(3)
      expect(await requireExactBooks(id)).toBe(2_100_000n)
    })

    it('adds no request to a waiting batch if its calendar is due', async () => {
      const id = await newInstance([10], { resetFrequency: 'DAILY' })
      const policies = new Policies({ max: 10, undecidedClock: 'refuse' })
      const [waits, locked] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
      let due = NOW
      const lockSomeShared: typeof policies.lockSomeShared = async (...inputs) => {
        const rules = await policies.lockSomeShared(...inputs)
        due = rules.get(id)?.calendarDue ?? NOW
        waits.resolve(undefined)
        await locked.promise
        return rules
      }
      const waiting = { lockSomeShared, lastOf: (instanceId: string) => policies.lastOf(instanceId) }
      const batcher = new AccessBatcher({
        ...{ store, policies: waiting },
        ...{ shortages: cloudShortages(), defer: setImmediate },
      })
      const first = batcher.request(commandOf(id, { who: 0, count: '1' }), NOW)
      await waits.promise
      const second = batcher.request(commandOf(id, { who: 1, count: '1' }), due)
      locked.resolve(undefined)
      expect(gist(await first)).toEqual([['A 700000']])
      expect(due).toBeGreaterThan(NOW)
      expect(gist(await second)).toEqual([['A 700000']])
      expect(await usageOf(id)).toMatchObject([{ used: 700_000n }, { used: 700_000n }])
    })

    it('decides by the current rules after a clock that was ahead has changed them', async () => {
      const ids = [await newInstance([10], { resetFrequency: 'DAILY' }), await newInstance()].sort()
      const batcher = handlerOver()
      const ask = (id: string, who: number) => batcher.request(commandOf(id, { who, count: '1' }), NOW)
      for (const id of ids) await ask(id, 0)
      for (const id of ids) {
        await setConsumptionLimit(
          store,
          { instanceId: id, lineItemId: 'A' },
          { limit: wholeTokens(5), frequency: 'DAILY', nextReset: NOW + 51 * DAY },
          NOW + 50 * DAY,
        )
      }
      const decisions = await Promise.all(ids.map((id) => ask(id, 1)))
      expect(decisions.map(gist)).toEqual(ids.map(() => [['A 700000']]))
      const revisions = await store.read((reader) => Promise.all(ids.map((id) => reader.policyRevisions.get(id))))
      expect(revisions.map((revision) => revision?.bumpedAt)).toEqual([NOW, NOW])
    })

    it('decides a single request in one transaction that reads the rules once and locks once', async () => {
      const id = await newInstance()
      const calls: string[] = []
      const batcher = handlerOver(watched(store, (name) => calls.push(name)))
      await batcher.request(commandOf(id, { who: 1, count: '1' }), NOW)
      calls.length = 0
      await batcher.request(commandOf(id, { who: 1, count: '1' }), NOW)
      expect(calls.filter((name) => name !== 'accounts.open')).toEqual([
        'transaction',
        'policyRevisions.lockSomeShared',
        'accounts.lock',
        'accounts.save',
        'usage.append',
      ])
    })

    /** Runs a request; the calls of the store that are not made for every request. */
    const extraCalls = async (batcher: AccessBatcher, calls: string[], command: AccessCommand) => {
      calls.length = 0
      const decision = await batcher.request(command, NOW)
      const always = ['transaction', 'policyRevisions.lockSomeShared', 'accounts.save', 'usage.append']
      return [gist(decision), calls.filter((name) => !always.includes(name) && name !== 'accounts.open')]
    }

    it('locks once, with the pools of earlier requests as a guess', async () => {
      const id = await newInstance([1, 10])
      const calls: string[] = []
      const batcher = handlerOver(watched(store, (name) => calls.push(name)))
      await batcher.request(commandOf(id, { who: 1, count: '2' }), NOW)
      expect(await extraCalls(batcher, calls, commandOf(id, { who: 1, count: '1' }))).toEqual([
        [['B 700000']],
        ['accounts.lock'],
      ])
    })

    it('forgets the pools of earlier requests after thousands of others', async () => {
      const id = await newInstance([10_000, 10])
      await limit(id, 1)
      const calls: string[] = []
      const batcher = handlerOver(watched(store, (name) => calls.push(name)))
      let last = 1
      const ofOthers = (count: number) =>
        Promise.all(
          Array.from({ length: count }, () => batcher.request(commandOf(id, { who: (last += 1), count: '1' }), NOW)),
        )
      await batcher.request(commandOf(id, { who: 1, count: '2' }), NOW)
      await ofOthers(1_500)
      expect((await extraCalls(batcher, calls, commandOf(id, { who: 1, count: '1' })))[1]).toEqual(['accounts.lock'])
      await ofOthers(1_500)
      const [, extra] = await extraCalls(batcher, calls, commandOf(id, { who: 1, count: '1' }))
      expect((extra as string[]).filter((name) => name === 'accounts.lock')).toHaveLength(2)
    })

    it('reads the pools before it locks them if the transaction starts over', async () => {
      const id = await newInstance([10, 10])
      const calls: string[] = []
      const watchedStore = watched(store, (name) => calls.push(name))
      let starts = 1
      const startingOver: Pick<Store, 'transaction'> = {
        transaction: (work) =>
          watchedStore.transaction(async (tx) => {
            for (; starts > 1; starts -= 1) {
              await work({
                ...tx,
                accounts: { ...tx.accounts, save: async () => undefined },
                usage: { ...tx.usage, append: async () => undefined },
              })
            }
            return work(tx)
          }),
      }
      const batcher = handlerOver(startingOver)
      await batcher.request(commandOf(id, { who: 1, count: '1' }), NOW)
      starts = 2
      const [decided, extra] = await extraCalls(batcher, calls, commandOf(id, { who: 1, count: '1' }))
      expect(decided).toEqual([['A 700000']])
      expect((extra as string[]).filter((name) => name.startsWith('accounts.'))).toEqual([
        'accounts.lock',
        'accounts.get',
        'accounts.lock',
      ])
    })

    it('guesses the pools of the current rules, even just after a change', async () => {
      const id = await newInstance([10])
      const calls: string[] = []
      const batcher = handlerOver(watched(store, (name) => calls.push(name)))
      await batcher.request(commandOf(id, { who: 1, count: '1' }), NOW)
      const earlier = { activationId: 'B', state: 'DEPLOYED' as const, quantity: 10, start: NOW - DAY, end: NOW + DAY }
      await mapLineItem(store, id, { ...earlier, attributes: { elastic: true } }, NOW)
      const [decided, extra] = await extraCalls(batcher, calls, commandOf(id, { who: 1, count: '1' }))
      expect(decided).toEqual([['B 700000']])
      expect((extra as string[]).filter((name) => name === 'accounts.lock')).toHaveLength(1)
    })

    it('needs no further transaction for the others if a request cannot be decided', async () => {
      const id = await newInstance([5, 5])
      const calls: string[] = []
      const batcher = handlerOver(watched(store, (name) => calls.push(name)))
      const command = commandOf(id, { who: 1, count: '1' })
      const items = [{ ...command.request.items[0]!, count: null as never }]
      const outcomes = await Promise.allSettled([
        batcher.request({ ...command, request: { ...command.request, items } }, NOW),
        batcher.request(commandOf(id, { who: 2, count: '1' }), NOW),
      ])
      expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'fulfilled'])
      expect(calls.filter((name) => name === 'transaction')).toHaveLength(1)
    })

    it('reports which requests were short of tokens, so that devices return some', async () => {
      const id = await newInstance([2])
      const noted: unknown[] = []
      const shortages: ShortageNotes = {
        note: async (_tx, _loaded, { requests, pools }) => {
          noted.push(
            requests.map(({ decision }) => gist(decision)),
            [...pools.keys()].length,
          )
        },
      }
      const policies = new Policies({ max: 10, undecidedClock: 'refuse' })
      const batcher = new AccessBatcher({ store, policies, shortages, defer: setImmediate })
      const command = commandOf(id, { who: 1, count: '1' })
      const broken = {
        ...command,
        request: { ...command.request, items: [{ ...command.request.items[0]!, count: null as never }] },
      }
      await Promise.allSettled(
        [command, broken, commandOf(id, { who: 2, count: '9' })].map((each) => batcher.request(each, NOW)),
      )
      expect(noted).toEqual([[[['A 700000']], ['INSUFFICIENT_TOKENS']], 1])
    })

    it('refuses each request separately, and fails only one that cannot be decided', async () => {
      const id = await newInstance([5, 5])
      const batcher = handlerOver()
      const broken = commandOf(id, { who: 1, count: '1' })
      const poisoned = {
        ...broken,
        request: { ...broken.request, items: [{ ...broken.request.items[0]!, count: null as never }] },
      }
      const outcomes = await Promise.allSettled([
        batcher.request(commandOf(id, { who: 0, count: '1' }), NOW),
        batcher.request(poisoned, NOW),
        batcher.request(commandOf(id, { who: 2, count: '1' }, 'unrated'), NOW),
        batcher.request(commandOf(randomUUID(), { who: 0, count: '1' }), NOW),
        batcher.request(commandOf(id, { who: 3, count: '1' }), NOW),
      ])
      expect(outcomes.map((each) => (each.status === 'fulfilled' ? gist(each.value) : each.status))).toEqual([
        [['A 700000']],
        'rejected',
        ['ITEM_NOT_RATED'],
        'rejected',
        [['A 700000']],
      ])
      expect(outcomes[3]).toMatchObject({ reason: { code: 'NOT_FOUND' } })
      expect(await requireExactBooks(id)).toBe(1_400_000n)
    })

    it.each([new Error('a row that cannot be held'), new CodedError('BAD_REQUEST', 'a text that cannot be stored')])(
      'that the store refuses take nothing of the others with them: %s',
      async (error) => {
        const id = await newInstance([50, 5])
        const refusing: Pick<Store, 'transaction'> = {
          transaction: (work) =>
            store.transaction(async (tx) =>
              work({
                ...tx,
                usage: {
                  ...tx.usage,
                  append: async (records) => {
                    if (records.some(({ metaData }) => metaData === 'poison')) throw error
                    await tx.usage.append(records)
                  },
                },
              }),
            ),
        }
        const batcher = handlerOver(refusing)
        const outcomes = await Promise.allSettled(
          Array.from({ length: 20 }, (_, who) =>
            batcher.request(
              { ...commandOf(id, { who, count: '1' }), metaData: [who % 7 === 3 ? 'poison' : null] },
              NOW,
            ),
          ),
        )
        const failed = outcomes.flatMap(({ status }, index) => (status === 'rejected' ? [index] : []))
        expect(failed).toEqual([3, 10, 17])
        expect(await requireExactBooks(id)).toBe(17n * 700_000n)
      },
    )

    it('charges nothing for an interrupted batch, and does not decide it again', async () => {
      const id = await newInstance()
      let runs = 0
      const cut: Pick<Store, 'transaction'> = {
        transaction: (work) =>
          store.transaction(async (tx) => {
            runs += 1
            return work({
              ...tx,
              usage: {
                ...tx.usage,
                append: async () => {
                  throw new CodedError('OUTCOME_UNKNOWN', 'the connection was lost')
                },
              },
            })
          }),
      }
      const batcher = handlerOver(cut)
      const outcomes = await Promise.allSettled(
        Array.from({ length: 9 }, (_, who) => batcher.request(commandOf(id, { who, count: '1' }), NOW)),
      )
      for (const outcome of outcomes) expect(outcome).toMatchObject({ reason: { code: 'OUTCOME_UNKNOWN' } })
      expect(runs).toBe(1)
      expect(await requireExactBooks(id)).toBe(0n)
    })

    it('charges no more than the balance on two nodes', async () => {
      const id = await newInstance([30, 10])
      await limit(id, 25)
      const batchers = [handlerOver(), handlerOver(await another())] as const
      const decisions = await Promise.all(
        Array.from({ length: 160 }, (_, index) =>
          batchers[index % 2]!.request(commandOf(id, { who: index % 3, count: '1' }), NOW),
        ),
      )
      const granted = decisions.flatMap(({ items }) => items.filter(({ outcome }) => outcome === 'GRANTED'))
      expect(granted).toHaveLength(57)
      expect(await requireExactBooks(id)).toBe(39_900_000n)
    })

    it('charges once for each idempotency key on several nodes', async () => {
      const id = await newInstance([1_000, 10])
      const nodes = [handlerOver(), handlerOver(await another()), handlerOver(await another())] as const
      const keys = 12
      const answers = new Map<string, Set<string>>()
      const send = async (index: number): Promise<void> => {
        const key = index % keys
        const command = commandOf(id, { who: key, count: '1' })
        const claim = { scope: `${id} ${key}`, requestHash: String(key), created: NOW }
        const answerOf = (): string => command.correlationId
        const node = nodes[Math.floor(index / keys) % nodes.length]!
        try {
          const result = await node.requestOnce({ ...command, once: { claim, answerOf } }, NOW)
          const answer = 'answer' in result ? result.answer : command.correlationId
          answers.set(claim.scope, (answers.get(claim.scope) ?? new Set()).add(answer))
        } catch (error) {
          expect(error).toMatchObject({ code: 'IDEMPOTENCY_IN_PROGRESS' })
        }
      }
      await Promise.all(Array.from({ length: keys * 9 }, (_, index) => send(index)))
      expect([...answers.values()].map(({ size }) => size)).toEqual(Array(keys).fill(1))
      expect(await usageOf(id)).toHaveLength(keys)
      expect(await requireExactBooks(id)).toBe(BigInt(keys) * 700_000n)

      const command = commandOf(id, { who: 0, count: '1' })
      const other = { claim: { scope: `${id} 0`, requestHash: 'other', created: NOW }, answerOf: () => '' }
      await expect(nodes[0].requestOnce({ ...command, once: other }, NOW)).rejects.toMatchObject({
        code: 'IDEMPOTENCY_CONFLICT',
      })
    })

    it('deletes expired idempotency keys in parts', async () => {
      const answer = { requestHash: 'h', answer: '{}', created: NOW }
      await store.transaction(async (tx) => {
        for (let n = 0; n < 1_200; n += 1) await tx.idempotency.add({ ...answer, scope: `old ${n}` })
        await tx.idempotency.add({ ...answer, scope: 'new', created: NOW + 1 })
      })
      const rounds: boolean[] = []
      do rounds.push(await forgetAnswers(store, NOW + IDEMPOTENCY_LIFETIME_MS))
      while (rounds.at(-1) === true)
      expect(rounds).toEqual([true, true, false])
      const scopes = ['old 0', 'old 1199', 'new']
      const left = await store.transaction((tx) => tx.idempotency.find(scopes))
      expect([...left.keys()]).toEqual(['new'])
      await forgetAnswers(store, NOW + 2 * IDEMPOTENCY_LIFETIME_MS)
    })

    it('decides by the rules in force while these change', async () => {
      const id = await newInstance([1_000, 10])
      const batcher = handlerOver()
      const requests = Array.from({ length: 60 }, async (_, who) => {
        if (who % 20 === 10) await setQuantity(id, 5 + who)
        return batcher.request(commandOf(id, { who, count: '1' }), NOW)
      })
      await Promise.all(requests)
      await requireExactBooks(id)
    })

    const setQuantity = (id: string, quantity: number) => {
      const body = { activationId: 'A', state: 'DEPLOYED' as const, quantity, start: NOW - DAY, end: NOW + 100 * DAY }
      return mapLineItem(store, id, { ...body, attributes: { elastic: true } }, NOW)
    }

    describe('requests with implausible amounts', () => {
      const HUGE = '1000000000'
      const unlimited = { overdraftType: 'Unlimited' as const }

      it('are refused, also where a line item has no limit', async () => {
        await createRateTable(store, { ...table('2', 'Huge', HUGE), effectiveFrom: NOW - DAY / 2 }, NOW)
        const id = await newInstance([1], unlimited)
        const batcher = handlerOver()
        const outcomes = await Promise.all(
          ['1', '1', '1e30', '0.02', '1.0000001', '999999999'].map((count, who) =>
            batcher.request(commandOf(id, { who, count }, 'Huge'), NOW),
          ),
        )
        expect(outcomes.map(gist)).toEqual([
          [['A 1000000000000000']],
          [['A 1000000000000000']],
          ['COUNTER_FULL'],
          [['A 20000000000000']],
          ['COUNTER_FULL'],
          ['COUNTER_FULL'],
        ])
        expect(await requireExactBooks(id)).toBeLessThanOrEqual(MICRO_MAX)
      })

      it('are refused, also together in one request', async () => {
        await createRateTable(store, { ...table('2', 'Huge', HUGE), effectiveFrom: NOW - DAY / 2 }, NOW)
        const id = await newInstance([1], unlimited)
        const command = commandOf(id, { who: 0, count: '1' }, 'Huge')
        const items = Array.from({ length: 5 }, () => command.request.items[0]!)
        const request = { ...command, request: { ...command.request, items }, metaData: items.map(() => null) }
        const [first, ...others] = (await handlerOver().request(request, NOW)).items
        expect(first?.outcome).toBe('GRANTED')
        for (const item of others) expect(item).toMatchObject({ outcome: 'REFUSED', reason: 'COUNTER_FULL' })
        await requireExactBooks(id)
      })

      it(
        'whatever rates, counts and pools meet, are decided, and what is stored fits',
        { timeout: 120_000 },
        async () => {
          const whole = Number(MICRO_MAX / 1_000_000n)
          const rates = [
            '0.0000001',
            '0.000001',
            '1',
            '3.3',
            '9223372036854.775807',
            '9223372036854.775808',
            '1e15',
            '1e38',
          ]
          for (const [index, rate] of rates.entries()) {
            const version = `r${index}`
            await createRateTable(
              store,
              { ...table(version, rate, rate), series: rate, effectiveFrom: NOW - DAY / 2 },
              NOW,
            )
          }
          const counts = fc.constantFrom(
            '0.0000001',
            '1',
            '2.5',
            '999999999',
            '9223372036854.775807',
            '9223372036854775807',
            '1e38',
          )
          const pools = fc.constantFrom<Partial<LineItemBody['attributes']>>(
            {},
            { overdraftType: 'Unlimited' },
            { overdraftType: 'Number', overdraftLimit: 1 },
          )
          await fc.assert(
            fc.asyncProperty(
              fc.constantFrom(...rates),
              fc.constantFrom(0, 1, whole - 1),
              pools,
              fc.boolean(),
              fc.array(
                fc.record({ counts: fc.array(counts, { minLength: 1, maxLength: 4 }), inSession: fc.boolean() }),
                {
                  minLength: 1,
                  maxLength: 8,
                },
              ),
              async (rate, quantity, attributes, limited, list) => {
                const id = await newInstance([quantity, 1], { ...attributes, rateTableSeries: rate })
                if (limited) await limit(id, whole)
                const policies = new Policies({ max: 10, undecidedClock: 'refuse' })
                const batcher = new AccessBatcher({
                  ...{ store, policies, shortages: cloudShortages() },
                  defer: setImmediate,
                })
                const parts = {
                  store,
                  policies,
                  shortages: cloudShortages(),
                  newId: randomUUID,
                  sessionIntervalMs: null,
                  trustsClock: () => true,
                }
                await Promise.all(
                  list.map(async ({ counts: [count = '1', ...more], inSession }, who) => {
                    const command = commandOf(id, { who: who % 2, count, more }, rate)
                    if (!inSession) return batcher.request(command, NOW)
                    const { id: sessionId } = await openSession(
                      parts,
                      { instanceId: id, deviceId: null, opening: null },
                      NOW,
                    )
                    await requestInSession(parts, { ...command, sessionId, rollbackOnDeny: true }, () => undefined, NOW)
                    return closeSession(parts, sessionId, () => undefined, NOW + 1_000)
                  }),
                )
                await requireExactBooks(id)
              },
            ),
            { numRuns: 60 },
          )
        },
      )
    })
  })
}

/** Tells of each call of the store, as `noun.verb`. */
function watched(store: Store, tell: (name: string) => void): Pick<Store, 'transaction'> {
  return {
    transaction: (work) => {
      tell('transaction')
      return store.transaction(async (tx) =>
        work(
          Object.fromEntries(
            Object.entries(tx).map(([noun, verbs]) => [
              noun,
              typeof verbs === 'function'
                ? verbs
                : Object.fromEntries(
                    Object.entries(verbs as Record<string, unknown>).map(([verb, call]) => [
                      verb,
                      typeof call !== 'function'
                        ? call
                        : (...given: unknown[]): unknown => {
                            tell(`${noun}.${verb}`)
                            return (call as (...all: unknown[]) => unknown)(...given)
                          },
                    ]),
                  ),
            ]),
          ) as unknown as Transaction,
        ),
      )
    },
  }
}
