/**
 * `npm run bench:fleet`: what a fleet of devices costs the cloud, and whether one line item that all share is ever
 * oversold. See docs/explanation/benchmarks.md.
 */
import { randomUUID } from 'node:crypto'
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { cpus } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber } from '../scripts/whole-number.ts'
import { type PostgresServer, ask, startPostgres } from './cloud/postgres-server.ts'
import { type Books, FleetCloud } from './fleet/cloud.ts'
import { lineAccount } from '../src/core/accounts/account.ts'
import type { Command } from './contenders/agent.ts'
import { installation } from './contenders/installation.ts'
import { ENTRIES, LINE_ITEM, PRICE } from './fleet/device.ts'
import { Fleet, type Measured } from './fleet/fleet.ts'
import type { Plan } from './fleet/load.ts'
import { summarize } from './load/latency.ts'
import { processorSeconds } from './measure/process-use.ts'
import { measureStorage } from './measure/storage.ts'
import { markdown, table } from './table.ts'

const USAGE = `npm run bench:fleet -- [OPTION...]

Simulated devices with keys and segments of their own against a cloud, over HTTP: enrollment, a session in each instance,
syncs with ten entries and a grant, the return of all devices after an outage, changed rules, and a line item that all of
them use up. Each device belongs to one of several instances, and to one that all share. Requests are signed before they
are measured. PostgreSQL: TALLYGATE_TEST_POSTGRES_URL, or an installed one that is started for the run.

  --devices N          simulated devices (10000)
  --instances N        instances with a line item each, which share the devices (100)
  --rounds N           syncs of each device in the steady phase (3)
  --connections N      connections that send requests in turn (64)
  --overload N         syncs after the outage begin at N times the steady rate (3)
  --store LIST         databases: sqlite, postgres (sqlite,postgres)
  --nodes N            nodes of the cloud on PostgreSQL (1)
  --processes N        processes of the devices (1)
  --state-dir DIR      where the databases are; not tmpfs (.tallygate in the working folder)
  --markdown           the tables as Markdown
  --help               this text
`

/** Devices and interval of the extrapolation. */
const MILLION = 1_000_000
const INTERVAL_S = 300
const DAY_S = 86_400

/** Connections at a time when all devices come back, as many as the cloud may get. */
const RETURNING_CONNECTIONS = 4_000

const MICRO = 1_000_000n

interface Options {
  readonly devices: number
  readonly instances: number
  readonly rounds: number
  readonly connections: number
  readonly overload: number
  readonly stores: readonly string[]
  readonly nodes: number
  readonly processes: number
  readonly stateDir: string
  readonly show: typeof table
}

interface Phase {
  readonly name: string
  readonly requests: number
  readonly seconds: number
  readonly measured: Measured
  /** Processor time and statements of all requests. */
  readonly cloudSeconds: number
  readonly databaseSeconds: number
  readonly statements: number
  /** Growth of the database. */
  readonly databaseBytes: number
}

interface Run {
  readonly store: string
  readonly cloud: FleetCloud
  readonly fleet: Fleet
  readonly phases: Phase[]
  readonly databaseProcessor: () => number
  sealSeconds: number
  seals: number
}

async function phase(run: Run, name: string, work: () => Promise<Measured>): Promise<Phase> {
  const { cloud, databaseProcessor, phases } = run
  const sample = async () => ({
    bytes: await cloud.databaseBytes(),
    statements: await cloud.statements(),
    cloud: cloud.processorSeconds(),
    database: databaseProcessor(),
  })
  const before = await sample()
  const measured = await work()
  const after = await sample()
  const done: Phase = {
    name,
    requests: measured.latencies.length,
    seconds: (measured.to - measured.from) / 1000,
    measured,
    cloudSeconds: after.cloud - before.cloud,
    databaseSeconds: after.database - before.database,
    statements: after.statements - before.statements,
    databaseBytes: after.bytes - before.bytes,
  }
  phases.push(done)
  return done
}

