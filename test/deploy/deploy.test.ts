// What stands in deploy/ fits the programs: every metric that an alert or a panel names is one that they tell, and every variable and
// path of the compose file is one that they read.
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { type ServerResponse, createServer as createHttpServer } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { dirname, join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { metricsText } from '../../src/agent/platform/status-http/metrics-text.ts'
import { agentOptions } from '../../src/agent/settings.ts'
import { Metrics } from '../../src/cloud/platform/metrics/metrics.ts'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { namedOptions } from '../../src/settings/option.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { reportWith } from '../agent/platform/status-http/report-with.ts'
import { Authority } from '../support/certificates.ts'
import { parsePrometheusText } from '../support/prometheus-text.ts'

const folder = (path: string): string => new URL(`../../deploy/${path}`, import.meta.url).pathname
const text = (path: string): string => readFileSync(folder(path), 'utf8')

/** Type of each metric, by name. */
async function metricTypes(): Promise<ReadonlyMap<string, string>> {
  const totals = async () => ({ sessions: new Map(), outbox: 0, tokensOnDevices: 0n }) as never
  const deps = {
    version: '1',
    totals,
    totalsTimeoutMs: 1_000,
    lastBackupAt: () => 1,
    paused: () => [],
    waiting: () => 0,
  }
  const cloud = await new Metrics(deps).text()
  const cell = await new Metrics({ ...deps, part: { cell: 'south' } }).text()
  const agent = metricsText(reportWith(), { ready: true, checks: [] })
  const families = [cloud, cell, agent].flatMap((each) => [...parsePrometheusText(each)])
  return new Map(families.map(([name, { type }]) => [name, type]))
}

/** Names of all series, those of histograms included. */
async function seriesNames(): Promise<ReadonlySet<string>> {
  const namesOf = ([name, type]: readonly [string, string]): readonly string[] =>
    type === 'histogram' ? ['_bucket', '_sum', '_count'].map((suffix) => name + suffix) : [name]
  return new Set([...(await metricTypes())].flatMap(namesOf))
}

/** By reason: metrics that no alert reads. */
const WITHOUT_ALERT: Readonly<Record<string, readonly string[]>> = {
  'Show the load or the sales; no value is a fault.': [
    'tallygate_http_request_duration_seconds',
    'tallygate_http_device_requests_waiting',
    'tallygate_decisions_total',
    'tallygate_usage_records_total',
    'tallygate_usage_archived_records_total',
    'tallygate_tokens_charged_total',
    'tallygate_tokens_refunded_total',
    'tallygate_tokens_on_devices',
    'tallygate_automatic_charges_total',
    'tallygate_refunds_total',
    'tallygate_sessions',
    'tallygate_agent_ledger_entries',
    'tallygate_agent_ledger_size_bytes',
    'tallygate_agent_memory_pss_bytes',
    'tallygate_agent_tokens_available',
    'tallygate_agent_tokens_used',
    'tallygate_agent_tokens_refunded',
  ],
  'Describe the process.': ['tallygate_build_info', 'tallygate_agent_build_info', 'tallygate_agent_start_time_seconds'],
  'Any client can cause it.': ['tallygate_http_bodies_incomplete_total'],
  'TallygateStoreUnreachable covers it: the totals of the cell are missing too.': ['tallygate_cell_up'],
  'TallygateDeviceRefuses covers it.': ['tallygate_agent_suspended'],
  'TallygateDeviceProblem covers a fault; else the next sync ends it.': [
    'tallygate_agent_push_connected',
    'tallygate_agent_policies_behind',
  ],
  'TallygateDevicesOverdue covers it.': [
    'tallygate_agent_last_contact_timestamp_seconds',
    'tallygate_agent_last_sync_timestamp_seconds',
  ],
  'The engine allows for it: a wide interval is no fault.': ['tallygate_agent_clock_uncertainty_seconds'],
  'The cost of power cuts that durability "write-behind" accepts.': ['tallygate_agent_tokens_burned'],
  'TallygateDeviceProblem covers it: the agent compares them with the budget.': [
    'tallygate_agent_storage_written_bytes_total',
    'tallygate_agent_storage_written_bytes_per_decision',
    'tallygate_agent_storage_written_bytes_per_day',
    'tallygate_agent_storage_write_budget_bytes_per_day',
  ],
}

/** Names of our series in an expression. */
const namesIn = (expression: string): readonly string[] => expression.match(/\btallygate_[a-z_]+/g) ?? []

function rulesIn(): readonly string[] {
  return [...text('prometheus/tallygate.rules.yml').matchAll(/^ +expr: (.+)$/gm)].map(([, expression]) => expression!)
}

function panelsIn(): readonly string[] {
  const dashboard = JSON.parse(text('grafana/tallygate.json')) as {
    panels: { id: number; targets?: { expr: string }[] }[]
  }
  expect(new Set(dashboard.panels.map(({ id }) => id)).size).toBe(dashboard.panels.length)
  return dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr))
}

