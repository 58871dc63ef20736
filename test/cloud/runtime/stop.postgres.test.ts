// A stop while PostgreSQL does not respond: packets vanish, connections stay open.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { text as readAll } from 'node:stream/consumers'
import { pino } from 'pino'
import { describe, expect, it, onTestFinished } from 'vitest'
import { cloudOptions } from '../../../src/cloud/settings.ts'
import { loadSettings } from '../../../src/settings/load.ts'
import { PostgresSchema } from '../../support/postgres-schema.ts'
import { ServerProxy } from '../../support/server-proxy.ts'
import { postgres } from '../../support/servers.ts'
import { openTwin } from '../harness.ts'
import { TwinProcess } from '../twin-process.ts'

const server = postgres()

const openNetwork = async (): Promise<ServerProxy> => {
  const schema = await PostgresSchema.create(server.url)
  const network = await ServerProxy.open(schema.url)
  onTestFinished(async () => {
    await network[Symbol.asyncDispose]()
    await schema[Symbol.asyncDispose]()
  })
  return network
}

describe('a cloud that stops while its database is silent', () => {
  it('waits for requests and jobs until the limit of a stop, and then cuts them', async () => {
    const network = await openNetwork()
    const lines = new PassThrough()
    const written = readAll(lines)
    await using twin = await openTwin((settings) => ({ ...settings, db: network.url }), pino({}, lines))
    network.fallInactive()
    const asked = twin.call('GET', '/provisioning/api/v1.1/instances').catch(() => 'cut')
    const jobs = twin.tick()
    const stopped = twin.stop()
    const limit = twin.tick()
    await stopped
    await Promise.all([jobs, limit])
    expect(await asked).toBe('cut')
    lines.end()
    const failures = (await written)
      .split('\n')
      .filter((line) => line.includes('"level":50'))
      .map((line) => (JSON.parse(line) as { err: { code: string } }).err.code)
    expect(new Set(failures)).toEqual(new Set(['STOPPING']))
  })

  it('leaves nothing that keeps its process', async () => {
    const network = await openNetwork()
    const directory = await mkdtemp(join(tmpdir(), 'tallygate-stop-'))
    onTestFinished(async () => rm(directory, { recursive: true }))
    const args = ['--db', network.url, '--store-path', directory, '--http-drain-timeout', '100ms']
    await using twin = await TwinProcess.start(args)
    network.fallInactive()
    expect(await twin.end('SIGTERM')).toBe(0)
  })

  it('has five seconds by default: four for its work and one for the broker', () => {
    const settings = loadSettings(cloudOptions, { file: null, env: {}, flags: {}, readText: () => '' })
    expect(settings.http.drainTimeout + 1_000).toBeLessThanOrEqual(5_000)
  })
})
