import { afterAll } from 'vitest'
import { openPostgresStore } from '../../../src/cloud/adapters/postgres/store.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { requestAccessSuite } from './request-access.suite.ts'

const server = postgres()
let schema: PostgresSchema | undefined
let nodes = 0
afterAll(async () => schema?.[Symbol.asyncDispose]())

requestAccessSuite('one-off requests over PostgreSQL', async () => {
  schema ??= await PostgresSchema.create(server.url)
  const store = await openPostgresStore({ url: schema.url, onConnectionLost: () => undefined })
  if (nodes === 0) await schema.empty()
  nodes += 1
  return {
    ...store,
    close: async () => {
      nodes -= 1
      await store.close()
    },
  }
})
