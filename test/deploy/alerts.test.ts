// Every alert fires when its series say so, and not otherwise, in Prometheus's own test of rules.
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { parse } from 'yaml'
import { temporaryDirectory } from '../agent/harness.ts'
import { programForTest } from '../support/program.ts'

const RULES = new URL('../../deploy/prometheus/tallygate.rules.yml', import.meta.url).pathname

/** Series with their values each minute, in the notation of promtool. */
type Series = Readonly<Record<string, string>>

const gauge = (series: string, quiet: string, firing: string): readonly [Series, Series] => [
  { [series]: `${quiet}x2000` },
  { [series]: `${firing}x2000` },
]

/** A counter that begins at zero, or one that counts once. */
const counted = (series: string): readonly [Series, Series] => [{ [series]: '0x2000' }, { [series]: '0x1960 1x40' }]

const failing = (status: string) =>
  `tallygate_http_requests_total{instance="cloud:9464",method="GET",route="/",status="${status}"}`
const grant = 'tallygate_agent_offline_remaining_seconds{instance="press-7"}'
const connected = 'tallygate_agent_connected{instance="press-7"}'
const files = (which: string) => `process_${which}_fds{job="tallygate-cloud",instance="cloud:9464"}`
const problems = 'tallygate_agent_problems{instance="press-7"}'
const low = 'tallygate_agent_tokens_short{instance="press-7",state="low"}'
const usedUp = 'tallygate_agent_tokens_short{instance="press-7",state="used_up"}'
const slow = (le: string) =>
  `tallygate_store_transaction_duration_seconds_bucket{instance="cloud:9464",result="committed",le="${le}"}`

/** By alert: series with which it must not fire, and series with which it must. Minute 2000 is looked at. */
const CASES: Readonly<Record<string, readonly [quiet: Series, firing: Series]>> = {
  TallygateCloudDown: gauge('up{job="tallygate-cloud",instance="cloud:9464"}', '1', '0'),
  TallygateDeviceForked: counted('tallygate_edge_syncs_total{outcome="fork"}'),
  TallygateSegmentsRejected: counted('tallygate_edge_syncs_total{outcome="rejected"}'),
  TallygateStoreUnreachable: gauge('tallygate_store_totals_up{instance="cloud:9464"}', '1', '0'),
  TallygateCellBehind: gauge('tallygate_cell_behind{cell="south"}', '0', '1'),
  TallygateNotificationsDelayed: gauge('tallygate_outbox_backlog', '1000', '1001'),
  TallygateRequestsFail: [
    { [failing('200')]: '0+1000x2000', [failing('500')]: '0+9x2000' },
    { [failing('200')]: '0+1000x2000', [failing('500')]: '0+12x2000' },
  ],
  TallygateStoreSlow: [
    { [slow('0.1')]: '0+100x2000', [slow('2.5')]: '0+100x2000', [slow('+Inf')]: '0+100x2000' },
    { [slow('0.1')]: '0+90x2000', [slow('2.5')]: '0+100x2000', [slow('+Inf')]: '0+100x2000' },
  ],
  TallygateFilesRunOut: [
    { [files('open')]: '800x2000', [files('max')]: '1000x2000' },
    { [files('open')]: '801x2000', [files('max')]: '1000x2000' },
  ],
  // The clock of the test begins at 0.
  TallygateBackupOld: gauge('tallygate_last_backup_timestamp_seconds{instance="cloud:9464"}', '200000', '-500000'),
  TallygateCertificateExpires: gauge(
    'tallygate_certificate_expiry_timestamp_seconds{instance="cloud:9464"}',
    '300000',
    '100000',
  ),
  TallygateSettingsNotReloaded: gauge('tallygate_config_last_reload_successful{instance="cloud:9464"}', '1', '0'),
  TallygateUsageNotArchived: gauge('tallygate_usage_archive_last_success_timestamp_seconds', '200000', '-300000'),
  TallygateSweepsPaused: gauge('tallygate_sweeps_paused{instance="cloud:9464",code="CLOCK_BEHIND"}', '0', '1'),
  TallygatePoolLow: gauge('tallygate_instance_tokens_left_ratio{instance_id="i"}', '0.05', '0.04'),
  TallygateDevicesOverdue: gauge('tallygate_devices{instance_id="i",contact="overdue"}', '0', '1'),
  TallygateDeviceKeyRevoked: counted('tallygate_devices{instance_id="i",contact="revoked"}'),
  TallygateEventsWait: gauge('tallygate_event_sink_failing{sink="billing"}', '0', '1'),
  TallygateEventsRejected: counted('tallygate_events_total{sink="billing",outcome="rejected"}'),
  TallygateDeviceRefuses: gauge('tallygate_agent_health{instance="press-7",level="refusing"}', '0', '1'),
  TallygateDeviceNotReady: gauge('tallygate_agent_ready{instance="press-7"}', '1', '0'),
  TallygateDeviceProblem: [
    // Alerts of their own cover a device that is offline, and one whose only problem is too few tokens.
    { [connected]: '0x1900 1x99', [problems]: '2x1900 1x99', [low]: '1x2000', [usedUp]: '0x2000' },
    { [connected]: '1x2000', [problems]: '2x2000', [low]: '1x2000', [usedUp]: '0x2000' },
  ],
  TallygateGrantEnds: [
    // Without the cloud for some minutes.
    { [grant]: '86399x2000', [connected]: '1x1990 0x9' },
    { [grant]: '86399x2000', [connected]: '0x2000' },
  ],
  TallygateTokensUsedUp: gauge(usedUp, '0', '1'),
  TallygateTokensLow: gauge(low, '0', '1'),
  TallygateUsageNotDelivered: gauge('tallygate_agent_backlog_entries{instance="press-7"}', '100000', '100001'),
  TallygateDeviceFenced: gauge('tallygate_agent_fenced{instance="press-7"}', '0', '1'),
  TallygateDiskFills: gauge('tallygate_agent_disk_free_bytes{instance="press-7"}', '64000000', '63999999'),
  TallygateDeviceBackupOld: gauge('tallygate_agent_last_backup_timestamp_seconds{instance="press-7"}', '0', '-2000000'),
}