describe('alerts and dashboard', () => {
  it.each([
    ['alerts', rulesIn, 10],
    ['panels', panelsIn, 15],
  ])('find each metric of the %s', async (_what, expressions, least) => {
    const found = expressions()
    expect(found.length).toBeGreaterThanOrEqual(least)
    const series = await seriesNames()
    expect(found.flatMap(namesIn).filter((name) => !series.has(name))).toEqual([])
  })

  it('alert on every metric that can show a fault', async () => {
    const read = new Set(
      rulesIn()
        .flatMap(namesIn)
        .map((name) => name.replace(/_bucket$/, '')),
    )
    const own = [...(await metricTypes()).keys()].filter((name) => name.startsWith('tallygate_'))
    expect(own.filter((name) => !read.has(name)).toSorted()).toEqual(Object.values(WITHOUT_ALERT).flat().toSorted())
  })

  it('ask for levels that the agent reports', () => {
    const levels = [
      ...rulesIn()
        .join('\n')
        .matchAll(/tallygate_agent_health\{level="([a-z]+)"\}/g),
    ].map(([, level]) => level)
    const known = [
      ...metricsText(reportWith(), { ready: true, checks: [] }).matchAll(/tallygate_agent_health\{level="([a-z]+)"\}/g),
    ]
    expect(levels).not.toEqual([])
    expect(levels.filter((level) => !known.some(([, each]) => each === level))).toEqual([])
  })
})

