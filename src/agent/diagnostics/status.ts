import { isLimitAccount } from '../../core/accounts/account.ts'
import { overdraftLeft } from '../../core/accounts/grant.ts'
import type { LastBackup } from '../../protocol/local/last-backup.ts'
import type { ReloadNotice } from '../../settings/reload.ts'
import { counted, roughly } from '../../core/accounts/in-words.ts'
import { actionNameOf } from '../../core/rules/action-name.ts'
import type { Clock } from '../runtime/clock.ts'
import type { Journal, SalvageRecord } from '../ledger/journal.ts'
import type { Demand } from '../ledger/demand.ts'
import type { Ledger } from '../ledger/ledger.ts'
import { type Edit, describeEdit } from '../ledger/signed-state.ts'
import type { ActivePolicies } from '../policy/active-policies.ts'
import { type HealthCondition, PUSH } from '../runtime/health.ts'
import { SUSPENSION } from '../sync/step.ts'
import type { Link, LinkStatus } from '../sync/link.ts'
import { tokenConditions } from './token-supply.ts'
import type { Wear } from './wear.ts'
import { type AgentStatusWire, CLOCK_OFF_MS, clockErrorMs } from '../../protocol/local/status.ts'
import { ERRORS } from '../../protocol/errors.ts'
import type { AgentLog } from '../sync/ports.ts'

export interface StatusDeps {
  readonly version: string
  readonly engine: number
  readonly startedAt: number
  readonly ledger: Pick<Ledger, 'accounts' | 'burnedOf' | 'durability' | 'grantStatus' | 'lastEntry'>
  readonly policies: Pick<ActivePolicies, 'get' | 'isStale' | 'usableUntil'>
  readonly link: Pick<Link, 'status'>
  readonly clock: Pick<Clock, 'reading' | 'wall'>
  readonly journal: Pick<Journal, 'condition'>
  readonly salvages: readonly SalvageRecord[]
  readonly edits: readonly Edit[]
  readonly wear: Pick<Wear, 'reading' | 'condition'>
  readonly demand: Pick<Demand, 'supplies'>
  readonly reloadNotice: () => ReloadNotice | null
  readonly lastBackup: () => LastBackup | null
  /** Longest age, ms; 0: no backup expected. */
  readonly backupMaxAgeMs: () => number
}

/** Conditions that only result from a suspension are hidden, because they would suggest another fix. */
function isExplainedBySuspension(
  { subject, code }: AgentStatusWire['conditions'][number],
  suspension: AgentStatusWire['suspension'],
): boolean {
  if (suspension === null || subject === SUSPENSION) return false
  return code === 'SESSION_LOCKED' || code === 'DEVICE_LOCKED' || code === 'DEVICE_TERMINATED'
}

function overdueOf(
  backup: LastBackup | null,
  maxAgeMs: number,
  now: number,
  startedAt: number,
): HealthCondition | null {
  if (maxAgeMs === 0 || (backup !== null && now - backup.at <= maxAgeMs)) return null
  const message =
    backup === null
      ? 'No backup of the ledger was made by tallygate backup.'
      : `The last backup of the ledger was made at ${new Date(backup.at).toISOString()}: ${backup.file}.`
  return {
    subject: 'backup',
    code: 'BACKUP_OVERDUE',
    message,
    since: backup === null ? startedAt : backup.at + maxAgeMs,
  }
}

/** Conditions that follow from the state, which begin now unless their beginning is known. */
export function derivedConditions(deps: StatusDeps): readonly HealthCondition[] {
  const { ledger, wear, demand, clock, startedAt } = deps
  const { connected, policies: served } = deps.link.status()
  const reading = clock.reading()
  const overdue = overdueOf(deps.lastBackup(), deps.backupMaxAgeMs(), reading.now, startedAt)
  const hasGrant = ledger.grantStatus(reading) !== null
  return [
    ...[wear.condition(), overdue, wrongClockOf(clock), requestersOf(ledger, reading.now)].filter(
      (condition) => condition !== null,
    ),
    // Without a grant, as in a restored ledger, no tokens were used up.
    ...(hasGrant ? tokenConditions(demand.supplies(), connected, reading.now) : []),
    ...staleOf(deps, served),
  ]
}

function conditionsOf(
  deps: StatusDeps,
  { conditions, suspension }: LinkStatus,
  derived: readonly HealthCondition[],
): AgentStatusWire['conditions'] {
  const { journal, startedAt, salvages } = deps
  // The link reports the same fault when it cannot record a response.
  const full = journal.condition()
  const notice = deps.reloadNotice()
  return [
    ...conditions
      .filter((condition) => !isExplainedBySuspension(condition, suspension))
      .filter(({ code }) => code !== full?.code),
    ...(full === null ? [] : [full]),
    ...(notice === null ? [] : [{ subject: 'settings', ...notice }]),
    ...derived,
    ...salvages.map(conditionOf),
    ...(deps.edits.length === 0 ? [] : [editedOf(deps.edits, startedAt)]),
  ].toSorted((a, b) => Number(a.subject === PUSH) - Number(b.subject === PUSH) || a.since - b.since)
}

