import { afterAll } from 'vitest'
import { openPostgresStore } from '../../../src/cloud/storage/postgres/store.ts'
import { PostgresSchema, runSql } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { archiveSuite } from './archive.suite.ts'

const server = postgres()
let shared: PostgresSchema | undefined
afterAll(async () => shared?.[Symbol.asyncDispose]())

archiveSuite('a PostgreSQL database', async () => {
  shared ??= await PostgresSchema.create(server.url)
  await shared.empty()
  await runSql(shared.url, 'ALTER SEQUENCE IF EXISTS usage_seq_seq RESTART')
  return openPostgresStore({ url: shared.url, onConnectionLost: () => undefined })
})
