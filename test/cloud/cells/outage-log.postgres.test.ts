import { pino } from 'pino'
import { expect, it } from 'vitest'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { ServerProxy } from '../../support/server-proxy.ts'
import { postgres } from '../../support/servers.ts'
import { openTwin } from '../harness.ts'

const server = postgres()

it('names the cell whose database was away', async () => {
  await using schema = await PostgresSchema.create(server.url)
  await using network = await ServerProxy.open(schema.url)
  const lines: { readonly msg: string; readonly cell?: string }[] = []
  const log = pino({}, { write: (line: string) => void lines.push(JSON.parse(line) as (typeof lines)[number]) })
  await using twin = await openTwin((settings) => ({ ...settings, cells: [{ name: 'north', url: network.url }] }), log)
  const reopen = await network.refuse()
  await twin.tick()
  await reopen()
  await twin.tick()
  const about = lines.filter(({ msg }) => /to the database (was lost|again)/.test(msg))
  expect(about.map(({ msg, cell }) => [cell, msg])).toContainEqual(['north', 'connected to the database again'])
  expect(new Set(about.map(({ cell }) => cell))).toEqual(new Set(['north']))
})