async function seal(run: Run, kind: { isShared: boolean; hasEntries: boolean }, wanted: bigint): Promise<void> {
  const seconds = await run.fleet.seal(kind.isShared, kind.hasEntries, wanted)
  if (!kind.hasEntries) return
  run.sealSeconds += seconds
  run.seals += 1
}

/** @returns what the books say */
async function measure(run: Run, options: Options): Promise<string> {
  const { cloud, fleet } = run
  const { devices, rounds, connections, overload } = options
  const plan: Plan = { connections, rate: null }
  await cloud.start()
  await cloud.rate()
  const perDevice = (PRICE * BigInt(ENTRIES * (rounds + 4))) / MICRO + 2n
  const ownIds: string[] = []
  while (ownIds.length < options.instances) ownIds.push(await cloud.instance(BigInt(devices) * perDevice))
  // A token for each device, of which each requests a hundred.
  const sharedId = await cloud.instance(BigInt(devices))
  await fleet.make()
  const owners = Array.from({ length: devices }, (_, index) => ownIds[index % ownIds.length] ?? '')
  const enrollments = await cloud.enrollments(owners, sharedId)
  await phase(run, 'enroll', () => fleet.enroll(enrollments, sharedId, cloud.addresses, plan))
  await phase(run, 'attach', () => fleet.send('attach', plan))
  const enough = PRICE * BigInt(ENTRIES)
  const own = { isShared: false, hasEntries: true }
  await seal(run, { isShared: false, hasEntries: false }, enough)
  await phase(run, 'first sync', () => fleet.send('sync', plan))
  await phase(run, 'open sessions', () => fleet.send('open-sessions', plan))
  let rate = 0
  for (let round = 0; round < rounds; round += 1) {
    await seal(run, own, enough)
    const { requests, seconds } = await phase(run, `sync ${round + 1}`, () => fleet.send('sync', plan))
    rate = Math.max(rate, requests / seconds)
  }
  if (fleet.refused > 0) throw new Error(`${fleet.refused} entries were refused although there were tokens`)
  await seal(run, own, enough)
  await cloud.stop()
  await cloud.start()
  const returning = { connections: RETURNING_CONNECTIONS, rate: rate * overload }
  await phase(run, `return at ${overload} × peak`, () => fleet.send('sync', returning))
  await cloud.setQuantity(sharedId, BigInt(devices) + 1n)
  await phase(run, 'new rules', () => fleet.send('policy', plan))
  const shared = { isShared: true, hasEntries: true }
  for (let round = 0; round < 2; round += 1) {
    await seal(run, shared, 100n * MICRO)
    await phase(run, `shared line item ${round + 1}`, () => fleet.send('sync', plan))
  }
  // Delivers what was recorded after the last grant.
  await seal(run, shared, 0n)
  await phase(run, 'last sync', () => fleet.send('sync', plan))
  await cloud.stop()
  return auditOf(await cloud.books(), fleet, lineAccount(sharedId, LINE_ITEM, 0))
}

/** @throws Error if the books of the cloud and of the devices differ by a micro-token, or a token was sold twice */
function auditOf(books: readonly Books[], fleet: Fleet, shared: string): string {
  const problems = fleet.refused > 0 ? [] : ['the shared line item was not used up']
  const known = new Map(books.map((book) => [book.account, book]))
  for (const [account, { granted, used }] of fleet.balances) {
    const book = known.get(account)
    if (book === undefined) throw new Error(`the cloud has no account ${account}`)
    const { charged, grantedOut, billedByDevices, cap } = book
    if (grantedOut !== granted) problems.push(`${account}: granted ${grantedOut}, on devices ${granted}`)
    if (billedByDevices !== used) problems.push(`${account}: billed ${billedByDevices}, used ${used}`)
    if (charged + grantedOut > cap) problems.push(`${account}: sold ${charged + grantedOut} of ${cap}`)
  }
  if (problems.length > 0) throw new Error(`the books are wrong, in micro-tokens: ${problems.join('; ')}`)
  const { cap, grantedOut, billedByDevices } = known.get(shared) ?? { cap: 0n, grantedOut: 0n, billedByDevices: 0n }
  return [
    `All ${fleet.balances.size} accounts agree with their devices to the micro-token.`,
    `The shared line item: quantity ${cap}, granted ${grantedOut}, used and billed ${billedByDevices},`,
    `${fleet.refused} entries refused.`,
  ].join(' ')
}

