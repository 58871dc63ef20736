// What every implementation of the store port must do. An implementation runs it in a few lines: see sqlite.test.ts.
import fc from '../../support/fast-check.ts'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import {
  ACCOUNT_ID_MAX,
  LINE_ITEM_ENCODED_MAX,
  REQUESTER_ENCODED_MAX,
  actionAccount,
  limitAccount,
  lineAccount,
} from '../../../src/core/accounts/account.ts'
import { MICRO_MAX, decimal, wholeTokens } from '../../../src/core/pricing/amount.ts'
import { type Session, newSession, step } from '../../../src/core/sessions/session.ts'
import { type SigningKeyFile, claimSigningKey } from '../../../src/cloud/devices/claim-signing-key.ts'
import type { Device, DeviceFilter } from '../../../src/cloud/storage/device-records.ts'
import { charge, grantOut, newPool, retarget } from '../../../src/cloud/accounts/pool.ts'
import {
  type ConditionNode,
  type Instance,
  type KeyRecord,
  type LineItemRecord,
  type UsageRecord,
  type UsageRange,
  USAGE_ROW_POSITIONS,
} from '../../../src/cloud/storage/records.ts'
import type { Store, Transaction } from '../../../src/cloud/storage/store.ts'
import { listUsage } from '../usage/list-usage.ts'
import { usageIn } from '../usage/list-usage.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'

export const instance = (id: string, change: Partial<Instance> = {}): Instance => ({
  id,
  shortName: `instance ${id}`,
  accountId: 'customer',
  defaultInstance: false,
  created: 1,
  modified: 2,
  ...change,
})

export const device = (id: string): Device => ({
  id,
  name: null,
  publicKey: { kty: 'OKP', crv: 'Ed25519', x: id },
  thumbprint: `key of ${id}`,
  instanceIds: [],
  enrolledAt: 1,
  keySince: 1,
  nextKey: null,
  replaceKey: null,
  revokedAt: null,
  revokedBy: null,
  suspension: null,
  lastSyncAt: null,
  software: null,
  epoch: 0,
  backlog: 0,
  appliedPolicies: [],
  releaseRequested: false,
  labels: {},
  clock: null,
})

const lineItem = (id: string, change: Partial<LineItemRecord> = {}): LineItemRecord => ({
  instanceId: INSTANCE,
  id,
  state: 'DEPLOYED',
  quantity: wholeTokens(100),
  start: 10,
  end: 253_402_300_799_999,
  elastic: true,
  rateTableSeries: null,
  overdraftType: null,
  overdraftLimit: null,
  resetFrequency: null,
  given: { end: '9223372036854775807' },
  calendar: { frequency: 'NONE', first: 0, firstAt: 10, next: 1 },
  created: 1,
  modified: 1,
  deleted: null,
  ...change,
})

export const usage = (n: number, change: Partial<UsageRecord> = {}): UsageRecord => ({
  correlationId: `correlation-${n}`,
  usageTime: n,
  writeTime: n + 1,
  requesterType: 'user',
  requesterValue: 'LisaBarry',
  accountId: 'customer',
  instanceId: INSTANCE,
  activationId: 'A',
  quantity: wholeTokens(100),
  used: 30_500_000n,
  item: 'Print',
  version: '1.0',
  count: decimal('0.1'),
  operation: 'REQUEST',
  status: 'GRANTED',
  tokens: 30_500_000n,
  source: { kind: 'one-off' },
  metaData: '{"a":1}',
  ...change,
})

