import { randomUUID } from 'node:crypto'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { decimal } from '../../../src/core/pricing/amount.ts'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { createRateTable } from '../../../src/cloud/service-api/change-rate-tables.ts'
import { createInstance } from '../../../src/cloud/service-api/create-instance.ts'
import { Policies } from '../../../src/cloud/policy/load-policy.ts'
import { mapLineItem } from '../../../src/cloud/service-api/map-line-item.ts'
import { AccessBatcher } from '../../../src/cloud/service-api/request-access.ts'
import { PostgresNodes } from '../../support/postgres-nodes.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { ServerProxy } from '../../support/server-proxy.ts'
import { requestAccessSuite } from './request-access.suite.ts'
import { cloudShortages } from '../sync/grants/shortages.ts'
import { listUsage } from '../usage/list-usage.ts'

const server = postgres()
let schema: PostgresSchema | undefined
afterAll(async () => schema?.[Symbol.asyncDispose]())

const nodes = new PostgresNodes(server)
let open = 0
requestAccessSuite('one-off requests over PostgreSQL', async () => {
  const store = open === 0 ? await nodes.first() : await nodes.another()
  open += 1
  return { ...store, close: async () => void (open -= 1) }
})

describe('a batch whose connection to PostgreSQL is lost', () => {
  const NOW = Date.UTC(2026, 4, 6)
  const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
  const ORDERS = 30

  it.for([
    ['before its commit arrived', 'COMMIT\u0000', 'LOSE_MESSAGE'],
    ['after its commit arrived', 'COMMIT\u0000', 'LOSE_ANSWER'],
    ['while its rows are on their way', 'insert into "usage"', 'LOSE_MESSAGE'],
    ['while its rows and its commit are on their way', 'insert into "usage"', 'LOSE_ANSWER'],
    ['while its charge is on its way', 'insert into "accounts"', 'LOSE_ANSWER'],
  ] as const)('%s charges each request once', async ([, text, fate]) => {
    schema ??= await PostgresSchema.create(server.url)
    await using proxy = await ServerProxy.open(schema.url)
    const store = await openPostgresStore({ url: proxy.url, onConnectionLost: () => undefined })
    try {
      await schema.empty()
      const items = [{ name: 'P', version: '', rate: decimal('1') }]
      await createRateTable(store, { version: '1', effectiveFrom: NOW - 1, items }, NOW)
      await createInstance(store, { id: INSTANCE, shortName: 's', accountId: 'a' }, NOW)
      const lineItem = { activationId: 'A', state: 'DEPLOYED' as const, quantity: 1_000, start: NOW - 1, end: NOW + 1 }
      await mapLineItem(store, INSTANCE, { ...lineItem, attributes: { elastic: true } }, NOW)
      const policies = new Policies({ max: 1, undecidedClock: 'refuse' })
      const batcher = new AccessBatcher({ store, policies, shortages: cloudShortages(), defer: setImmediate })
      const ask = (correlationId: string) =>
        batcher.request(
          {
            instanceId: INSTANCE,
            correlationId,
            request: {
              requester: { type: 'user', value: 'u', dictionary: {} },
              items: [{ name: 'P', version: '', count: decimal('1') }],
            },
            metaData: [null],
          },
          NOW,
        )
      let cut = false
      proxy.failAt(text, fate, () => (cut = true))
      const decisions = await Promise.all(Array.from({ length: ORDERS }, (_, index) => ask(String(index))))
      expect(cut).toBe(true)
      for (const { items: decided } of decisions) expect(decided).toMatchObject([{ outcome: 'GRANTED' }])
      const { pools, usage } = await store.read(async (reader) => ({
        pools: await reader.accounts.ofLineItem(INSTANCE, 'A'),
        usage: await listUsage(reader, { limit: 1_000 }),
      }))
      expect(pools.map(({ charged }) => charged)).toEqual([BigInt(ORDERS) * 1_000_000n])
      expect(usage.records.map(({ correlationId }) => correlationId).sort()).toEqual(
        Array.from({ length: ORDERS }, (_, index) => String(index)).sort(),
      )
    } finally {
      await store.close()
    }
  })
})

describe('instances that share a batcher over PostgreSQL', () => {
  const NOW = Date.UTC(2026, 4, 6)
  const [STUCK, OTHER] = ['64d2028c-ae87-4069-a624-66089d957ef9', '64d2028c-ae87-4069-a624-66089d957ef8'] as const

  it('wait at most once for the locks of one of them', async () => {
    schema ??= await PostgresSchema.create(server.url)
    await schema.empty()
    const limits = { lockTimeoutMs: 300, runsMax: 1 }
    const store = await openPostgresStore({ url: schema.url, onConnectionLost: () => undefined, limits })
    onTestFinished(() => store.close())
    const items = [{ name: 'P', version: '', rate: decimal('1') }]
    await createRateTable(store, { version: '1', effectiveFrom: NOW - 1, items }, NOW)
    for (const id of [STUCK, OTHER]) {
      await createInstance(store, { id, shortName: 's', accountId: id }, NOW)
      const lineItem = { activationId: 'A', state: 'DEPLOYED' as const, quantity: 1_000, start: NOW - 1, end: NOW + 1 }
      await mapLineItem(store, id, { ...lineItem, attributes: { elastic: true } }, NOW)
    }
    const policies = new Policies({ max: 2, undecidedClock: 'refuse' })
    const batcher = new AccessBatcher({ store, policies, shortages: cloudShortages(), defer: setImmediate })
    const ask = (instanceId: string) => {
      const requested = [{ name: 'P', version: '', count: decimal('1') }]
      const request = { requester: { type: 'user', value: 'u', dictionary: {} }, items: requested }
      return batcher.request({ instanceId, correlationId: randomUUID(), request, metaData: [null] }, NOW)
    }
    await Promise.all([ask(STUCK), ask(OTHER)])
    const [locked, end] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
    const change = store.transaction(async (tx) => {
      await tx.policyRevisions.lock(STUCK)
      locked.resolve(undefined)
      await end.promise
    })
    onTestFinished(() => end.resolve(undefined))
    await locked.promise
    const refused = ask(STUCK).catch((error: unknown) => error)
    expect((await ask(OTHER)).items).toMatchObject([{ outcome: 'GRANTED' }])
    // The stuck instance has its own batcher now.
    let isRefused = false
    void refused.then(() => (isRefused = true))
    expect((await ask(OTHER)).items).toMatchObject([{ outcome: 'GRANTED' }])
    expect(isRefused).toBe(false)
    expect(await refused).toMatchObject({ code: 'OVERLOADED' })
    end.resolve(undefined)
    await change
    expect((await ask(STUCK)).items).toMatchObject([{ outcome: 'GRANTED' }])
    const usage = await store.read((reader) => listUsage(reader, { limit: 100 }))
    expect(usage.records.map(({ instanceId }) => instanceId).sort()).toEqual([OTHER, OTHER, OTHER, STUCK, STUCK])
  })
})
