/**
 * `npm run bench:cloud`: one-off access requests per second per store, compared with the same framework writing only a
 * row. `--nodes`: numbers of nodes that share one PostgreSQL, compared with each other. See docs/explanation/benchmarks.md.
 */
import { randomUUID } from 'node:crypto'
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { cpus } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber, wholeNumbers } from '../scripts/whole-number.ts'
import { type PostgresServer, ask, startPostgres } from './cloud/postgres-server.ts'
import { type Books, type Loaded, MICRO_CHARGED, startFloor, startCloud } from './cloud/servers.ts'
import type { Command } from './contenders/agent.ts'
import { installation } from './contenders/installation.ts'
import type { LoadReport } from './load/closed-loop.ts'
import { LoadGenerator } from './load/generator.ts'
import { median } from './load/latency.ts'
import { machineSeconds } from './measure/process-use.ts'
import { measureStorage } from './measure/storage.ts'
import { table } from './table.ts'

const USAGE = `npm run bench:cloud -- [OPTION...]

One-off access requests per second over HTTP, durable in the cloud's store, beside an empty handler of the same framework
that writes one row. PostgreSQL: TALLYGATE_TEST_POSTGRES_URL, or an installed one that is started for the run.

  --connections LIST   connections that ask in turn, over all nodes (1,16,64)
  --seconds N          length of one measurement (3)
  --rounds N           alternating rounds; the table shows medians over them (3)
  --nodes LIST         nodes of the cloud over one PostgreSQL (1); with more than one, SQLite is left out
  --node-processors N  part of a processor that each node may use, for example 0.25 (all; needs root)
  --instances N        instances over which the requests are spread (1)
  --store LIST         sqlite, postgres (sqlite,postgres)
  --state-dir DIR      where the stores keep their data (.tallygate in the working folder)
  --help               this text
`

const WARMUP_MS = 3_000
const RAMP_MS = 100

interface Contender {
  readonly name: string
  readonly store: string
  /** 0: the floor. */
  readonly nodes: number
  start(directory: string): Promise<{ readonly loaded: Loaded; readonly cleanUp: () => Promise<void> }>
}

interface Measurement {
  readonly contender: Contender
  readonly connections: number
  readonly perSecond: number
  readonly p50: number
  readonly p99: number
  /** Processors of the machine that were busy, those of the load included. */
  readonly busy: number
}

interface Account {
  readonly contender: string
  readonly acknowledged: number
  readonly books: Books
}

interface Compared {
  readonly command: Command
  readonly sqlite: boolean
  readonly postgres: PostgresServer | undefined
  readonly nodes: readonly number[]
  readonly instances: number
}

function contenders({ command, sqlite, postgres, nodes, instances }: Compared): readonly Contender[] {
  const list: Contender[] = []
  const none = async (): Promise<void> => undefined
  if (sqlite) {
    const store = 'SQLite'
    list.push({
      ...{ name: 'cloud', store, nodes: 1 },
      start: async (directory) => ({
        loaded: await startCloud(directory, { command, nodes: 1, instances }, null),
        cleanUp: none,
      }),
    })
    list.push({
      ...{ name: 'floor', store, nodes: 0 },
      start: async (directory) => ({ loaded: await startFloor(directory, null), cleanUp: none }),
    })
  }
  if (postgres !== undefined) {
    const store = 'PostgreSQL'
    const inSchema = async (start: (url: string) => Promise<Loaded>) => {
      const name = `bench_${randomUUID().replaceAll('-', '')}`
      await ask(postgres.url, `CREATE SCHEMA ${name}`)
      const url = new URL(postgres.url)
      url.searchParams.set('options', `-csearch_path=${name}`)
      const cleanUp = async (): Promise<void> => {
        await ask(postgres.url, `DROP SCHEMA ${name} CASCADE`)
      }
      return { loaded: await start(url.href), cleanUp }
    }
    for (const each of nodes) {
      list.push({
        ...{ name: each === 1 ? 'cloud' : `cloud, ${each} nodes`, store, nodes: each },
        start: (directory) => inSchema((url) => startCloud(directory, { command, nodes: each, instances }, url)),
      })
    }
    list.push({
      ...{ name: 'floor', store, nodes: 0 },
      start: (directory) => inSchema((url) => startFloor(directory, url)),
    })
  }
  return list
}

