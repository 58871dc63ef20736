// The twin keeps what the service's interface says, in both versions, over both databases.
import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { CHECKS } from '../../conformance/all-checks.ts'
import { type Result, runChecks } from '../../conformance/runner.ts'
import { type Twin, openTwin } from '../cloud/harness.ts'
import { PostgresSchema } from '../support/postgres-schema.ts'
import { postgres } from '../support/servers.ts'
import { Clock } from './clock.ts'

async function resultsOn(twin: Twin): Promise<readonly Result[]> {
  await using clock = await Clock.of(twin)
  const adminKey = await readFile(twin.cloud.administrationKeyFile, 'utf8')
  return await runChecks(
    { url: twin.cloud.address, adminKey, clock: clock.url },
    { scratch: true, extensions: true, keep: true, parallel: 6 },
  )
}

const notHeld = (results: readonly Result[]) =>
  results.filter(({ outcome }) => outcome !== 'passed').map(({ name, because }) => `${name}: ${because ?? ''}`)

describe('the twin on SQLite', () => {
  let results: readonly Result[]
  beforeAll(async () => {
    await using twin = await openTwin()
    results = await resultsOn(twin)
  }, 300_000)

  it('keeps the interface in every check of both versions', () => {
    expect(notHeld(results)).toEqual([])
    const versions = CHECKS.flatMap((check) => check.versions ?? (['v1.0', 'v1.1'] as const))
    expect(results).toHaveLength(versions.length)
  })

  it('is asked under as many names as there are checks', () => {
    expect(new Set(results.map(({ name }) => name)).size).toBe(results.length)
  })
})

describe('the twin on PostgreSQL', () => {
  const server = postgres()
  let schema: PostgresSchema
  beforeAll(async () => {
    schema = await PostgresSchema.create(server.url)
  })
  afterAll(() => schema[Symbol.asyncDispose]())

  it('keeps the interface in every check of both versions', async () => {
    await using twin = await openTwin((settings) => ({ ...settings, db: schema.url }))
    expect(notHeld(await resultsOn(twin))).toEqual([])
  }, 300_000)
})
