import { afterAll } from 'vitest'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { Twin } from '../sync/twin.ts'
import { publishEventsSuite } from './publish-events.suite.ts'

const server = postgres()
let schema: PostgresSchema | undefined
afterAll(async () => schema?.[Symbol.asyncDispose]())

publishEventsSuite('events, over PostgreSQL', async () => {
  schema ??= await PostgresSchema.create(server.url)
  const { url } = schema
  const store = () => openPostgresStore({ url, onConnectionLost: () => undefined })
  const first = await store()
  await schema.empty()
  return { twin: await Twin.over(first), other: store }
})