async function load(
  generators: readonly LoadGenerator[],
  { targets }: Loaded,
  connections: number,
  times: { warmupMs: number; durationMs: number },
): Promise<LoadReport[]> {
  const orders = targets.map((target, index) => {
    const share = Math.floor(connections / targets.length) + (index < connections % targets.length ? 1 : 0)
    return { target, connections: share, ...times }
  })
  const busy = orders.filter((order) => order.connections > 0)
  return Promise.all(
    busy.map(async (order, index) => {
      const generator = generators[index]
      if (generator === undefined) throw new Error('one generator for each node')
      return generator.run(order)
    }),
  )
}

const NUMBER_MAX = 1_000

const options = orUsage(USAGE, () => {
  const { values } = parseArgs({
    options: {
      connections: { type: 'string', default: '1,16,64' },
      seconds: { type: 'string', default: '3' },
      rounds: { type: 'string', default: '3' },
      nodes: { type: 'string', default: '1' },
      'node-processors': { type: 'string' },
      instances: { type: 'string', default: '1' },
      store: { type: 'string', default: 'sqlite,postgres' },
      'state-dir': { type: 'string', default: '.tallygate' },
    },
  })
  const nodeProcessors = values['node-processors'] === undefined ? null : Number(values['node-processors'])
  if (nodeProcessors !== null && !(nodeProcessors >= 0.01 && nodeProcessors <= 1)) {
    throw new Error(
      `--node-processors takes a part of a processor, for example 0.25, not '${values['node-processors']}'`,
    )
  }
  const stores = values.store.split(',')
  const unknown = stores.find((name) => name !== 'sqlite' && name !== 'postgres')
  if (unknown !== undefined) throw new Error(`--store takes sqlite and postgres, not '${unknown}'`)
  return {
    connections: wholeNumbers('--connections', values.connections, NUMBER_MAX),
    nodes: wholeNumbers('--nodes', values.nodes, NUMBER_MAX),
    nodeProcessors,
    stores,
    rounds: wholeNumber('--rounds', values.rounds, NUMBER_MAX),
    instances: wholeNumber('--instances', values.instances, NUMBER_MAX),
    seconds: wholeNumber('--seconds', values.seconds, NUMBER_MAX),
    parent: resolve(values['state-dir']),
  }
})

async function main(): Promise<void> {
  const { connections, nodes, nodeProcessors, stores, rounds, instances, seconds, parent } = options
  mkdirSync(parent, { recursive: true })
  const directory = mkdtempSync(join(parent, 'bench-cloud-'))
  // The database's user needs access to subdirectories.
  chmodSync(directory, 0o711)
  const generators = Array.from({ length: Math.max(...nodes) }, () => new LoadGenerator())
  let postgres: PostgresServer | string = 'not looked for'
  try {
    const storage = measureStorage(directory)
    if (stores.includes('postgres')) {
      postgres = await startPostgres(directory)
      if (typeof postgres === 'string') console.log(`PostgreSQL is left out: ${postgres}`)
    }
    const { command } = await installation(null, directory)
    const list = contenders({
      command,
      sqlite: stores.includes('sqlite') && Math.max(...nodes) === 1,
      postgres: typeof postgres === 'string' ? undefined : postgres,
      nodes,
      instances,
    })
    const measurements: Measurement[] = []
    const accounts: Account[] = []
    for (let round = 0; round < rounds; round += 1) {
      for (const contender of list) {
        const place = mkdtempSync(join(directory, 'place-'))
        const { loaded, cleanUp } = await contender.start(place)
        const most = Math.max(...connections)
        let acknowledged = total(await load(generators, loaded, most, { warmupMs: 0, durationMs: WARMUP_MS }))
        // Not before: compiling would take most of it.
        if (nodeProcessors !== null) loaded.limit(nodeProcessors)
        for (const each of connections) {
          const before = { used: machineSeconds(), at: performance.now() }
          const reports = await load(generators, loaded, each, { warmupMs: RAMP_MS, durationMs: seconds * 1_000 })
          const busy = ((machineSeconds() - before.used) * 1_000) / (performance.now() - before.at)
          acknowledged += total(reports)
          measurements.push({
            contender,
            connections: each,
            perSecond: reports.reduce((sum, report) => sum + report.perSecond, 0),
            p50: Math.max(...reports.map(({ latency }) => latency.p50)),
            p99: Math.max(...reports.map(({ latency }) => latency.p99)),
            busy,
          })
        }
        const books = await loaded.killAndAudit()
        requireExact(contender, acknowledged, books)
        accounts.push({ contender: `${contender.name} on ${contender.store}`, acknowledged, books })
        await cleanUp()
        rmSync(place, { recursive: true, force: true })
      }
    }
    console.log(`machine   ${cpus().length} x ${cpus()[0]?.model.trim() ?? 'unknown'}, Node ${process.versions.node}`)
    console.log(
      `storage   ${storage.fileSystem} on ${storage.device}; 4 KiB and fdatasync, median: ${storage.appendMs.toFixed(3)} ms`,
    )
    if (typeof postgres !== 'string') console.log(`database  PostgreSQL ${postgres.version}`)
    const spread = instances === 1 ? '' : `, requests spread over ${instances} instances`
    if (nodeProcessors !== null) console.log(`nodes     each may use ${nodeProcessors} of a processor`)
    console.log(`load      closed loop, ${rounds} alternating rounds of ${seconds} s, medians${spread}\n`)
    console.log(table(rowsOf(list, connections, measurements), 3))
    console.log('')
    for (const { contender, acknowledged, books } of accounts) {
      const pool = books.pool === null ? '' : `, charged ${books.pool.charged} of ${books.pool.cap} micro-tokens`
      console.log(`${contender}: ${acknowledged} acknowledged, ${books.recorded} rows after kill -9${pool}: exact`)
    }
  } finally {
    for (const generator of generators) generator.stop()
    if (typeof postgres !== 'string') await postgres.stop()
    rmSync(directory, { recursive: true, force: true })
  }
}

