/** What a technician is told of the device: gathered from its parts, changing nothing. */
import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import { type ErrorCode, ERRORS } from '../../protocol/errors.ts'
import { DECISIONS_MAX, type DeviceReportWire } from '../../protocol/local/report.ts'
import type { AgentStatusWire } from '../../protocol/local/status.ts'
import type { Journal } from './journal.ts'
import { clockVerdict, verdictOf } from './verdict.ts'

export interface ReportParts {
  readonly status: () => AgentStatusWire
  readonly journal: Pick<Journal, 'recent'>
  readonly machine: () => Promise<DeviceReportWire['machine']>
}

export async function reportOf({ status, journal, machine }: ReportParts): Promise<DeviceReportWire> {
  const [entries, facts] = await Promise.all([journal.recent(DECISIONS_MAX), machine()])
  const now = status()
  return {
    verdict: verdictOf(now),
    clock: clockVerdict(now.clock),
    status: now,
    machine: facts,
    decisions: entries
      .filter(({ kind }) => kind === 'access')
      .flatMap(decisionsOf)
      .slice(0, DECISIONS_MAX),
    problems: now.conditions.map((condition) => ({
      ...condition,
      remedy: condition.code in ERRORS ? ERRORS[condition.code as ErrorCode].remedy : '',
    })),
  }
}

function decisionsOf({ n, at, requester, items }: EntryBodyWire): DeviceReportWire['decisions'] {
  return items.map(({ item, version, count, outcome, total }) => {
    return { n, at, requester, item, version, count, outcome, tokens: total }
  })
}
