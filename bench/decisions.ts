/**
 * `npm run bench`: durable decisions per second and latency over the Unix socket. See docs/explanation/benchmarks.md.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { cpus } from 'node:os'
import { join, resolve } from 'node:path'
import Database from 'better-sqlite3'
import { agent, measureSizes, writeBehindAgent } from './contenders/agent.ts'
import { floor } from './contenders/floor.ts'
import { withPlace } from './contenders/place.ts'
import { redis, redisVersion } from './contenders/redis.ts'
import { median } from './load/latency.ts'
import { measureStorage } from './measure/storage.ts'
import { type Options, USAGE, parseOptions } from './options.ts'
import { type Conditions, linesOf, reportText } from './report.ts'
import { runRounds } from './rounds.ts'

/** Load before the measurement, to compile the code, ms. */
const WARMUP_MS = 2_000

/** Pause before the memory at rest is measured, ms. */
const REST_MS = 1_000

async function main(options: Options, directory: string): Promise<void> {
  const storage = measureStorage(directory)
  if (storage.fileSystem === 'tmpfs') throw new Error(`${directory} is on tmpfs, where nothing lasts: give --state-dir`)
  const sizes = await withPlace(directory, measureSizes)
  const version = redisVersion()
  const floors = options.stacks.map((stack) => floor(stack, sizes))
  const plan = {
    contenders: [agent, writeBehindAgent, ...floors, ...(version === undefined ? [] : [redis(sizes.entryBytes)])],
    connections: options.connections,
    rounds: options.rounds,
    durationMs: options.seconds * 1000,
    warmupMs: WARMUP_MS,
    restMs: REST_MS,
    directory,
  }
  const results = await runRounds(plan, showProgress)
  showProgress('')
  const lines = linesOf(results, { floor: floors[0]?.name ?? '', redis: 'redis', agent: agent.name })
  const conditions: Conditions = {
    processors: `${cpus().length} x ${cpus()[0]?.model.trim() ?? 'unknown'}`,
    node: process.versions.node,
    sqlite: sqliteVersion(),
    redis: version ?? null,
    storage,
    rounds: options.rounds,
    seconds: options.seconds,
    othersBusy: median(results.measurements.map(({ othersBusy }) => othersBusy)),
  }
  if (options.json) console.log(JSON.stringify({ conditions, sizes, lines, ...results }, null, 2))
  else console.log(reportText(conditions, lines, results.accounts, { agent: agent.name, floor: floors[0]?.name ?? '' }))
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

async function run(args: readonly string[]): Promise<void> {
  const options = parseOptions(args)
  if (options === undefined) {
    process.stdout.write(USAGE)
    return
  }
  const parent = resolve(options.stateDir)
  mkdirSync(parent, { recursive: true })
  const directory = mkdtempSync(join(parent, 'bench-'))
  try {
    await main(options, directory)
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

try {
  await run(process.argv.slice(2))
} catch (error) {
  console.error(`bench: ${error instanceof Error ? error.message : String(error)}`)
  process.exitCode = 1
}