function total(reports: readonly LoadReport[]): number {
  return reports.reduce((sum, { acknowledged }) => sum + acknowledged, 0)
}

/** @throws Error unless acknowledged, charged and recorded are equal and within the cap */
function requireExact({ name, store }: Contender, acknowledged: number, { recorded, pool }: Books): void {
  const charged = pool === null ? acknowledged : Number(pool.charged / MICRO_CHARGED)
  const whole = pool === null || (pool.charged % MICRO_CHARGED === 0n && pool.charged <= pool.cap)
  if (recorded === acknowledged && charged === acknowledged && whole) return
  throw new Error(`${name} on ${store} acknowledged ${acknowledged}, charged ${charged}, and has recorded ${recorded}`)
}

function rowsOf(
  list: readonly Contender[],
  connections: readonly number[],
  measurements: readonly Measurement[],
): string[][] {
  const figures = (contender: Contender, each: number) =>
    measurements.filter((one) => one.contender === contender && one.connections === each)
  /** The median of the ratios to the contender with so many nodes. */
  const of = (nodes: number, contender: Contender, each: number): string => {
    const other = list.find((one) => one.store === contender.store && one.nodes === nodes)
    if (other === undefined || contender.nodes <= nodes) return ''
    const bases = figures(other, each)
    const ratios = figures(contender, each).flatMap(({ perSecond }, round) => {
      const base = bases[round]
      return base === undefined ? [] : [perSecond / base.perSecond]
    })
    return median(ratios).toFixed(2)
  }
  const titles = ['connections', 'store', 'server', 'requests/s', 'p50 ms', 'p99 ms', 'busy processors']
  const rows = [[...titles, 'of floor', 'of one node']]
  for (const each of connections) {
    for (const contender of list) {
      const own = figures(contender, each)
      rows.push([
        String(each),
        contender.store,
        contender.name,
        Math.round(median(own.map(({ perSecond }) => perSecond))).toLocaleString('en'),
        median(own.map(({ p50 }) => p50)).toFixed(2),
        median(own.map(({ p99 }) => p99)).toFixed(2),
        median(own.map(({ busy }) => busy)).toFixed(2),
        of(0, contender, each),
        of(1, contender, each),
      ])
    }
  }
  return rows
}

try {
  await main()
} catch (error) {
  console.error(`bench: ${error instanceof Error ? error.message : String(error)}`)
  process.exitCode = 1
}
