/** The device report as Prometheus text. The series are fixed, and no label values come from callers. */
import { isLineAccount } from '../../../core/accounts/account.ts'
import { available } from '../../../core/accounts/grant.ts'
import type { DeviceReportWire, Readiness } from '../../../protocol/local/report.ts'
import { countersOf, offlineMs } from '../../diagnostics/health-status.ts'

const MICRO = 1e6

// oxlint-disable-next-line eslint/max-lines-per-function -- A table: one call for each metric.
export function metricsText({ status, machine, health, clock }: DeviceReportWire, { ready }: Readiness): string {
  const lines: string[] = []
  const family = (
    name: string,
    type: 'gauge' | 'counter',
    help: string,
    ...samples: [string, number | null][]
  ): void => {
    lines.push(`# HELP tallygate_agent_${name} ${help}`, `# TYPE tallygate_agent_${name} ${type}`)
    for (const [labels, value] of samples) {
      if (value !== null) lines.push(`tallygate_agent_${name}${labels} ${value}`)
    }
  }
  const gauge = (name: string, help: string, value: number | null): void => family(name, 'gauge', help, ['', value])
  const counter = (name: string, help: string, value: number | null): void => family(name, 'counter', help, ['', value])
  const states = (name: string, help: string, label: string, values: Readonly<Record<string, number>>): void =>
    family(
      name,
      'gauge',
      help,
      ...Object.entries(values).map(([state, value]): [string, number] => [`{${label}="${state}"}`, value]),
    )
  const yes = (is: boolean): number => (is ? 1 : 0)
  const seconds = (at: number | null): number | null => (at === null ? null : at / 1_000)

  const totals = { available: 0n, used: 0n, refunded: 0n, burned: 0n }
  for (const account of status.accounts) {
    if (!isLineAccount(account.account)) continue
    const counters = countersOf(account)
    totals.available += available(counters)
    totals.used += counters.used
    totals.refunded += counters.refunded
    totals.burned += BigInt(account.burned)
  }
  const tokens = (amount: bigint): number => Number(amount) / MICRO

  family('build_info', 'gauge', 'Version of the running agent; always 1.', [`{version="${escape(status.version)}"}`, 1])
  gauge('ready', 'Whether the agent can serve access requests.', yes(ready))
  states('health', 'Health status: 1 for the current one.', 'level', {
    ok: yes(health.level === 'ok'),
    attention: yes(health.level === 'attention'),
    refusing: yes(health.level === 'refusing'),
  })
  gauge('start_time_seconds', 'Estimated start time of the agent.', seconds(status.startedAt))
  gauge('connected', 'Whether the last exchange with the cloud got a response.', yes(status.connected))
  gauge('push_connected', 'Whether the agent is connected for change notifications.', yes(status.push === 'CONNECTED'))
  gauge('fenced', 'Whether the cloud has fenced this device.', yes(status.fenced))
  states('suspended', 'Whether an administrator suspended or locked this device, by kind.', 'state', {
    locked: yes(status.suspension?.state === 'LOCKED'),
    terminated: yes(status.suspension?.state === 'TERMINATED'),
  })
  gauge('last_contact_timestamp_seconds', 'Time of the last response from the cloud.', seconds(status.lastContactAt))
  gauge('last_sync_timestamp_seconds', 'Time of the last delivery of usage.', seconds(status.lastSyncAt))
  gauge('backlog_entries', 'Ledger entries not yet acknowledged by the cloud.', status.backlog)
  gauge('ledger_entries', 'Ledger entries in the current epoch.', status.lastEntry)
  gauge(
    'policies_behind',
    'Instances with a newer policy than the applied one.',
    status.policies.filter(({ applied, newest }) => newest > applied).length,
  )
  gauge(
    'offline_remaining_seconds',
    'Time for which the agent can still decide without the cloud.',
    seconds(status.grant === null ? null : offlineMs(status)),
  )
  gauge('tokens_available', 'Available balance of line items, in tokens.', tokens(totals.available))
  gauge('tokens_used', 'Tokens of line items used in the current epoch.', tokens(totals.used))
  gauge('tokens_refunded', 'Tokens of line items refunded in the current epoch.', tokens(totals.refunded))
  gauge('tokens_burned', 'Upper bound of the tokens lost to power cuts.', tokens(totals.burned))
  const conditions = (code: string): number => status.conditions.filter((each) => each.code === code).length
  states('tokens_short', 'Line items that run low or are used up and cannot be refilled now.', 'state', {
    low: conditions('TOKENS_LOW'),
    used_up: conditions('TOKENS_USED_UP'),
  })
  gauge('problems', 'Active conditions that need a technician.', status.conditions.length)
  gauge(
    'clock_uncertainty_seconds',
    'Width of the interval that contains the true time; absent while unbounded.',
    seconds(clock.widthMs),
  )
  gauge('disk_free_bytes', 'Free space on the disk of the state directory.', machine.diskFree)
  gauge('ledger_size_bytes', 'Size of the ledger.', machine.ledgerSize)
  gauge('memory_pss_bytes', 'Proportional set size of the agent.', machine.memoryOfAgent)
  gauge('last_backup_timestamp_seconds', 'Time of the last successful backup.', seconds(status.backup?.at ?? null))
  const { storage } = status
  counter('storage_written_bytes_total', 'Bytes written to storage since the start.', storage?.written ?? null)
  gauge(
    'storage_written_bytes_per_decision',
    'Bytes written to storage per entry over the last day.',
    storage?.perDecision ?? null,
  )
  gauge(
    'storage_written_bytes_per_day',
    'Bytes written to storage per day, projected from the last day.',
    storage?.perDay ?? null,
  )
  gauge('storage_write_budget_bytes_per_day', 'Storage write budget per day.', storage?.budgetPerDay ?? null)
  return `${lines.join('\n')}\n`
}

function escape(value: string): string {
  return value.replace(/[\\"]/g, (char) => `\\${char}`).replaceAll('\n', '\\n')
}
