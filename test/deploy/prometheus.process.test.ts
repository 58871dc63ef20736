// Prometheus with the settings of deploy/ reads a cloud and a device: each rule can be evaluated, and each panel shows something.
import { readFileSync } from 'node:fs'
import { cp, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { parse, stringify } from 'yaml'
import { openStatus } from '../../src/agent/platform/status-http/server.ts'
import { SCENES } from '../agent/platform/status-http/scenes.ts'
import { openTwin } from '../cloud/harness.ts'
import { deviceAt } from '../scenarios/link/device-at-twin.ts'
import { programForTest } from '../support/program.ts'
import { fromBinary } from '../support/servers.ts'

const deploy = (path: string): string => new URL(`../../deploy/${path}`, import.meta.url).pathname

interface Settings {
  global: { scrape_interval: string; evaluation_interval?: string }
  scrape_configs: { job_name: string; metrics_path?: string; static_configs?: { targets: string[] }[] }[]
}

interface Answer {
  readonly result: readonly { readonly metric: Readonly<Record<string, string>>; readonly value: [number, string] }[]
  readonly groups: readonly {
    readonly rules: readonly { readonly name: string; readonly health: string; readonly lastError?: string }[]
  }[]
}

/** Address of a server that scrapes these addresses each second. */
async function prometheus(cloud: string, device: string): Promise<string> {
  const started = await fromBinary({
    names: ['prometheus'],
    prepare: async (folder, port) => {
      const settings = parse(readFileSync(deploy('prometheus/prometheus.yml'), 'utf8')) as Settings
      settings.global = { scrape_interval: '1s', evaluation_interval: '1s' }
      settings.scrape_configs = settings.scrape_configs.map(({ job_name }) => {
        return { job_name, static_configs: [{ targets: [job_name === 'tallygate-cloud' ? cloud : device] }] }
      })
      await writeFile(join(folder, 'prometheus.yml'), stringify(settings))
      await cp(deploy('prometheus/tallygate.rules.yml'), join(folder, 'tallygate.rules.yml'))
      const data = `--storage.tsdb.path=${join(folder, 'data')}`
      return [`--config.file=${join(folder, 'prometheus.yml')}`, data, `--web.listen-address=127.0.0.1:${port}`]
    },
    url: (port) => `http://127.0.0.1:${port}`,
    ready: async (url) => (await fetch(`${url}/-/ready`).catch(() => undefined))?.ok === true,
  })()
  if (typeof started === 'string') throw new Error(started)
  onTestFinished(started.stop)
  return started.url
}

function queriesOfDashboard(): readonly string[] {
  const { panels } = JSON.parse(readFileSync(deploy('grafana/tallygate.json'), 'utf8')) as {
    panels: readonly { targets?: readonly { expr: string }[] }[]
  }
  return panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr.replaceAll('$device', '.*')))
}

it('evaluates every alert, and has series for every panel', async (context) => {
  programForTest(context, 'prometheus')
  await using twin = await openTwin()
  const instance = await twin.shop()
  const device = await deviceAt(twin, instance)
  await device.start()
  await device.settle()
  await twin.tick()
  const status = await openStatus({
    port: 0,
    auth: { host: '127.0.0.1', tls: null, token: null },
    report: async () => SCENES.working,
    readiness: async () => ({ ready: true, checks: [] }),
    onFault: (error) => {
      throw error
    },
  })
  onTestFinished(() => status.stop())
  const url = await prometheus(new URL(twin.cloud.metricsAddress).host, new URL(status.origin).host)
  const ask = async (path: string): Promise<Answer> =>
    ((await (await fetch(`${url}/api/v1/${path}`)).json()) as { data: Answer }).data
  const resultOf = async (query: string) => (await ask(`query?query=${encodeURIComponent(query)}`)).result

  // Rates need two samples.
  await expect.poll(() => resultOf('min_over_time(up[1m]) and count_over_time(up[1m]) > 1')).toHaveLength(2)
  const up = await resultOf('up')
  expect(up.map(({ metric, value }) => [metric['job'], value[1]]).sort()).toEqual([
    ['tallygate-agent', '1'],
    ['tallygate-cloud', '1'],
  ])
  const empty: string[] = []
  const queries = queriesOfDashboard()
  for (const query of queries) if ((await resultOf(query)).length === 0) empty.push(query)
  expect(queries.length).toBeGreaterThan(15)
  expect(empty).toEqual([])
  const rulesNow = async () => (await ask('rules')).groups.flatMap(({ rules }) => rules)
  await expect.poll(async () => (await rulesNow()).map(({ health }) => health)).not.toContain('unknown')
  const broken = (await rulesNow()).filter(({ health }) => health !== 'ok')
  expect(broken.map(({ name, lastError }) => [name, lastError])).toEqual([])
})
