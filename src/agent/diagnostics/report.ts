import type { EntryBodyWire } from '../../protocol/edge/sync.ts'
import { remedyAfter } from '../../protocol/errors.ts'
import { DECISIONS_MAX, REFUSALS_MAX, type DeviceReportWire } from '../../protocol/local/report.ts'
import type { AgentStatusWire } from '../../protocol/local/status.ts'
import type { Journal } from '../ledger/journal.ts'
import type { Refusals } from './refusals.ts'
import type { UseOverTime } from './use-over-time.ts'
import { clockHealth, healthStatusOf } from './health-status.ts'

export interface ReportDeps {
  readonly status: () => AgentStatusWire
  readonly journal: Pick<Journal, 'recent'>
  readonly machine: () => Promise<DeviceReportWire['machine']>
  readonly refusals: Pick<Refusals, 'latest'>
  readonly use: Pick<UseOverTime, 'reading'>
}

export async function reportOf({ status, journal, machine, refusals, use }: ReportDeps): Promise<DeviceReportWire> {
  const [entries, observed] = await Promise.all([journal.recent(DECISIONS_MAX), machine()])
  const now = status()
  return {
    health: healthStatusOf(now),
    clock: clockHealth(now.clock),
    status: now,
    machine: observed,
    use: use.reading(),
    decisions: entries
      .filter(({ kind }) => kind === 'access')
      .flatMap(decisionsOf)
      .slice(0, DECISIONS_MAX),
    refusals: refusals.latest(REFUSALS_MAX).map(({ caller: _, ...refusal }) => withRemedy(refusal)),
    problems: now.conditions.map(withRemedy),
  }
}

function withRemedy<T extends { readonly code: string }>(coded: T): T & { readonly remedy: string } {
  return { ...coded, remedy: remedyAfter(coded.code) }
}

function decisionsOf({ n, at, correlationId, requester, items }: EntryBodyWire): DeviceReportWire['decisions'] {
  return items.map(({ item, version, count, outcome, total }) => {
    return { n, correlationId, at, requester, item, version, count, outcome, tokens: total }
  })
}
