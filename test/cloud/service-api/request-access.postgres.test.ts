import { afterAll, describe, expect, it } from 'vitest'
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
      const batcher = new AccessBatcher(
        store,
        new Policies({ max: 1, undecidedClock: 'refuse' }),
        cloudShortages(),
        setImmediate,
      )
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
