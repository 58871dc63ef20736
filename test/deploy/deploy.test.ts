// What stands in deploy/ fits the programs: every metric that an alert or a panel names is one that they tell, and every variable and
// path of the compose file is one that they read.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { metricsText } from '../../src/agent/platform/status-http/metrics-text.ts'
import { agentOptions } from '../../src/agent/settings.ts'
import { Metrics } from '../../src/cloud/platform/metrics/metrics.ts'
import { cloudOptions } from '../../src/cloud/settings.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { namedOptions } from '../../src/settings/option.ts'
import { reportWith } from '../agent/platform/status-http/report-with.ts'
import { parsePrometheusText } from '../support/prometheus-text.ts'

const text = (path: string): string => readFileSync(new URL(`../../deploy/${path}`, import.meta.url), 'utf8')

/** Names of all series, those of histograms included. */
async function told(): Promise<ReadonlySet<string>> {
  const totals = async () => ({ sessions: new Map(), outbox: 0, tokensOnDevices: 0n }) as never
  const cloud = await new Metrics({
    version: '1',
    totals,
    totalsTimeoutMs: 1_000,
    lastBackupAt: () => 1,
    paused: () => [],
  }).text()
  const agent = metricsText(reportWith(), { ready: true, checks: [] })
  const series = new Set<string>()
  for (const [name, { type }] of [...parsePrometheusText(cloud), ...parsePrometheusText(agent)]) {
    const names = type === 'histogram' ? ['_bucket', '_sum', '_count'].map((suffix) => name + suffix) : [name]
    for (const each of names) series.add(each)
  }
  return series
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
  ])('of the %s every metric is told', async (_what, expressions, least) => {
    const found = expressions()
    expect(found.length).toBeGreaterThanOrEqual(least)
    const series = await told()
    expect(found.flatMap(namesIn).filter((name) => !series.has(name))).toEqual([])
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
  it('sets variables that are settings', () => {
    const known = [...namedOptions(agentOptions), ...namedOptions(cloudOptions)].map(({ env }) => env)
    const set = [...text('compose.yaml').matchAll(/^ +(TALLYGATE_(?:AGENT|CLOUD)_[A-Z_]+):/gm)].map(([, name]) => name!)
    expect(set.length).toBeGreaterThan(8)
    expect(set.filter((name) => !known.includes(name))).toEqual([])
  })

  it('gives the cloud more time for a stop than it takes', () => {
    const cloud = /^ {2}cloud:\n(?:(?: {4}.*)?\n)+/m.exec(text('compose.yaml'))?.[0] ?? ''
    const { http } = loadSettings(cloudOptions, { file: null, env: {}, flags: {}, readText: () => '' })
    expect(Number(/stop_grace_period: (\d+)s/.exec(cloud)?.[1]) * 1_000).toBeGreaterThan(http.drainTimeout + 1_000)
  })

  it('brings files that are there', () => {
    const files = [...text('compose.yaml').matchAll(/- \.\/((?:postgres|mosquitto)\/[a-z.]+):/g)].map(
      ([, path]) => path!,
    )
    expect(files).toHaveLength(4)
    for (const path of files) expect(text(path)).not.toBe('')
  })
})