function report({ store, phases, sealSeconds, seals }: Run, { show, devices }: Options): void {
  const rows = phases.map(({ name, requests, seconds, measured, ...phase }) => {
    const { p50, p99 } = summarize(measured.latencies)
    const each = (value: number, digits: number): string => (value / requests).toFixed(digits)
    return [
      name,
      String(requests),
      (requests / seconds).toFixed(0),
      p50.toFixed(0),
      p99.toFixed(0),
      each(phase.cloudSeconds * 1000, 2),
      each(phase.databaseSeconds * 1000, 2),
      each(measured.deviceSeconds * 1000, 2),
      each(phase.statements, 1),
      each(measured.bytesSent, 0),
      each(measured.bytesReceived, 0),
      each(phase.databaseBytes, 0),
    ]
  })
  const head = [store, 'requests', 'per s', 'p50 ms', 'p99 ms', 'cloud ms', 'database ms', 'devices ms', 'statements']
  console.log(show([[...head, 'bytes sent', 'bytes received', 'bytes stored'], ...rows], 1))
  console.log(`\nProcessor time and the columns to the right of it are per request.`)
  console.log(
    `Sealing a segment takes ${((sealSeconds * 1000) / (seals * devices)).toFixed(2)} ms of a device, before the measurement.`,
  )
}

function reportReturn({ phases }: Run): void {
  const peak = Math.max(
    ...phases.filter(({ name }) => name.startsWith('sync')).map(({ requests, seconds }) => requests / seconds),
  )
  const back = phases.find(({ name }) => name.startsWith('return'))
  if (back === undefined) return
  const { requests, seconds, measured } = back
  const retried = Object.entries(measured.retried)
    .map(([reason, count]) => `${count} × ${reason}`)
    .join(', ')
  const share = ((100 * requests) / seconds / peak).toFixed(0)
  console.log(
    `All devices were back after ${seconds.toFixed(1)} s: goodput ${share} % of the peak; ${measured.attempts} attempts (retried: ${retried || 'none'}).`,
  )
}

/** By the mean of the steady syncs. */
function extrapolate({ phases }: Run): void {
  const steady = phases.filter(({ name }) => name.startsWith('sync'))
  const sum = (of: (phase: Phase) => number): number => steady.reduce((all, phase) => all + of(phase), 0)
  const requests = sum((phase) => phase.requests)
  const rate = MILLION / INTERVAL_S
  const perSecond = (of: (phase: Phase) => number): number => (sum(of) / requests) * rate
  const bytes = perSecond(({ measured }) => measured.bytesSent + measured.bytesReceived)
  console.log(
    [
      `1,000,000 devices at ${INTERVAL_S} s, by proportion: ${rate.toFixed(0)} syncs/s`,
      `${perSecond(({ cloudSeconds }) => cloudSeconds).toFixed(1)} processors for the cloud`,
      `${perSecond(({ databaseSeconds }) => databaseSeconds).toFixed(1)} for the database server`,
      `${perSecond(({ statements }) => statements).toFixed(0)} statements/s`,
      `${(bytes / 1e6).toFixed(1)} MB/s of bodies`,
      `${((perSecond(({ databaseBytes }) => databaseBytes) * DAY_S) / 1e9).toFixed(0)} GB stored a day`,
    ].join(', '),
  )
}

