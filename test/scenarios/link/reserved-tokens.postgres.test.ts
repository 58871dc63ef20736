import { afterEach } from 'vitest'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { postgres } from '../../support/servers.ts'
import { reservedTokensSuite } from './reserved-tokens.suite.ts'

const server = postgres()
const schemas: PostgresSchema[] = []
afterEach(async () => {
  for (const schema of schemas.splice(0)) await schema[Symbol.asyncDispose]()
})

reservedTokensSuite('a twin over PostgreSQL', async () => {
  const schema = await PostgresSchema.create(server.url)
  schemas.push(schema)
  return (settings) => ({ ...settings, db: schema.url })
})