describe('the compose file', () => {
  const compose = parse(text('compose.yaml')) as Compose
  const services = Object.entries(compose.services)

  it('sets variables that are settings', () => {
    const options = [...namedOptions(agentOptions), ...namedOptions(cloudOptions)]
    // A secret may also be the value itself.
    const known = options.flatMap(({ env, option }) => (option.secret ? [env, env.replace(/_FILE$/, '')] : [env]))
    const set = [...text('compose.yaml').matchAll(/^ +(TALLYGATE_(?:AGENT|CLOUD)_[A-Z_]+):/gm)].map(([, name]) => name!)
    expect(set.length).toBeGreaterThan(8)
    expect(set.filter((name) => !known.includes(name))).toEqual([])
  })

  it('serves the console at the port that it publishes', () => {
    const { environment = {}, ports } = compose.services['cloud']!
    const env = Object.fromEntries(
      Object.entries(environment).map(([name, value]) => [name, value.replace(/\$\{\w+:-([^}]*)\}/, '$1')]),
    )
    const { http } = loadSettings(cloudOptions, { file: null, env, flags: {}, readText: () => 'secret' })
    expect([http.console, ports]).toEqual(['on', [`127.0.0.1:\${CLOUD_PORT:-}:${http.port}`]])
  })

  it('gives the cloud more time for a stop than it takes', () => {
    const cloud = /^ {2}cloud:\n(?:(?: {4}.*)?\n)+/m.exec(text('compose.yaml'))?.[0] ?? ''
    const { http } = loadSettings(cloudOptions, { file: null, env: {}, flags: {}, readText: () => '' })
    expect(Number(/stop_grace_period: (\d+)s/.exec(cloud)?.[1]) * 1_000).toBeGreaterThan(http.drainTimeout + 1_000)
  })

  it.each(['http', 'https'])('checks the readiness of a cloud that serves %s', async (scheme) => {
    await using authority = await Authority.make()
    const { certificate, key } = await authority.certify(Date.now() + 86_400_000)
    const server = scheme === 'http' ? createHttpServer() : createHttpsServer({ cert: certificate, key })
    let status = 200
    server.on('request', (_request, response: ServerResponse) => response.writeHead(status).end())
    await once(server.listen(0, '127.0.0.1'), 'listening')
    const [, command, ...words] = compose.services['cloud']!.healthcheck!.test!
    const { port } = server.address() as AddressInfo
    const env = scheme === 'http' ? {} : { TALLYGATE_CLOUD_TLS_CERTIFICATE_FILE: '/cloud.pem' }
    const exitCode = async (): Promise<unknown> => {
      const check = spawn(
        command!,
        words.map((word) => word.replace(':7080', `:${port}`)),
        {
          env: { PATH: process.env['PATH'], ...env },
        },
      )
      return (await once(check, 'exit'))[0]
    }
    const ready = await exitCode()
    status = 503
    expect([ready, await exitCode()]).toEqual([0, 1])
    server.close()
  })

  it('has commands and health checks of texts only: a colon in plain YAML makes an object', () => {
    for (const [name, { command, healthcheck }] of services) {
      for (const part of [command ?? [], healthcheck?.test ?? []].flat()) expect(typeof part, name).toBe('string')
    }
  })

  it('has no spaces in the words of health checks: Podman splits words that come from compose', () => {
    const words = services.flatMap(([, { healthcheck }]) => healthcheck?.test ?? [])
    expect(words.length).toBeGreaterThan(20)
    expect(words.filter((word) => word.includes(' '))).toEqual([])
  })

  it('brings files that are there', () => {
    const files = services.flatMap(([, { volumes = [] }]) => volumes.filter((each) => each.startsWith('./')))
    expect(files.length).toBeGreaterThan(8)
    for (const file of files) expect(existsSync(folder(file.split(':')[0]!)), file).toBe(true)
  })

  it('uses volumes and services that it declares', () => {
    for (const [name, { volumes = [], depends_on: others = {} }] of services) {
      const own = volumes.map((each) => each.split(':')[0]!).filter((each) => !each.startsWith('.'))
      expect(Object.keys(compose.volumes), name).toEqual(expect.arrayContaining(own))
      expect(Object.keys(compose.services), name).toEqual(expect.arrayContaining(Object.keys(others)))
    }
  })

  it('checks each server on which another waits, and takes no fixed port of the machine', () => {
    for (const [, { depends_on: others = {} }] of services)
      for (const [other, { condition }] of Object.entries(others))
        if (condition === 'service_healthy') expect(compose.services[other]?.healthcheck?.test, other).toBeDefined()
    const ports = services.flatMap(([, { ports: some = [] }]) => some)
    expect(ports).toHaveLength(4)
    for (const port of ports) expect(port).toMatch(/^127\.0\.0\.1:\$\{[A-Z]+_PORT:-\}:\d+$/)
  })

  it('creates each secret that a service reads, once', () => {
    const secrets = temporaryDirectory()
    const prepare = () => execFileSync(process.execPath, [folder('prepare.mjs'), secrets])
    const contents = () => readdirSync(secrets).map((name) => [name, readFileSync(join(secrets, name), 'utf8')])
    prepare()
    const first = contents()
    const read = [
      ...`${text('compose.yaml')}${text('mosquitto/mosquitto.conf')}`.matchAll(/\/run\/secrets\/([a-z-]+)/g),
    ]
    expect([...new Set(read.map(([, name]) => name))].sort()).toEqual(first.map(([name]) => name).sort())
    prepare()
    expect(contents()).toEqual(first)
  })

  it('gives Grafana the dashboard and a data source that are in the folders which it names', () => {
    const provider = parse(text('grafana/provisioning/dashboards/tallygate.yml')) as Providers
    const mounted = compose.services['grafana']?.volumes?.map((each) => each.split(':')[1])
    expect(mounted).toContain(`${provider.providers[0]!.options.path}/tallygate.json`)
    const source = parse(text('grafana/provisioning/datasources/prometheus.yml')) as Sources
    expect(source.datasources[0]!.url).toBe('http://prometheus:9090')
  })
})