async function runStore(store: string, options: Options, command: Command, parent: string): Promise<void> {
  const directory = mkdtempSync(join(parent, 'bench-fleet-'))
  // The database's user needs access to subdirectories.
  chmodSync(directory, 0o711)
  let postgres: PostgresServer | null = null
  try {
    let db: string | null = null
    if (store === 'postgres') {
      const started = await startPostgres(directory)
      if (typeof started === 'string') {
        console.log(`PostgreSQL is left out: ${started}`)
        return
      }
      postgres = started
      const name = `fleet_${randomUUID().replaceAll('-', '')}`
      await ask(postgres.url, `CREATE DATABASE ${name}`)
      const url = new URL(postgres.url)
      url.pathname = `/${name}`
      db = url.href
    }
    const pid = postgres !== null && 'pid' in postgres ? Number(postgres.pid) : null
    using fleet = new Fleet(options.devices, options.processes)
    const cloud = new FleetCloud(command, directory, db, options.nodes)
    const databaseProcessor = (): number => (pid === null ? 0 : processorSeconds(pid))
    const run: Run = { store, cloud, fleet, phases: [], databaseProcessor, sealSeconds: 0, seals: 0 }
    let books: string
    try {
      books = await measure(run, options)
    } finally {
      await cloud.stop()
    }
    report(run, options)
    reportReturn(run)
    console.log(books)
    extrapolate(run)
    console.log('')
  } finally {
    await postgres?.stop()
    rmSync(directory, { recursive: true, force: true })
  }
}

function parse(): Options {
  const { values } = parseArgs({
    options: {
      devices: { type: 'string', default: '10000' },
      instances: { type: 'string', default: '100' },
      rounds: { type: 'string', default: '3' },
      connections: { type: 'string', default: '64' },
      overload: { type: 'string', default: '3' },
      store: { type: 'string', default: 'sqlite,postgres' },
      nodes: { type: 'string', default: '1' },
      processes: { type: 'string', default: '1' },
      'state-dir': { type: 'string', default: '.tallygate' },
      markdown: { type: 'boolean', default: false },
    },
  })
  type Counted = 'devices' | 'instances' | 'rounds' | 'connections' | 'overload' | 'nodes' | 'processes'
  const count = (name: Counted): number => wholeNumber(`--${name}`, values[name], 1_000_000)
  const stores = values.store.split(',').map((text) => text.trim())
  const unknown = stores.find((name) => name !== 'sqlite' && name !== 'postgres')
  if (unknown !== undefined) throw new Error(`--store takes sqlite and postgres, not '${unknown}'`)
  return {
    devices: count('devices'),
    instances: count('instances'),
    rounds: count('rounds'),
    connections: count('connections'),
    overload: count('overload'),
    stores,
    nodes: count('nodes'),
    processes: count('processes'),
    stateDir: values['state-dir'],
    show: values.markdown ? markdown : table,
  }
}

const options = orUsage(USAGE, parse)
const parent = resolve(options.stateDir)
mkdirSync(parent, { recursive: true })
const { fileSystem, device, appendMs } = measureStorage(parent)
const model = cpus()[0]?.model.trim() ?? 'unknown'
console.log(`machine   ${cpus().length} x ${model}, Node ${process.versions.node}; devices run on it, too`)
console.log(`storage   ${fileSystem} on ${device}; 4 KiB and fdatasync, median: ${appendMs.toFixed(3)} ms`)
console.log(
  `fleet     ${options.devices} devices of ${options.instances} instances, ${ENTRIES} entries in each sync, ${options.connections} connections\n`,
)
const built = mkdtempSync(join(parent, 'bench-fleet-'))
try {
  const { command } = await installation(null, built)
  for (const store of options.stores) await runStore(store, options, command, parent)
} finally {
  rmSync(built, { recursive: true, force: true })
}