/** Rules that cannot be used any more. */
function staleOf({ policies, clock }: StatusDeps, served: LinkStatus['policies']): readonly HealthCondition[] {
  const reading = clock.reading()
  return served.flatMap(({ instanceId, name }) => {
    const policy = policies.get(instanceId.toLowerCase())
    if (policy === undefined || !policies.isStale(policy, reading)) return []
    const until = policies.usableUntil(policy)
    const instance = name === null || name === '' ? instanceId : name
    const message = `The rules of ${instance} could be used until ${new Date(until).toISOString()} without confirmation by the cloud.`
    return [{ subject: `rules of ${instance}`, code: 'POLICY_STALE', message, since: Math.min(until, reading.now) }]
  })
}

function wrongClockOf(clock: StatusDeps['clock']): HealthCondition | null {
  const reading = clock.reading()
  const wall = clock.wall()
  const off = clockErrorMs(reading, wall)
  if (off <= CLOCK_OFF_MS) return null
  const side = wall < reading.earliest ? 'behind' : 'ahead of'
  const message = `The clock of this machine is ${roughly(off)} ${side} the time signed by the cloud.`
  return { subject: 'clock', code: 'CLOCK_WRONG', message, since: reading.now }
}

/** Their accounts stay in memory until the next epoch. */
const REQUESTERS_MAX = 50_000

function requestersOf(ledger: Pick<Ledger, 'accounts'>, since: number): HealthCondition | null {
  let count = 0
  for (const [account] of ledger.accounts()) if (isLimitAccount(account)) count += 1
  if (count <= REQUESTERS_MAX) return null
  const message = `The ledger has ${counted(count, 'balance', 'balances')} of requesters with a consumption limit.`
  return { subject: 'requesters', code: 'REQUESTERS_MANY', message, since }
}

/** @param derived {@link derivedConditions}, with their beginnings */
export function statusOf(deps: StatusDeps, derived: readonly HealthCondition[]): AgentStatusWire {
  const { ledger, clock } = deps
  const status = deps.link.status()
  const { rounds: _rounds, notifications: _notifications, conditions: _conditions, ...link } = status
  const reading = clock.reading()
  const grant = ledger.grantStatus(reading)
  const backup = deps.lastBackup()
  return {
    version: deps.version,
    engine: deps.engine,
    startedAt: deps.startedAt,
    instanceIds: link.policies.map(({ instanceId }) => instanceId),
    ...link,
    durability: ledger.durability,
    lastEntry: ledger.lastEntry(),
    clock: reading,
    grant,
    accounts: [...ledger.accounts()].map(([account, counters]) => ({
      account,
      actionName: actionNameOf(account, (id) => deps.policies.get(id)?.compiled.policy),
      granted: String(counters.granted),
      used: String(counters.used),
      burned: String(ledger.burnedOf(account)),
      refunded: String(counters.refunded),
      returned: String(counters.returned),
      exhausted: counters.exhausted,
      unlimited: counters.unlimited,
      overdraft: String(overdraftLeft(counters, counters.overdraft ?? 0n)),
    })),
    storage: deps.wear.reading(),
    backup,
    conditions: conditionsOf(deps, status, derived),
  }
}

export function logDamaged(log: Pick<AgentLog, 'warn'>, salvages: readonly SalvageRecord[]): void {
  for (const { at, file, why, salvagedEntries, lostEntries } of salvages) {
    log.warn(
      { code: 'LEDGER_SALVAGED', file, at, why, salvagedEntries, lostEntries, remedy: ERRORS.LEDGER_SALVAGED.remedy },
      'journal.db in the state directory was damaged: it was moved to the named file and replaced with a new ledger',
    )
  }
}

function conditionOf(salvage: SalvageRecord): AgentStatusWire['conditions'][number] {
  const { at, file, why, salvagedEntries, lostEntries } = salvage
  const lost = lostEntries === null ? 'the number of lost entries is unknown' : `${lostEntries} could not be read`
  const message = `The ledger was damaged and is kept as ${file}: ${salvagedEntries} undelivered entries were salvaged, ${lost}. Found: ${why}.`
  return { subject: 'damaged ledger', code: 'LEDGER_SALVAGED', message, since: at }
}

const EDITS_SHOWN = 5

function editedOf(edits: readonly Edit[], since: number): AgentStatusWire['conditions'][number] {
  const rest = edits.length > EDITS_SHOWN ? ` And ${edits.length - EDITS_SHOWN} more.` : ''
  const message = `${edits.slice(0, EDITS_SHOWN).map(describeEdit).join(' ')}${rest} The agent uses the signed values.`
  return { subject: 'edited ledger', code: 'LEDGER_EDITED', message, since }
}

export function logEdits(log: Pick<AgentLog, 'warn'>, edits: readonly Edit[]): void {
  for (const edit of edits) log.warn({ code: 'LEDGER_EDITED', ...edit }, describeEdit(edit))
}