/** @param open a store that is empty; the suite closes it */
export function storeSuite(name: string, open: () => Promise<Store>): void {
  describe(name, () => {
    let store: Store
    beforeEach(async () => {
      store = await open()
      await store.transaction(async (tx) => {
        await tx.instances.insert(instance(INSTANCE))
        await tx.policyRevisions.insert({
          instanceId: INSTANCE,
          revision: 1,
          bumpedAt: 5,
          listedAt: 5,
          calendarDue: null,
          engine: 2,
        })
      })
    })
    afterEach(() => store.close())

    describe('amounts', () => {
      const counters = ['charged', 'grantedOut', 'billedByDevices', 'capTarget', 'capInForce'] as const
      const beyond = fc.oneof(
        fc.bigInt({ min: MICRO_MAX + 1n, max: 2n ** 200n }),
        fc.bigInt({ min: -(2n ** 200n), max: -(2n ** 63n) - 1n }),
      )

      it('that no counter can hold are the fault of the request, and nothing is written', async () => {
        const account = lineAccount(INSTANCE, 'A', 0)
        await store.transaction((tx) => tx.accounts.open([{ account, cap: 50n }]))
        const before = await store.read((reader) => reader.accounts.get([account]))
        await fc.assert(
          fc.asyncProperty(fc.constantFrom(...counters), beyond, async (counter, amount) => {
            const pool = { ...newPool(account, 50n), [counter]: amount }
            for (const work of [
              (tx: Transaction) => tx.accounts.save([pool]),
              (tx: Transaction) => tx.accounts.open([{ account: lineAccount(INSTANCE, 'B', 0), cap: amount }]),
              (tx: Transaction) => tx.usage.append([usage(1), usage(2, { tokens: amount }), usage(3)]),
              (tx: Transaction) => tx.usage.append([usage(1, { used: amount })]),
              (tx: Transaction) => tx.lineItems.insert(lineItem('C', { quantity: amount })),
            ]) {
              const written = store.transaction(async (tx) => {
                await tx.accounts.save([charge(newPool(account, 50n), 7n)])
                await work(tx)
              })
              await expect(written).rejects.toMatchObject({ code: 'BAD_REQUEST', httpStatus: 400 })
            }
          }),
          { numRuns: 20 },
        )
        expect(await store.read((reader) => reader.accounts.get([account]))).toEqual(before)
        expect((await store.read((reader) => listUsage(reader, { limit: 9 }))).records).toEqual([])
      })

      it('are held up to the largest that there is', async () => {
        const account = lineAccount(INSTANCE, 'A', 0)
        const most = charge(newPool(account, MICRO_MAX), MICRO_MAX)
        await store.transaction(async (tx) => {
          await tx.accounts.save([most])
          await tx.usage.append([usage(1, { tokens: -MICRO_MAX, used: MICRO_MAX })])
        })
        expect((await store.read((reader) => reader.accounts.get([account]))).get(account)).toEqual(most)
        const { records } = await store.read((reader) => listUsage(reader, { limit: 9 }))
        expect(records).toMatchObject([{ tokens: -MICRO_MAX, used: MICRO_MAX }])
      })
    })

    describe('texts', () => {
      const withNul = fc.tuple(fc.string(), fc.string()).map((around) => around.join('\u0000'))

      it('with NUL are the fault of the request, whether they are written or searched for', async () => {
        await fc.assert(
          fc.asyncProperty(withNul, async (text) => {
            for (const work of [
              () => store.transaction((tx) => tx.instances.insert(instance('b', { shortName: text }))),
              () => store.transaction((tx) => tx.edge.devices.insert({ ...device('d'), software: text })),
              () => store.read((reader) => reader.instances.get(text)),
              () => store.read((reader) => reader.edge.devices.find({ search: text }, 0, 1)),
              () => store.read((reader) => reader.lineItems.get(INSTANCE, text)),
            ]) {
              await expect(work()).rejects.toMatchObject({ code: 'BAD_REQUEST', httpStatus: 400 })
            }
          }),
          { numRuns: 20 },
        )
        expect(await store.read((reader) => reader.instances.list(0, 10))).toEqual([instance(INSTANCE)])
      })
    })

    describe('transactions', () => {
      it('leave nothing behind when the work throws', async () => {
        const failing = store.transaction(async (tx) => {
          await tx.instances.insert(instance('other'))
          throw new Error('on purpose')
        })
        await expect(failing).rejects.toThrow('on purpose')
        expect(await store.read((reader) => reader.instances.get('other'))).toBeUndefined()
      })

      it('do not see each other half done', async () => {
        const account = lineAccount(INSTANCE, 'A', 0)
        await store.transaction((tx) => tx.accounts.open([{ account, cap: 50n }]))
        const chargeOne = () =>
          store.transaction(async (tx) => {
            const pool = (await tx.accounts.lock([account])).get(account)
            await Promise.resolve()
            await tx.accounts.save([charge(pool!, 1n)])
          })
        await Promise.all(Array.from({ length: 50 }, chargeOne))
        const pool = (await store.read((reader) => reader.accounts.get([account]))).get(account)
        expect(pool?.charged).toBe(50n)
      })

      it('are not seen by a reader before they are committed', async () => {
        const gate = Promise.withResolvers<undefined>()
        const inside = Promise.withResolvers<undefined>()
        const writing = store.transaction(async (tx) => {
          await tx.instances.insert(instance('other'))
          inside.resolve(undefined)
          await gate.promise
        })
        await inside.promise
        expect(await store.read((reader) => reader.instances.get('other'))).toBeUndefined()
        gate.resolve(undefined)
        await writing
        expect(await store.read((reader) => reader.instances.get('other'))).toBeDefined()
      })

      it('go on after one that failed', async () => {
        await expect(store.transaction((tx) => tx.instances.insert(instance(INSTANCE)))).rejects.toThrow()
        await store.transaction((tx) => tx.instances.insert(instance('other')))
        expect(await store.read((reader) => reader.instances.get('other'))).toEqual(instance('other'))
      })
    })

    describe('instances', () => {
      it('come back as they were stored, in the order of creation', async () => {
        const [second, third] = [instance('b', { defaultInstance: true }), instance('a', { accountId: 'ä/😀' })]
        await store.transaction((tx) => tx.instances.insert(second))
        await store.transaction((tx) => tx.instances.insert(third))
        await store.read(async (reader) => {
          expect(await reader.instances.get('a')).toEqual(third)
          expect(await reader.instances.list(0, 10)).toEqual([instance(INSTANCE), second, third])
          expect(await reader.instances.list(1, 1)).toEqual([second])
          expect(await reader.instances.defaultOf('customer')).toEqual(second)
          expect(await reader.instances.defaultOf('nobody')).toBeUndefined()
        })
      })

      it('are the default of an account at most once', async () => {
        await store.transaction((tx) => tx.instances.insert(instance('b', { defaultInstance: true })))
        const another = store.transaction((tx) => tx.instances.insert(instance('c', { defaultInstance: true })))
        await expect(another).rejects.toThrow()
      })
    })

    describe('line items', () => {
      it('keep every field, the largest amounts included', async () => {
        const stored = lineItem('A', {
          quantity: 2n ** 63n - 1n,
          rateTableSeries: '',
          overdraftType: 'Number',
          overdraftLimit: 0n,
          resetFrequency: 'MONTHLY',
          calendar: { frequency: 'MONTHLY', first: 1_000, firstAt: 99, next: 2_000 },
          elastic: false,
        })
        await store.transaction((tx) => tx.lineItems.insert(stored))
        expect(await store.read((reader) => reader.lineItems.get(INSTANCE, 'A'))).toEqual(stored)
        const changed = lineItem('A', { state: 'OBSOLETE', modified: 7 })
        await store.transaction((tx) => tx.lineItems.update(changed))
        expect(await store.read((reader) => reader.lineItems.get(INSTANCE, 'A'))).toEqual(changed)
      })

      it('are not listed once they are deleted', async () => {
        await store.transaction(async (tx) => {
          await tx.lineItems.insert(lineItem('B'))
          await tx.lineItems.insert(lineItem('A'))
          await tx.lineItems.insert(lineItem('C', { deleted: 9 }))
        })
        const listed = await store.read((reader) => reader.lineItems.list(INSTANCE))
        expect(listed.map(({ id }) => id)).toEqual(['B', 'A'])
        expect(await store.read((reader) => reader.lineItems.get(INSTANCE, 'C'))).toMatchObject({ deleted: 9 })
      })
    })

    describe('rules', () => {
      const node = (id: string, name: string | null = null): ConditionNode => ({
        id,
        name,
        operator: 'AND',
        conditions: [
          { id: `${id}-1`, name: null, operator: 'IN', property: 'department', values: ['sales', 'ä"\\'] },
          {
            id: `${id}-2`,
            name: 'inner',
            operator: 'NOT',
            condition: { id: `${id}-3`, name: null, operator: 'IN', property: 'x', values: ['1'] },
          },
        ],
      })
      const allow = (id: string, conditionId: string | null, allocation: bigint | null) =>
        ({ id, name: null, conditionId, effect: 'ALLOW', allocation }) as const

      it('keep their order and replace as a list', async () => {
        await store.transaction(async (tx) => {
          await tx.lineItems.insert(lineItem('A'))
          await tx.lineItems.insert(lineItem('B'))
          await tx.lineItems.insert(lineItem('C'))
          await tx.conditions.save(INSTANCE, [node('c1'), node('c2', 'second')])
          await tx.actions.replace(INSTANCE, 'B', [allow('b2', 'c2', 5n), allow('b1', null, null)])
          await tx.actions.replace(INSTANCE, 'A', [{ ...allow('a', 'c1', null), effect: 'DENY', name: 'no' }])
        })
        await store.read(async (reader) => {
          expect(await reader.actions.of(INSTANCE, 'B')).toEqual([allow('b2', 'c2', 5n), allow('b1', null, null)])
          expect((await reader.actions.list(INSTANCE, 0, 10)).map(({ lineItemId }) => lineItemId)).toEqual(['A', 'B'])
          expect((await reader.actions.list(INSTANCE, 1, 10)).map(({ lineItemId }) => lineItemId)).toEqual(['B'])
          expect(await reader.conditions.referenced(INSTANCE)).toEqual(new Set(['c1', 'c2']))
        })
        await store.transaction((tx) => tx.actions.replace(INSTANCE, 'B', []))
        expect(await store.read((reader) => reader.actions.of(INSTANCE, 'B'))).toEqual([])
        expect(await store.read((reader) => reader.conditions.referenced(INSTANCE))).toEqual(new Set(['c1']))
      })

      it('keep conditions in the order of creation, also when one is replaced', async () => {
        await store.transaction((tx) => tx.conditions.save(INSTANCE, [node('c2'), node('c1')]))
        await store.transaction((tx) => tx.conditions.save(INSTANCE, [node('c3'), node('c2', 'renamed')]))
        await store.read(async (reader) => {
          expect(await reader.conditions.list(INSTANCE)).toEqual([node('c2', 'renamed'), node('c1'), node('c3')])
          expect(await reader.conditions.get(INSTANCE, 'c1')).toEqual(node('c1'))
          const all = [node('c2', 'renamed'), node('c1'), node('c3')]
          expect(await reader.conditions.size(INSTANCE)).toEqual({
            count: 3,
            characters: all.reduce((sum, each) => sum + JSON.stringify(each).length, 0),
          })
          expect(await reader.conditions.size('nobody')).toEqual({ count: 0, characters: 0 })
        })
        await store.transaction((tx) => tx.conditions.remove(INSTANCE, ['c2', 'c3']))
        expect(await store.read((reader) => reader.conditions.list(INSTANCE))).toEqual([node('c1')])
      })

      it('refuse an action whose condition does not exist', async () => {
        await store.transaction((tx) => tx.lineItems.insert(lineItem('A')))
        const dangling = store.transaction((tx) => tx.actions.replace(INSTANCE, 'A', [allow('a', 'nowhere', 1n)]))
        await expect(dangling).rejects.toThrow()
      })

      it('keep every digit of a rate', async () => {
        const items = [
          { name: 'Print', version: '', rate: decimal('0.1000000000000000000001') },
          { name: 'Scan', version: '2.0', rate: decimal('0') },
        ]
        const table = { series: '', version: '1', effectiveFrom: 3, created: 4, items }
        await store.transaction((tx) => tx.rateTables.insert(table))
        await store.transaction((tx) => tx.rateTables.insert({ ...table, series: 'S' }))
        expect(await store.read((reader) => reader.rateTables.get('', '1'))).toEqual(table)
        await expect(store.transaction((tx) => tx.rateTables.insert(table))).rejects.toThrow()
        await store.transaction((tx) => tx.rateTables.remove('', '1'))
        expect((await store.read((reader) => reader.rateTables.list())).map(({ series }) => series)).toEqual(['S'])
      })

      it('keep a consumption limit that was removed', async () => {
        const limit = {
          instanceId: INSTANCE,
          lineItemId: 'A',
          limit: 5n,
          frequency: 'MONTHLY',
          nextReset: 77,
          first: 3,
        } as const
        await store.transaction(async (tx) => {
          await tx.lineItems.insert(lineItem('A'))
          await tx.consumptionLimits.save(limit)
        })
        await store.transaction((tx) => tx.consumptionLimits.save({ ...limit, limit: null }))
        const removed = { ...limit, limit: null }
        expect(await store.read((reader) => reader.consumptionLimits.get(INSTANCE, 'A'))).toEqual(removed)
        expect(await store.read((reader) => reader.consumptionLimits.list(INSTANCE))).toEqual([removed])
        const ofLineItems = (ids: readonly string[]) =>
          store.read((reader) => reader.consumptionLimits.of(INSTANCE, ids))
        expect(await ofLineItems(['A', 'B'])).toEqual(new Map([['A', removed]]))
        expect([(await ofLineItems(['B'])).size, (await ofLineItems([])).size]).toEqual([0, 0])
      })
    })

    describe('keys and configuration', () => {
      const key = (type: KeyRecord['type'], id: string, retiresAt: number | null = null): KeyRecord => ({
        type,
        id,
        name: null,
        roles: null,
        instances: null,
        pem: `pem of ${id}`,
        activeFrom: 1,
        previous: null,
        retiresAt,
        created: 1,
        modified: 1,
      })

      const OLD = { name: 'before', roles: null, instances: [INSTANCE], pem: 'pem of k' }

      it('tell keys of the two types apart, and do not list those that retire', async () => {
        await store.transaction(async (tx) => {
          await tx.keys.lock()
          await tx.keys.save(key('administration-key', 'k'))
          await tx.keys.save(key('client-key', 'k'))
          await tx.keys.save(key('administration-key', 'old', 9))
          await tx.keys.save({ ...key('client-key', 'k'), pem: 'new', previous: OLD, modified: 8 })
        })
        await store.read(async (reader) => {
          expect(await reader.keys.get('administration-key', 'k')).toEqual(key('administration-key', 'k'))
          expect(await reader.keys.get('client-key', 'k')).toMatchObject({ pem: 'new', previous: OLD })
          expect(await reader.keys.get('administration-key', 'old')).toMatchObject({ retiresAt: 9 })
          expect(await reader.keys.list(0, 10)).toHaveLength(2)
          expect(await reader.keys.list(1, 10)).toMatchObject([{ type: 'client-key' }])
          expect(await reader.keys.countAdministration()).toBe(1)
        })
        await store.transaction((tx) => tx.keys.remove('client-key', 'k'))
        expect(await store.read((reader) => reader.keys.list(0, 10))).toHaveLength(1)
      })

      it('replace a configuration value', async () => {
        const value = { name: 'timezone.tolerant', value: 'true', modified: 3, updatedBy: 'k' }
        await store.transaction((tx) => tx.configuration.save({ ...value, value: 'false' }))
        await store.transaction((tx) => tx.configuration.save(value))
        expect(await store.read((reader) => reader.configuration.list())).toEqual([value])
      })
    })

    describe('accounts', () => {
      const account = lineAccount(INSTANCE, 'A', 0)

      it('are opened once, with the cap of the first request', async () => {
        const opened = await store.transaction((tx) => tx.accounts.open([{ account, cap: 5n }]))
        expect(opened.get(account)).toEqual(newPool(account, 5n))
        const again = await store.transaction((tx) => tx.accounts.open([{ account, cap: 9n }]))
        expect(again.get(account)).toEqual(newPool(account, 5n))
      })

      it('keep counters and caps, with and without a limit', async () => {
        const unlimited = lineAccount(INSTANCE, 'B', 3)
        const pool = retarget(grantOut(charge(newPool(account, 2n ** 63n - 1n), 2n ** 62n), 7n), 3n)
        const metered = charge(newPool(unlimited, null), 2n ** 63n - 1n)
        await store.transaction((tx) => tx.accounts.save([pool, metered]))
        const found = await store.read((reader) => reader.accounts.get([account, unlimited, 'line/x/y/0']))
        expect(found).toEqual(
          new Map([
            [account, pool],
            [unlimited, metered],
          ]),
        )
      })

      it('refuse a pool that is oversold', async () => {
        const oversold = { ...newPool(account, 10n), charged: 6n, grantedOut: 5n }
        await expect(store.transaction((tx) => tx.accounts.save([oversold]))).rejects.toThrow()
        expect((await store.read((reader) => reader.accounts.get([account]))).size).toBe(0)
      })

      it('are found by their line item', async () => {
        const requester = { type: 'user', value: 'a/b %' }
        const mine = [account, actionAccount(INSTANCE, 'A', 'x'), limitAccount(INSTANCE, 'A', requester, 2)]
        const others = [lineAccount(INSTANCE, 'AB', 0), lineAccount('elsewhere', 'A', 0)]
        await store.transaction((tx) =>
          tx.accounts.open([...mine, ...others].map((each) => ({ account: each, cap: 1n }))),
        )
        const found = await store.read((reader) => reader.accounts.ofLineItem(INSTANCE, 'A'))
        expect(found.map((pool) => pool.account).sort()).toEqual(mine.toSorted())
        const toRetarget = async (limits: { from: number; unlike: bigint }) => {
          const pools = await store.read((reader) => reader.accounts.toRetarget(INSTANCE, 'A', limits))
          return pools.map((pool) => pool.account).sort()
        }
        expect(await toRetarget({ from: 2, unlike: 2n })).toEqual(mine.toSorted())
        expect(await toRetarget({ from: 2, unlike: 1n })).toEqual(mine.slice(0, 2).sort())
        expect(await toRetarget({ from: 3, unlike: 2n })).toEqual(mine.slice(0, 2).sort())
      })

      it('are locked in any number', async () => {
        const many = Array.from({ length: 1_203 }, (_, index) => ({
          account: lineAccount(INSTANCE, 'A', index),
          cap: 1n,
        }))
        const opened = await store.transaction((tx) => tx.accounts.open(many))
        expect(opened.size).toBe(many.length)
      })
    })

    describe('usage', () => {
      it('comes back with every field', async () => {
        const sources: UsageRecord['source'][] = [
          { kind: 'one-off' },
          { kind: 'session', sessionId: 's' },
          { kind: 'device', deviceId: 'd', epoch: 2, entry: 3 },
        ]
        const records = sources.map((source, n) => usage(n, { source }))
        const refused = usage(3, { activationId: null, quantity: null, used: null, tokens: -1n, metaData: null })
        for (const each of [...records, refused]) await store.transaction((tx) => tx.usage.append([each]))
        const { records: newest } = await store.read((reader) => listUsage(reader, { limit: 9 }))
        expect(newest).toEqual([refused, records[2], records[1], records[0]])
      })

      it('takes many records at once', async () => {
        await store.transaction((tx) => tx.usage.append(Array.from({ length: 1_500 }, (_, n) => usage(n))))
        expect((await store.read((reader) => listUsage(reader, { limit: 2_000 }))).records).toHaveLength(1_500)
      })

      it('is read by position, instance and time', async () => {
        expect(await store.transaction((tx) => tx.usage.settled())).toBe(0n)
        const records = [usage(1), usage(2, { instanceId: 'other' }), usage(3), usage(4)]
        for (const each of records.slice(0, 3)) await store.transaction((tx) => tx.usage.append([each]))
        const upTo = await store.transaction((tx) => tx.usage.settled())
        await store.transaction((tx) => tx.usage.append(records.slice(3)))
        const everything = { after: 0n, upTo, instanceId: null, from: null, to: null, limit: 9 }
        const range = (change: Partial<UsageRange>) =>
          store.read(async (reader) =>
            (await usageIn(reader, { ...everything, ...change })).map(({ record }) => record),
          )
        expect(await range({})).toEqual(records.slice(0, 3))
        expect(await range({ limit: 2 })).toEqual(records.slice(0, 3))
        expect(await range({ instanceId: INSTANCE })).toEqual([records[0], records[2]])
        expect(await range({ from: 2, to: 3 })).toEqual([records[1]])
        const [first] = await store.read((reader) => usageIn(reader, everything))
        expect(await range({ after: first!.position })).toEqual(records.slice(1, 3))
        expect(await range({ after: upTo, upTo: upTo + USAGE_ROW_POSITIONS })).toEqual([records[3]])
      })

      it('of one transaction stays in its sequence for each instance, whatever is read of it', async () => {
        const statuses = ['GRANTED', 'INSUFFICIENT_TOKENS']
        const some = fc.array(fc.tuple(fc.nat(2), fc.nat(9), fc.constantFrom(...statuses)), { maxLength: 20 })
        await fc.assert(
          fc.asyncProperty(fc.array(some, { maxLength: 4 }), fc.nat(9), async (transactions, from) => {
            const before = await store.transaction((tx) => tx.usage.settled())
            const written = transactions.map((each, number) =>
              each.map(([instance, usageTime, status], n) =>
                usage(n, { correlationId: `${number} ${n}`, instanceId: `${instance}`, usageTime, status }),
              ),
            )
            for (const records of written) await store.transaction((tx) => tx.usage.append(records))
            const all = { after: before, upTo: 1n << 62n, instanceId: null, from: null, to: null, limit: 3 }
            const ids = (range: Partial<UsageRange>) =>
              store.read(async (reader) =>
                (await usageIn(reader, { ...all, ...range })).map(({ record }) => record.correlationId),
              )
            const expected = (fits: (record: UsageRecord) => boolean) =>
              written.flatMap((records) => records.filter(fits).map(({ correlationId }) => correlationId))
            for (const instanceId of ['0', '1', '2']) {
              expect(await ids({ instanceId })).toEqual(expected((record) => record.instanceId === instanceId))
              const late = expected((record) => record.instanceId === instanceId && record.usageTime >= from)
              expect(await ids({ instanceId, from })).toEqual(late)
              const { records } = await store.read((reader) => reader.usage.count({ ...all, instanceId, from }))
              expect(records).toBe(late.length)
            }
            expect((await ids({})).toSorted()).toEqual(expected(() => true).toSorted())
            const search = { isRefused: true, fits: ({ status }: UsageRecord) => status !== 'GRANTED' } as const
            const newest = { instanceId: null, upTo: null, from: null, to: null, limit: 1_000, search }
            const { records: refused } = await store.read((reader) => reader.usage.newest(newest))
            const added = refused.filter(({ position }) => position > before)
            expect(added.map(({ record }) => record.correlationId).toSorted()).toEqual(
              expected(({ status }) => status !== 'GRANTED').toSorted(),
            )
            const positions = await store.read((reader) => usageIn(reader, all))
            expect(new Set(positions.map(({ position }) => position)).size).toBe(positions.length)
          }),
          { numRuns: 20 },
        )
      })

      it('up to the position before a record is without it', async () => {
        await store.transaction((tx) => tx.usage.append([usage(1), usage(2), usage(3)]))
        const last = await store.transaction((tx) => tx.usage.settled())
        const range = { upTo: last - 1n, instanceId: null, from: null, to: null, limit: 9 }
        await store.read(async ({ usage: reader }) => {
          const all = { ...range, after: 0n }
          const newest = (await reader.newest(range)).records
          expect(newest.map(({ record }) => record)).toEqual([usage(2), usage(1)])
          expect((await reader.range(all)).records).toEqual(newest.toReversed())
          expect(await reader.count(all)).toEqual({ records: 2, end: last - 1n })
        })
      })

      it('continues above positions that a restored twin has forgotten, and knows them', async () => {
        const append = (n: number) => store.transaction((tx) => tx.usage.append([usage(n)]))
        const settled = () => store.transaction((tx) => tx.usage.settled())
        const pass = (position: bigint) => store.transaction((tx) => tx.usage.passForgotten(position))
        const forgotten = (...positions: bigint[]) =>
          store.read((reader) => Promise.all(positions.map((position) => reader.usage.backupEnd(position))))
        const rows = (count: bigint) => count * USAGE_ROW_POSITIONS
        await append(1)
        const end = await settled()
        await pass(end + rows(1_000n))
        await pass(end + rows(900n))
        expect(await settled()).toBe(end + rows(1_000n))
        await append(2)
        const newest = await settled()
        expect(newest).toBeGreaterThan(end + rows(1_000n))
        const next = (position: bigint) => store.read((reader) => reader.usage.nextRow(position))
        expect([await next(end), await next(newest)]).toEqual([newest / USAGE_ROW_POSITIONS, null])
        expect(await next(0n)).toBe(end / USAGE_ROW_POSITIONS)
        expect(await forgotten(end, end + 1n, end + rows(999n), end + rows(1_000n))).toEqual([null, end, end, null])
        await pass(newest + rows(50n))
        await append(3)
        expect(await settled()).toBeGreaterThan(newest + rows(50n))
        expect(await forgotten(end + 1n, newest, newest + 1n, newest + rows(50n))).toEqual([end, null, newest, null])
      })

      it('names the end of the backup also for what was passed later, if nothing was recorded between', async () => {
        await store.transaction((tx) => tx.usage.append([usage(1)]))
        const end = await store.transaction((tx) => tx.usage.settled())
        const rows = (count: bigint) => end + count * USAGE_ROW_POSITIONS
        for (const count of [10n, 20n, 30n]) await store.transaction((tx) => tx.usage.passForgotten(rows(count)))
        await store.read(async ({ usage: reader }) => {
          for (const count of [5n, 10n, 25n]) expect(await reader.backupEnd(rows(count))).toBe(end)
          expect(await reader.backupEnd(rows(30n))).toBeNull()
        })
      })

      it('continues above forgotten positions also when the backup has no usage at all', async () => {
        await store.transaction((tx) => tx.usage.passForgotten(1_000n))
        const passed = await store.transaction((tx) => tx.usage.settled())
        expect(passed).toBeGreaterThanOrEqual(1_000n)
        await store.transaction((tx) => tx.usage.append([usage(1)]))
        expect(await store.transaction((tx) => tx.usage.settled())).toBeGreaterThan(passed)
        expect(await store.read((reader) => reader.usage.backupEnd(7n))).toBe(0n)
      })
    })

    describe('policy revisions', () => {
      it('are locked and saved', async () => {
        const bumped = { instanceId: INSTANCE, revision: 2, bumpedAt: 8, listedAt: 9, calendarDue: 100, engine: 4 }
        await store.transaction(async (tx) => {
          expect(await tx.policyRevisions.lockShared(INSTANCE)).toMatchObject({ revision: 1 })
          expect(await tx.policyRevisions.lock(INSTANCE)).toMatchObject({ revision: 1 })
          expect(await tx.policyRevisions.lock('nowhere')).toBeUndefined()
          await tx.policyRevisions.save(bumped)
        })
        await store.read(async (reader) => {
          expect(await reader.policyRevisions.get(INSTANCE)).toEqual(bumped)
          const due = (now: number, bumpedAfter: number, engine: number) =>
            reader.policyRevisions.due({ now, bumpedAfter, engine }, 10)
          expect(await due(99, 99, 4)).toEqual([])
          expect(await due(100, 99, 4)).toEqual([INSTANCE])
          expect(await due(1, 7, 4)).toEqual([INSTANCE])
          expect(await due(1, 8, 4)).toEqual([])
          expect(await due(1, 8, 5)).toEqual([INSTANCE])
        })
      })

      it('of several instances are locked together, and unknown ones are left out', async () => {
        const other = '7'.repeat(8) + INSTANCE.slice(8)
        const revision = { instanceId: other, revision: 3, bumpedAt: 5, listedAt: 5, calendarDue: null, engine: 2 }
        await store.transaction(async (tx) => {
          await tx.instances.insert(instance(other))
          await tx.policyRevisions.insert(revision)
        })
        await store.transaction(async (tx) => {
          const ids = [INSTANCE, other, 'nowhere'].sort()
          const locked = await tx.policyRevisions.lockSomeShared(ids)
          expect(locked).toEqual(await Promise.all([INSTANCE, other].sort().map((id) => tx.policyRevisions.get(id))))
          expect(await tx.policyRevisions.lockSomeShared([])).toEqual([])
        })
      })

      it('are locked together with the accounts that are locked next, which are as they are without that', async () => {
        const [a, b, c] = ['A', 'B', 'C'].map((id) => lineAccount(INSTANCE, id, 0)) as [string, string, string]
        await store.transaction(async (tx) => {
          await tx.accounts.open([a, b].map((account) => ({ account, cap: 50n })))
        })
        for (const likely of [[], [a], [b, a, b], [c], [a, b, c]]) {
          for (const wanted of [[a], [b, a], [a, b, c], [c], []]) {
            await store.transaction(async (tx) => {
              expect(await tx.policyRevisions.lockSomeShared([INSTANCE], likely)).toMatchObject([{ revision: 1 }])
              const pools = await tx.accounts.lock(wanted)
              expect([...pools.keys()].sort()).toEqual(wanted.filter((account) => account !== c).sort())
              const before = pools.get(a)
              if (before === undefined) return
              await tx.accounts.save([charge(before, 1n)])
              expect((await tx.accounts.lock([a])).get(a)).toEqual(charge(before, 1n))
            })
          }
        }
        const pools = await store.read((reader) => reader.accounts.get([a, b, c]))
        expect([...pools.values()].map(({ charged }) => charged)).toEqual([15n, 0n])
      })

      it('are bumped together, each with a change notification, and none is dated back', async () => {
        let heard = 0
        store.onOutbox(() => (heard += 1))
        const others = [
          { instanceId: 'a', revision: 7, bumpedAt: 10, listedAt: 60, calendarDue: 100, engine: 2 },
          { instanceId: 'b', revision: 1, bumpedAt: 90, listedAt: 90, calendarDue: null, engine: 3 },
        ]
        await store.transaction(async (tx) => {
          for (const each of others) {
            await tx.instances.insert(instance(each.instanceId))
            await tx.policyRevisions.insert(each)
          }
        })
        await store.transaction(async (tx) => {
          await tx.policyRevisions.lockAll()
          await tx.policyRevisions.bumpAll(50, 3)
          await tx.outbox.appendPolicies(50)
        })
        const get = (id: string) => store.read((reader) => reader.policyRevisions.get(id))
        expect(await get(INSTANCE)).toMatchObject({ revision: 2, bumpedAt: 50, calendarDue: null, engine: 3 })
        expect(await get('a')).toMatchObject({ revision: 8, bumpedAt: 50, calendarDue: 100, engine: 3 })
        expect(await get('b')).toMatchObject({ revision: 2, bumpedAt: 90, calendarDue: null, engine: 3 })
        const messages = await store.transaction((tx) => tx.outbox.claim(9, 60, 70))
        expect(messages.map(({ notification }) => notification)).toEqual([
          { kind: 'policy', instanceId: INSTANCE, revision: 2 },
          { kind: 'policy', instanceId: 'a', revision: 8 },
          { kind: 'policy', instanceId: 'b', revision: 2 },
        ])
        expect(heard).toBe(1)
      })
    })

    describe('sessions', () => {
      const fresh = (id: string, at: number, deviceId: string | null = null): Session =>
        newSession({ id, instanceId: INSTANCE, deviceId }, at)
      const active = (id: string, at: number): Session =>
        step(
          fresh(id, at),
          {
            kind: 'GRANTED',
            requester: { type: 'user', value: 'x', dictionary: { department: ['sales'] } },
            items: [
              {
                item: { name: 'Print', version: '', count: decimal('1.5'), metaData: '{}' },
                shares: [{ lineItemId: 'A', accounts: [lineAccount(INSTANCE, 'A', 0)], charged: 2n ** 60n }],
              },
            ],
            intervalMs: 3_600_000,
          },
          at,
        ).session

      it('come back as they were saved', async () => {
        const session = active('s', 100)
        await store.transaction(async (tx) => {
          await tx.sessions.insert(fresh('s', 100))
          await tx.sessions.save(session)
          expect(await tx.sessions.lock('s')).toEqual(session)
          expect(await tx.sessions.lock('t')).toBeUndefined()
        })
        expect(await store.read((reader) => reader.sessions.get('s'))).toEqual(session)
      })

      it('are listed newest first while they live', async () => {
        await store.transaction(async (tx) => {
          await tx.instances.insert(instance('other'))
          await tx.sessions.insert(fresh('1', 1, 'device'))
          await tx.sessions.insert(active('2', 2))
          await tx.sessions.insert(fresh('3', 2))
          await tx.sessions.insert(step(fresh('4', 4, 'device'), { kind: 'CLOSED' }, 5).session)
          await tx.sessions.insert(newSession({ id: '5', instanceId: 'other', deviceId: null }, 5))
        })
        await store.read(async (reader) => {
          const ids = async (instanceId: string | null, limit: number) =>
            (await reader.sessions.live(instanceId, limit)).map(({ id }) => id)
          expect(await ids(INSTANCE, 10)).toEqual(['3', '2', '1'])
          expect(await ids(null, 10)).toEqual(['5', '3', '2', '1'])
          expect(await ids(null, 2)).toEqual(['5', '3'])
          expect((await reader.sessions.ofDevice('device')).map(({ id }) => id)).toEqual(['1'])
        })
      })

      it('are found by the opening of a device, and no device opens twice as the same', async () => {
        const ended = step(fresh('4', 4, 'device'), { kind: 'CLOSED' }, 5).session
        await store.transaction(async (tx) => {
          await tx.sessions.insert(fresh('1', 1, 'device'), 'one')
          await tx.sessions.insert(step(fresh('2', 2, 'device'), { kind: 'LOCKED' }, 2).session, 'two')
          await tx.sessions.insert(fresh('3', 3, 'device'))
          await tx.sessions.insert(ended, 'four')
          await tx.sessions.insert(fresh('5', 5, 'other'), 'one')
        })
        const openedAs = (opening: string) =>
          store.read(async (reader) => {
            const found = await reader.sessions.openedAs('device', INSTANCE, opening)
            return found.map(({ session: { id }, isThis }) => [id, isThis])
          })
        const others = [
          ['1', false],
          ['2', false],
        ]
        expect(await openedAs('one')).toEqual([
          ['1', true],
          ['2', false],
        ])
        expect(await openedAs('four')).toEqual([...others, ['4', true]])
        expect(await openedAs('five')).toEqual(others)
        const again = store.transaction((tx) => tx.sessions.insert(fresh('6', 6, 'device'), 'one'))
        await expect(again).rejects.toThrow()
      })

      it('are saved and removed', async () => {
        await store.transaction((tx) => tx.sessions.insert(active('s', 1)))
        const { session } = step(active('s', 1), { kind: 'CLOSED' }, 2)
        await store.transaction((tx) => tx.sessions.save(session))
        expect(await store.read((reader) => reader.sessions.get('s'))).toEqual(session)
        await store.transaction((tx) => tx.sessions.remove('s'))
        expect(await store.read((reader) => reader.sessions.get('s'))).toBeUndefined()
      })

      it('are due in the order of their time', async () => {
        await store.transaction(async (tx) => {
          await tx.sessions.insert(active('late', 50))
          await tx.sessions.insert(active('early', 10))
          await tx.sessions.insert(fresh('idle', 0))
        })
        const dueAt = (now: number) => store.transaction(async (tx) => (await tx.sessions.lockDue(now))?.id)
        expect(await dueAt(3_600_009)).toBeUndefined()
        expect(await dueAt(3_600_010)).toBe('early')
        expect(await dueAt(99_999_999)).toBe('early')
      })
    })

    it('keeps the last command for a session that a device has not reported, once, for its time', async () => {
      const [one, other] = ['0c1d8a1e-0000-4000-8000-000000000001', '0c1d8a1e-0000-4000-8000-000000000002']
      const commands = <T>(work: (tx: Transaction['edge']['sessionCommands']) => Promise<T>) =>
        store.transaction((tx) => work(tx.edge.sessionCommands))
      await store.transaction(async (tx) => {
        for (const id of [one, other]) await tx.edge.devices.insert(device(id))
      })
      await commands(async (tx) => {
        await tx.note(one, 'a', 'LOCK', 5)
        await tx.note(one, 'a', 'TERMINATE', 6)
        await tx.note(one, 'b', 'LOCK', 7)
        await tx.note(one, 'c', 'LOCK', 7)
        await tx.note(other, 'a', 'UNLOCK', 5)
      })
      expect(await commands((tx) => tx.count(one))).toBe(3)
      const taken = new Map([
        ['a', 'TERMINATE'],
        ['c', 'LOCK'],
      ])
      expect(await commands((tx) => tx.take(one, ['a', 'c', 'unknown']))).toEqual(taken)
      expect(await commands((tx) => tx.take(one, ['a', 'c']))).toEqual(new Map())
      await commands((tx) => tx.forget(one, 8))
      expect(await commands((tx) => tx.count(one))).toBe(0)
      await commands((tx) => tx.forget(other, 5))
      expect(await commands((tx) => tx.take(other, ['a']))).toEqual(new Map([['a', 'UNLOCK']]))
    })

    it('finds devices by labels, instance and contact, few or many, and counts them', async () => {
      const idOf = (n: number): string => `0c1d8a1e-0000-4000-8000-${String(n).padStart(12, '0')}`
      const numbers = Array.from({ length: 1_100 }, (_, n) => n)
      await store.transaction(async (tx) => {
        for (const n of numbers) {
          const labels = { size: 'many', ...(n % 100 === 7 ? { kind: 'few' } : {}) }
          await tx.edge.devices.insert({ ...device(idOf(n)), instanceIds: [INSTANCE], lastSyncAt: 5_000 - n, labels })
        }
      })
      const many = { key: 'size', value: 'many' }
      const few = { key: 'kind', value: 'few' }
      const contact = { state: 'CURRENT', overdueBefore: 0 } as const
      const fewOnes = numbers.filter((n) => n % 100 === 7)
      const cases: readonly (readonly [DeviceFilter, readonly number[]])[] = [
        [{}, numbers],
        [{ instanceId: INSTANCE }, numbers],
        [{ labels: [many] }, numbers],
        [{ labels: [many], instanceId: INSTANCE }, numbers],
        [{ labels: [many, few], instanceId: INSTANCE }, fewOnes],
        [{ labels: [few], search: idOf(7) }, [7]],
        [{ labels: [many], contact }, numbers.toReversed()],
        [{ labels: [many, few], contact, instanceId: INSTANCE }, fewOnes.toReversed()],
        [{ labels: [{ key: 'size', value: 'few' }] }, []],
        [{ labels: [many], scope: new Set([INSTANCE, 'another']) }, numbers],
        [{ instanceId: INSTANCE, scope: new Set(['another']) }, []],
        [{ scope: new Set<string>() }, []],
      ]
      for (const [filter, expected] of cases) {
        const found = await store.read((reader) => reader.edge.devices.find(filter, 3, 5))
        expect([filter, found.map(({ id }) => id)]).toEqual([filter, expected.slice(3, 8).map(idOf)])
        const counted = await store.read((reader) => reader.edge.devices.countByContact(filter, 0, 5_000))
        expect([filter, counted.get('CURRENT')]).toEqual([filter, expected.length])
      }
      await store.transaction((tx) => tx.edge.devices.label(idOf(7), { size: 'one' }))
      const [relabeled] = await store.read((reader) =>
        reader.edge.devices.find({ labels: [{ key: 'size', value: 'one' }] }, 0, 2),
      )
      expect(relabeled).toMatchObject({ id: idOf(7), labels: { size: 'one' } })
      const relabeledCounts = await store.read((reader) =>
        reader.edge.devices.countByContact({ labels: [few] }, 0, 100),
      )
      expect(relabeledCounts.get('CURRENT')).toBe(fewOnes.length - 1)
    })

    describe('the signing key', () => {
      const administrationKey: KeyRecord = {
        type: 'administration-key',
        id: 'first',
        name: 'Ada',
        roles: ['read', 'keys'],
        instances: ['instance'],
        pem: 'pem',
        activeFrom: 0,
        previous: null,
        retiresAt: null,
        created: 1,
        modified: 1,
      }
      /** A node's directory, with a key in it or none. */
      const node = (
        path: string,
        made: string,
        there = false,
        succeeded: readonly string[] = [],
      ): SigningKeyFile & { holds: string | null } => ({
        path,
        holds: there ? made : null,
        exists() {
          return this.holds !== null
        },
        async open() {
          this.holds ??= made
          return { keyId: this.holds, succeeded }
        },
      })
      const differs = expect.objectContaining({ code: 'SIGNING_KEY_DIFFERS' }) as unknown
      beforeEach(() => store.transaction((tx) => tx.keys.save(administrationKey)))

      it('of the first node is the one that all others must come with', async () => {
        await claimSigningKey(store, node('/first', 'A'), null, 1)
        await claimSigningKey(store, node('/first', 'A', true), null, 2)
        await expect(claimSigningKey(store, node('/second', 'B', true), null, 3)).rejects.toEqual(differs)
        const empty = node('/third', 'C')
        await expect(claimSigningKey(store, empty, null, 4)).rejects.toEqual(differs)
        // An unusable key is not left in the place of the right one.
        expect(empty.holds).toBeNull()
      })

      it('is one, also when several nodes start over an empty store at once', async () => {
        const claims = ['A', 'B', 'C'].map((key) => claimSigningKey(store, node(`/${key}`, key), null, 1))
        const outcomes = await Promise.allSettled(claims)
        expect(outcomes.filter(({ status }) => status === 'fulfilled')).toHaveLength(1)
      })

      it('is succeeded by one that has come in its place in good order, and comes back under none', async () => {
        await claimSigningKey(store, node('/first', 'A'), null, 1)
        await store.transaction((tx) => tx.edge.policyDocuments.save(INSTANCE, 1, 'signed by A'))
        await claimSigningKey(store, node('/first', 'C', true, ['A', 'B']), null, 2)
        expect(await store.read((reader) => reader.edge.signingKey.get())).toBe('C')
        expect(await store.read((reader) => reader.edge.policyDocuments.get(INSTANCE, 1))).toBeUndefined()
        await expect(claimSigningKey(store, node('/second', 'A', true), null, 3)).rejects.toEqual(differs)
        await expect(claimSigningKey(store, node('/second', 'D', true, ['A']), null, 4)).rejects.toEqual(differs)
      })

      it('is replaced when it is lost, by the one that is named, and what it has signed is forgotten', async () => {
        await claimSigningKey(store, node('/first', 'A'), null, 1)
        await store.transaction((tx) => tx.edge.policyDocuments.save(INSTANCE, 1, 'signed by A'))
        await expect(claimSigningKey(store, node('/first', 'B', true), 'X', 2)).rejects.toEqual(differs)
        expect(await store.read((reader) => reader.edge.policyDocuments.get(INSTANCE, 1))).toBe('signed by A')
        await claimSigningKey(store, node('/first', 'B', true), 'B', 3)
        expect(await store.read((reader) => reader.edge.policyDocuments.get(INSTANCE, 1))).toBeUndefined()
        await expect(claimSigningKey(store, node('/second', 'A', true), null, 4)).rejects.toEqual(differs)
      })
    })

    it('takes accounts of the longest ids that there can be', async () => {
      const longest = (max: number) =>
        '\u{20AC}'.repeat(Math.floor(max / 9)).padEnd(Math.floor(max / 9) + (max % 9), 'x')
      const half = REQUESTER_ENCODED_MAX / 2
      const requester = { type: longest(half), value: longest(half) }
      const account = limitAccount(INSTANCE, longest(LINE_ITEM_ENCODED_MAX), requester, 999_999_999)
      expect(account.length).toBeLessThanOrEqual(ACCOUNT_ID_MAX)
      expect(account.length).toBeGreaterThan(2_000)
      await store.transaction(async (tx) => {
        const opened = await tx.accounts.open([{ account, cap: 5n }])
        await tx.accounts.save([charge(opened.get(account)!, 2n)])
      })
      expect((await store.read((reader) => reader.accounts.get([account]))).get(account)?.charged).toBe(2n)
    })

    describe('what sweeps go by', () => {
      it('is one record of the clock and one confirmation of each kind, the last of each', async () => {
        const record = (at: number) => ({ at, sinceBoot: at - 3, bootId: `boot ${at}` })
        const read = () =>
          store.read(async ({ sweeps }) => [await sweeps.clockRecord(), await sweeps.settlementConfirmed()])
        expect(await read()).toEqual([undefined, null])
        for (const at of [9, 5]) {
          await store.transaction(async ({ sweeps }) => {
            await sweeps.noteClock(record(at))
            await sweeps.confirmSettlement(at)
          })
        }
        expect(await read()).toEqual([record(5), 5])
      })

      it('are gaps of the clock, newest first', async () => {
        const gaps = () => store.read(({ sweeps }) => sweeps.clockGaps())
        const [older, newer] = [
          { since: 1, until: 5 },
          { since: 6, until: 9 },
        ] as const
        await store.transaction(async ({ sweeps }) => {
          for (const gap of [older, newer, newer]) await sweeps.noteClockGap(gap)
        })
        expect(await gaps()).toEqual([newer, older])
        await store.transaction(({ sweeps }) => sweeps.forgetClockGaps(5))
        expect(await gaps()).toEqual([newer])
      })
    })

    describe('the outbox', () => {
      it('gives out messages again that were claimed by a clock far ahead', async () => {
        await store.transaction((tx) => tx.outbox.append([{ kind: 'device', deviceId: 'one', reason: 'sync' }], 5))
        const claim = (now: number) => store.transaction((tx) => tx.outbox.claim(9, now, now + 100))
        expect(await claim(1_000_000)).toHaveLength(1)
        expect(await claim(10)).toHaveLength(1)
        expect(await claim(10)).toHaveLength(0)
      })

      const policy = (revision: number) => ({ kind: 'policy', instanceId: INSTANCE, revision }) as const

      it('gives out a message to one claimant at a time, until it is removed', async () => {
        const device = { kind: 'device', deviceId: 'd', reason: 'sync' } as const
        await store.transaction((tx) => tx.outbox.append([policy(2), device], 5))
        const claim = (now: number, limit = 10) => store.transaction((tx) => tx.outbox.claim(limit, now, now + 100))
        const first = await claim(10, 1)
        expect(first.map(({ notification }) => notification)).toEqual([policy(2)])
        const second = await claim(10)
        expect(second.map(({ notification }) => notification)).toEqual([device])
        expect(await claim(109)).toEqual([])
        await store.transaction((tx) => tx.outbox.remove(second.map(({ id }) => id)))
        expect(await claim(110)).toEqual(first)
      })

      it('keeps the last message of a subject, however many arrive before they are taken', async () => {
        const notification = (reason: 'session' | 'sync') => ({ kind: 'device', deviceId: 'd', reason }) as const
        const other = { kind: 'policy', instanceId: 'other', revision: 1 } as const
        await store.transaction((tx) => tx.outbox.append([policy(2), other], 5))
        const [taken] = await store.transaction((tx) => tx.outbox.claim(1, 5, 105))
        for (let revision = 3; revision < 50; revision += 1) {
          await store.transaction((tx) =>
            tx.outbox.append([policy(revision), notification('sync'), notification('session')], 10),
          )
        }
        const waiting = await store.transaction((tx) => tx.outbox.claim(100, 10, 110))
        expect(waiting.map(({ notification }) => notification)).toEqual([
          other,
          policy(49),
          notification('sync'),
          notification('session'),
        ])
        // Another node publishes these at the moment.
        expect(taken?.notification).toEqual(policy(2))
        await store.transaction((tx) => tx.outbox.append([policy(50)], 10))
        expect((await store.transaction((tx) => tx.outbox.claim(100, 1_000, 2_000))).length).toBe(6)
      })

      it('calls its listeners after the commit, and only for what was committed', async () => {
        const calls: string[] = []
        const stop = store.onOutbox(() => calls.push('called'))
        await store.transaction((tx) => tx.instances.insert(instance('other')))
        expect(calls).toEqual([])
        await store.transaction(async (tx) => {
          await tx.outbox.append([policy(2)], 1)
          expect(calls).toEqual([])
        })
        expect(calls).toEqual(['called'])
        await expect(
          store.transaction(async (tx) => {
            await tx.outbox.append([policy(3)], 1)
            throw new Error('on purpose')
          }),
        ).rejects.toThrow('on purpose')
        stop()
        await store.transaction((tx) => tx.outbox.append([policy(4)], 1))
        expect(calls).toEqual(['called'])
      })
    })

    describe('the totals', () => {
      it('count sessions by state, change notifications, and what lines have out on devices, once', async () => {
        const line = lineAccount(INSTANCE, 'ACT-1', 0)
        const action = actionAccount(INSTANCE, 'ACT-1', 'a')
        await store.transaction(async (tx) => {
          await tx.outbox.append([{ kind: 'device', deviceId: 'd', reason: 'sync' }], 1)
          await tx.sessions.insert(newSession({ id: 's1', instanceId: INSTANCE, deviceId: null }, 1))
          await tx.sessions.insert(newSession({ id: 's2', instanceId: INSTANCE, deviceId: null }, 1))
          const pools = await tx.accounts.open([line, action].map((account) => ({ account, cap: 10_000_000n })))
          await tx.accounts.save([...pools.values()].map((pool) => ({ ...pool, grantedOut: 2_500_000n })))
        })
        const totals = await store.read((reader) => reader.totals())
        expect(totals).toEqual({ sessions: new Map([['IDLE', 2]]), outbox: 1, grantedOut: 2_500_000n })
      })
    })
  })
}
