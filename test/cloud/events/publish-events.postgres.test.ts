import pg from 'pg'
import { expect, it } from 'vitest'
import { EventPublisher } from '../../../src/cloud/events/publish-events.ts'
import type { OutgoingEvent } from '../../../src/cloud/events/outgoing-event.ts'
import { PostgresNodes } from '../../support/postgres-nodes.ts'
import { postgres } from '../../support/servers.ts'
import { usage } from '../storage/suite.ts'
import { Twin } from '../sync/twin.ts'
import { publishEventsSuite } from './publish-events.suite.ts'

const nodes = new PostgresNodes(postgres())

publishEventsSuite('events, over PostgreSQL', async () => ({
  twin: await Twin.over(await nodes.first()),
  other: () => nodes.another(),
}))

it('passes no record of a transaction that commits after one with a higher position', async () => {
  await using twin = await Twin.over(await nodes.first())
  const received: OutgoingEvent[] = []
  const publisher = new EventPublisher({
    ...{ store: twin.store, nodeId: 'node', tenantId: 'tenant', now: twin.now, fraction: () => 1 },
    sink: {
      ...{ name: 'slow-writer', kind: 'webhook', address: 'test:', groups: ['usage'], batchMax: 10 },
      send: async (events) => void received.push(...events),
      close: async () => undefined,
    },
    log: { info: () => undefined, warn: () => undefined },
    watcher: { eventsDelivered: () => undefined, eventRejected: () => undefined, sinkFailing: () => undefined },
  })
  const run = async (): Promise<void> => {
    while (await publisher.step()) continue
  }
  const write = (n: number) => twin.store.transaction((tx) => tx.usage.append([usage(n)]))
  await write(1)
  await run()
  const client = new pg.Client({ connectionString: nodes.url })
  await client.connect()
  try {
    const { rows } = await client.query<{ names: string }>(
      `SELECT string_agg(quote_ident(column_name), ',') AS names FROM information_schema.columns
       WHERE table_schema = current_schema() AND table_name = 'usage' AND column_name <> 'seq'`,
    )
    const names = rows[0]?.names ?? ''
    await client.query('BEGIN')
    await client.query('LOCK TABLE row_numbers IN ROW EXCLUSIVE MODE')
    await client.query(`INSERT INTO usage (${names}) SELECT ${names} FROM usage LIMIT 1`)
    await write(2)
    const sending = run()
    const waiting = `SELECT count(*)::int AS count FROM pg_locks WHERE NOT granted AND relation = 'row_numbers'::regclass`
    await expect.poll(async () => (await client.query<{ count: number }>(waiting)).rows[0]?.count).toBe(1)
    await client.query('COMMIT')
    await sending
  } finally {
    await client.end()
  }
  expect(received.map(({ id }) => id.split('/')[1])).toEqual(['correlation-1', 'correlation-2'])
})
