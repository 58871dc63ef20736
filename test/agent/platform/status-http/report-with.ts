// Reports of a device that has nothing to complain about, except for the changes.
import { clockHealth, healthStatusOf } from '../../../../src/agent/diagnostics/health-status.ts'
import type { DeviceReportWire } from '../../../../src/protocol/local/report.ts'
import type { AgentStatusWire } from '../../../../src/protocol/local/status.ts'
import { agentStatus } from '../../../cli/agent-status.ts'

export function reportWith(
  status: Partial<AgentStatusWire> = {},
  changes: Partial<Omit<DeviceReportWire, 'status'>> = {},
): DeviceReportWire {
  const { clock } = agentStatus(status)
  const now = agentStatus({ clock: { ...clock, latest: clock.now + 500 }, ...status })
  return {
    health: healthStatusOf(now),
    clock: clockHealth(now.clock),
    status: now,
    machine: {
      diskFree: 21_400_000_000,
      diskTotal: 62_000_000_000,
      ledgerSize: 4_300_000,
      memoryOfAgent: 84_000_000,
      memoryFree: 1_300_000_000,
      memoryTotal: 2_000_000_000,
    },
    use: { binMs: 1_800_000, until: now.clock.now + 600_000, since: now.clock.now - 86_400_000, accounts: [] },
    decisions: [
      decision(12, 'GRANTED', '2500000'),
      decision(11, 'DENIED_BY_RULE', '0'),
      decision(10, 'INSUFFICIENT_TOKENS', '0', 'LaserCut'),
    ],
    refusals: [],
    problems: [],
    ...changes,
  }
}

export function decision(
  n: number,
  outcome: string,
  tokens: string,
  item = 'PhotoPrint',
  value = 'anna',
): DeviceReportWire['decisions'][number] {
  const at = 1_800_000_000_000 - (13 - n) * 7_000
  const correlationId = `5c8ec4fd-f17f-4657-bf09-74a97ddc9f${String(n).padStart(2, '0')}`
  return {
    n,
    correlationId,
    at,
    requester: { type: 'user', value },
    item,
    version: '1.0',
    count: '2.5',
    outcome,
    tokens,
  }
}

/** Names with every character that a page must escape. */
export const HOSTILE = '</td><script>document.title="owned"</script><img src=x onerror=alert(1)>"\'&\u202e\u0007'
