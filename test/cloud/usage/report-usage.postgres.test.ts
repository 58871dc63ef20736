import { afterAll } from 'vitest'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { reportUsageSuite } from './report-usage.suite.ts'

const server = postgres()
let schema: PostgresSchema | undefined
afterAll(async () => schema?.[Symbol.asyncDispose]())

reportUsageSuite('the usage report over PostgreSQL', async () => {
  schema ??= await PostgresSchema.create(server.url)
  const store = await openPostgresStore({ url: schema.url, onConnectionLost: () => undefined })
  await schema.empty()
  return store
})