interface Compose {
  readonly volumes: Readonly<Record<string, unknown>>
  readonly services: Readonly<
    Record<
      string,
      {
        readonly environment?: Readonly<Record<string, string>>
        readonly volumes?: readonly string[]
        readonly command?: readonly string[]
        readonly ports?: readonly string[]
        readonly healthcheck?: { readonly test?: readonly string[] }
        readonly depends_on?: Readonly<Record<string, { readonly condition: string }>>
      }
    >
  >
}

interface Providers {
  readonly providers: readonly { readonly options: { readonly path: string } }[]
}

interface Sources {
  readonly datasources: readonly { readonly url: string }[]
}

describe('service managers of the agent', () => {
  it.each([
    ['systemd', '../systemd/tallygate-agent.service', /^TimeoutStopSec=(\d+)s$/m],
    ['OpenRC', 'openrc/tallygate-agent', /^retry="TERM\/(\d+)\//m],
    ['procd', 'procd/tallygate-agent', /term_timeout (\d+)$/m],
    ['compose', 'compose.yaml', /^ {2}agent:\n(?:(?: {4}.*)?\n)*? {4}stop_grace_period: (\d+)s$/m],
  ])('give it more time for a stop than it takes: %s', (_name, path, time) => {
    const { socket, sync } = loadSettings(agentOptions, { file: null, env: {}, flags: {}, readText: () => '' })
    expect(Number(time.exec(text(path))?.[1]) * 1_000).toBeGreaterThan(socket.drainTimeout + sync.stopTimeout + 1_000)
  })

  it('have the state directory before the agent starts: checkpath of OpenRC creates no parents', () => {
    const script = text('openrc/tallygate-agent')
    const created = [...script.matchAll(/^\t(?:mkdir -p|checkpath --directory .*) (\/\S+)$/gm)].map(([, path]) => path!)
    expect(created).toContain('/var/lib/tallygate/agent')
    expect(created.filter((path) => !['/run', '/var/lib', ...created].includes(dirname(path)))).toEqual([])
  })
})

describe('scripts for other systems', () => {
  it.each(['openrc/tallygate-agent', 'procd/tallygate-agent', 'updates/tallygate-updated'])('%s is valid', (path) => {
    execFileSync('sh', ['-n', folder(path)])
    expect(statSync(folder(path)).mode & 0o111).toBe(0o111)
  })

  it('tallygate-updated waits until the agent responds, and shows why it does not', () => {
    const bin = temporaryDirectory()
    const program = (body: string) => writeFileSync(join(bin, 'tallygate'), `#!/bin/sh\n${body}\n`, { mode: 0o755 })
    const check = (seconds = '0') =>
      spawnSync(folder('updates/tallygate-updated'), [seconds], {
        env: { PATH: `${bin}:${process.env['PATH'] ?? ''}` },
        encoding: 'utf8',
      })
    program('exit 0')
    expect(check().status).toBe(0)
    program('echo DATABASE_NEWER; exit 69')
    expect(check()).toMatchObject({ status: 1, stderr: 'DATABASE_NEWER\n' })
    // The time that the command takes counts, too: a slow device must not exceed the limit.
    program('sleep 1.1; echo AGENT_STARTING; echo . >>"${0%/*}/calls"; exit 75')
    expect(check('1')).toMatchObject({ status: 1, stderr: 'AGENT_STARTING\n' })
    expect(readFileSync(join(bin, 'calls'), 'utf8')).toBe('.\n')
  })
})
