/**
 * The report of a device in the text format of Prometheus. A fixed list of series: nothing in it is named by a requester, and no
 * label takes a value that is not in this file, but for the version.
 */
import type { DeviceReportWire, Readiness } from '../../../protocol/local/report.ts'
import { countersOf } from '../../app/verdict.ts'

const MICRO = 1e6

export function metricsText({ status, machine, verdict, clock }: DeviceReportWire, { ready }: Readiness): string {
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
  const yes = (is: boolean): number => (is ? 1 : 0)
  const seconds = (at: number | null): number | null => (at === null ? null : at / 1_000)

  const totals = { room: 0n, used: 0n, refunded: 0n, burned: 0n }
  for (const account of status.accounts) {
    if (!account.account.startsWith('line/')) continue
    const { granted, used, refunded, returned } = countersOf(account)
    totals.room += granted - returned - used + refunded
    totals.used += used
    totals.refunded += refunded
    totals.burned += BigInt(account.burned)
  }
  const tokens = (amount: bigint): number => Number(amount) / MICRO

  family('build_info', 'gauge', 'The software that runs; always 1.', [`{version="${escape(status.version)}"}`, 1])
  gauge('ready', 'Whether an access request could be served.', yes(ready))
  family(
    'verdict',
    'gauge',
    'The verdict of the status: 1 for the one that holds.',
    ...(['ok', 'attention', 'refusing'] as const).map((level): [string, number] => [
      `{level="${level}"}`,
      yes(verdict.level === level),
    ]),
  )
  gauge('start_time_seconds', 'When the agent started, by its best estimate.', seconds(status.startedAt))
  gauge('connected', 'Whether the last exchange with the cloud got an answer.', yes(status.connected))
  gauge('push_connected', 'Whether the connection for hints stands.', yes(status.push === 'CONNECTED'))
  gauge('fenced', 'Whether the cloud has stopped this device.', yes(status.fenced))
  family(
    'held',
    'gauge',
    'Whether an administrator holds this device back, by how.',
    ...(['LOCKED', 'TERMINATED'] as const).map((state): [string, number] => [
      `{state="${state.toLowerCase()}"}`,
      yes(status.hold?.state === state),
    ]),
  )
  gauge('last_contact_timestamp_seconds', 'When the cloud last answered.', seconds(status.lastContactAt))
  gauge('last_sync_timestamp_seconds', 'When usage was last delivered.', seconds(status.lastSyncAt))
  gauge('backlog_entries', 'Entries of the ledger that the cloud has not acknowledged.', status.backlog)
  gauge('ledger_entries', 'Entries of the ledger in this incarnation of the device.', status.lastEntry)
  gauge(
    'policies_behind',
    'Instances of which a newer policy exists than is applied.',
    status.policies.filter(({ applied, newest }) => newest > applied).length,
  )
  gauge(
    'grant_remaining_seconds',
    'How long tokens may be spent without the cloud.',
    seconds(status.grant?.remainingMs ?? null),
  )
  gauge('tokens_at_hand', 'Tokens of line items that may still be spent.', tokens(totals.room))
  gauge('tokens_used', 'Tokens of line items used in this incarnation of the device.', tokens(totals.used))
  gauge('tokens_refunded', 'Tokens of line items refunded in this incarnation of the device.', tokens(totals.refunded))
  gauge('tokens_burned', 'Tokens that power cuts may have cost at most.', tokens(totals.burned))
  gauge('problems', 'Conditions that a technician should look at.', status.conditions.length)
  gauge(
    'clock_uncertainty_seconds',
    'Width of the interval that holds the true time; absent while nothing bounds it.',
    seconds(clock.widthMs),
  )
  gauge('disk_free_bytes', 'Free space on the disk of the state.', machine.diskFree)
  gauge('ledger_size_bytes', 'Size of the ledger.', machine.ledgerSize)
  gauge('memory_pss_bytes', 'Memory of the agent, its proportional set size.', machine.memoryOfAgent)
  gauge('last_backup_timestamp_seconds', 'When the last good backup was made.', seconds(status.backup?.at ?? null))
  const { storage } = status
  counter('storage_written_bytes_total', 'Bytes sent to storage since the start.', storage?.written ?? null)
  gauge('storage_written_bytes_per_decision', 'Of the last day, for each entry.', storage?.perDecision ?? null)
  gauge('storage_written_bytes_per_day', 'Projected from the last day.', storage?.perDay ?? null)
  gauge('storage_write_budget_bytes_per_day', 'What may be written in a day.', storage?.budgetPerDay ?? null)
  return `${lines.join('\n')}\n`
}

function escape(value: string): string {
  return value.replace(/[\\"]/g, (char) => `\\${char}`).replaceAll('\n', '\\n')
}
