import { afterAll } from 'vitest'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { importInstanceSuite } from './import-instance.suite.ts'

const server = postgres()
let schema: PostgresSchema | undefined
afterAll(async () => schema?.[Symbol.asyncDispose]())

importInstanceSuite('imports over PostgreSQL', async () => {
  schema ??= await PostgresSchema.create(server.url)
  const { url } = schema
  const node = () => openPostgresStore({ url, onConnectionLost: () => undefined })
  const store = await node()
  await schema.empty()
  return { store, another: node }
})
