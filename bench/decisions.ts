/**
 * `npm run bench`: decisions per second and latency over the Unix socket. See docs/explanation/benchmarks.md.
 */
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { cpus } from 'node:os'
import { join, resolve } from 'node:path'
import Database from 'better-sqlite3'
import { installedPostgres } from './cloud/postgres-server.ts'
import { agentsOf, measureSizes } from './contenders/agent.ts'
import { cerbos, cerbosVersion } from './contenders/cerbos.ts'
import type { Contender } from './contenders/contender.ts'
import { floor } from './contenders/floor.ts'
import { installation } from './contenders/installation.ts'
import { withPlace } from './contenders/place.ts'
import { postgres } from './contenders/postgres.ts'
import { type RedisProgram, redis, redisVersion } from './contenders/redis.ts'
import { median } from './load/latency.ts'
import { measureStorage } from './measure/storage.ts'
import { orUsage } from '../scripts/or-usage.ts'
import { type Options, USAGE, parseOptions } from './options.ts'
import { type Conditions, linesOf, reportText } from './report.ts'
import { runRounds } from './rounds.ts'
import { markdown, table } from './table.ts'

/** Load before the measurement, to compile the code, ms. */
const WARMUP_MS = 2_000

/** Pause before the memory at rest is measured, ms. */
const REST_MS = 1_000

async function main(options: Options, directory: string): Promise<void> {
  const storage = measureStorage(directory)
  if (storage.fileSystem === 'tmpfs') throw new Error(`${directory} is on tmpfs, where nothing lasts: give --state-dir`)
  const { command } = await installation(null, directory)
  const sizes = await withPlace(directory, measureSizes)
  const peers = peersOf(sizes.entryBytes)
  const floors = options.stacks.map((stack) => floor(stack, sizes))
  const plan = {
    contenders: [...Object.values(agentsOf(command)), ...floors, ...peers.flatMap(({ contenders }) => contenders)],
    connections: options.connections,
    rounds: options.rounds,
    durationMs: options.seconds * 1000,
    warmupMs: WARMUP_MS,
    restMs: REST_MS,
    directory,
    repeatsBodies: options.bodies === 'repeated',
  }
  const results = await runRounds(plan, showProgress)
  showProgress('')
  const lines = linesOf(results)
  const conditions: Conditions = {
    processors: `${cpus().length} x ${cpus()[0]?.model.trim() ?? 'unknown'}`,
    node: process.versions.node,
    sqlite: sqliteVersion(),
    peers: peers.map(({ name, version }) => `${name} ${version ?? 'is not installed'}`),
    storage,
    rounds: options.rounds,
    seconds: options.seconds,
    bodies: options.bodies,
    entryBytes: sizes.entryBytes,
    othersBusy: median(results.measurements.map(({ othersBusy }) => othersBusy)),
  }
  if (options.format === 'json') console.log(JSON.stringify({ conditions, sizes, lines, ...results }, null, 2))
  else console.log(reportText(conditions, lines, results.accounts, options.format === 'markdown' ? markdown : table))
}

interface Peer {
  readonly name: string
  /** Undefined: not installed. */
  readonly version: string | undefined
  readonly contenders: readonly Contender[]
}

function peersOf(entryBytes: number): readonly Peer[] {
  const ofRedis = (name: string, program: RedisProgram): Peer => {
    const version = redisVersion(program)
    const contenders = [
      redis({ name, program, flush: 'always', entryBytes }),
      redis({ name: `${name} (everysec)`, program, flush: 'everysec', entryBytes }),
    ]
    return { name, version, contenders: version === undefined ? [] : contenders }
  }
  const binary = installedPostgres()
  const cerbosIs = cerbosVersion()
  return [
    ofRedis('redis', 'redis-server'),
    ofRedis('valkey', 'valkey-server'),
    {
      name: 'postgresql',
      version: binary === undefined ? undefined : /\/(\d+)\//.exec(binary)?.[1],
      contenders: binary === undefined ? [] : [postgres(binary, entryBytes)],
    },
    { name: 'cerbos', version: cerbosIs, contenders: cerbosIs === undefined ? [] : [cerbos] },
  ]
}

function showProgress(progress: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\u001b[K${progress}`)
}

function sqliteVersion(): string {
  const database = new Database(':memory:')
  try {
    return database.prepare('SELECT sqlite_version()').pluck().get() as string
  } finally {
    database.close()
  }
}

const options = orUsage(USAGE, () => parseOptions(process.argv.slice(2)))

async function run(): Promise<void> {
  const parent = resolve(options.stateDir)
  mkdirSync(parent, { recursive: true })
  const directory = mkdtempSync(join(parent, 'bench-'))
  // PostgreSQL runs as another user.
  chmodSync(directory, 0o711)
  try {
    await main(options, directory)
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

try {
  await run()
} catch (error) {
  console.error(`bench: ${error instanceof Error ? error.message : String(error)}`)
  process.exitCode = 1
}