interface Rules {
  readonly groups: readonly { readonly rules: readonly Rule[] }[]
}

interface Rule {
  readonly alert: string
  readonly annotations: Readonly<Record<string, string>>
}

function rulesInFile(): readonly Rule[] {
  return (parse(readFileSync(RULES, 'utf8')) as Rules).groups.flatMap(({ rules }) => rules)
}

function testOf(alert: string, series: Series, fires: boolean): object {
  const firing = { labels: '{}', value: 1 }
  return {
    interval: '1m',
    input_series: Object.entries(series).map(([name, values]) => ({ series: name, values })),
    promql_expr_test: [
      {
        expr: `count(ALERTS{alertname="${alert}",alertstate="firing"})`,
        eval_time: '2000m',
        exp_samples: fires ? [firing] : [],
      },
    ],
  }
}

it('has a case for each alert', () => {
  expect(rulesInFile().map(({ alert }) => alert)).toEqual(Object.keys(CASES))
})

it('says for each alert what is wrong and what to do', () => {
  for (const { alert, annotations } of rulesInFile()) {
    expect([alert, Object.keys(annotations)]).toEqual([alert, ['summary', 'description']])
  }
})

it('fires for usage whose first archiving fails', (context) => {
  const promtool = programForTest(context, 'promtool')
  const file = join(temporaryDirectory(), 'test.yml')
  const series = { tallygate_usage_archive_failed: '1x2000' }
  const tests = [testOf('TallygateUsageNotArchived', series, true)]
  writeFileSync(file, JSON.stringify({ rule_files: [RULES], evaluation_interval: '5m', tests }))
  execFileSync(promtool, ['test', 'rules', file], { stdio: 'pipe' })
})

it.for(Object.entries(CASES))('%s fires when it must, and only then', ([alert, [quiet, firing]], context) => {
  const promtool = programForTest(context, 'promtool')
  const folder = temporaryDirectory()
  // Only this rule: promtool evaluates all of them at each step.
  const rules = rulesInFile().filter((rule) => rule.alert === alert)
  writeFileSync(join(folder, 'rules.yml'), JSON.stringify({ groups: [{ name: 'tested', rules }] }))
  const tests = [testOf(alert, quiet, false), testOf(alert, firing, true)]
  const file = join(folder, 'test.yml')
  writeFileSync(file, JSON.stringify({ rule_files: ['rules.yml'], evaluation_interval: '2m', tests }))
  execFileSync(promtool, ['test', 'rules', file], { stdio: 'pipe' })
})

it.for(['tallygate_tokens_on_devices', 'tallygate_outbox_backlog', 'tallygate_sessions'])(
  'the panel of %s adds the cells up, and counts what several nodes report once',
  (metric, context) => {
    const promtool = programForTest(context, 'promtool')
    const dashboard = readFileSync(new URL('../../deploy/grafana/tallygate.json', import.meta.url), 'utf8')
    const panels = (JSON.parse(dashboard) as { panels: { targets?: { expr: string }[] }[] }).panels
    const expr = panels.flatMap(({ targets = [] }) => targets).find((target) => target.expr.includes(metric))?.expr
    const ofCells = [5, 7].flatMap((value, cell) =>
      ['a', 'b'].map((node) => ({ series: `${metric}{instance="${node}",cell="${cell}"}`, values: `${value}x9` })),
    )
    const withoutCells = ofCells.slice(0, 2).map(({ series, values }) => ({
      series: series.replace(',cell="0"', ''),
      values,
    }))
    const test = (input_series: readonly object[], value: number) => {
      const exp_samples = [{ labels: '{}', value }]
      return { interval: '1m', input_series, promql_expr_test: [{ expr, eval_time: '5m', exp_samples }] }
    }
    const file = join(temporaryDirectory(), 'test.yml')
    writeFileSync(file, JSON.stringify({ tests: [test(ofCells, 12), test(withoutCells, 5)] }))
    execFileSync(promtool, ['test', 'rules', file], { stdio: 'pipe' })
  },
)

it('is valid with the settings that name its file', (context) => {
  const promtool = programForTest(context, 'promtool')
  const settings = new URL('../../deploy/prometheus/prometheus.yml', import.meta.url).pathname
  execFileSync(promtool, ['check', 'config', '--syntax-only', settings], { stdio: 'pipe' })
  execFileSync(promtool, ['check', 'rules', RULES], { stdio: 'pipe' })
})
