import { Command, Option } from 'commander'
import { z } from 'zod'
import {
  ageOfRules,
  areRulesStale,
  cloudInWords,
  healthStatusOf,
  inWords,
  isRemedied,
  offlineMs,
} from '../../agent/diagnostics/health-status.ts'
import type { HttpClient } from '../../client/http.ts'
import { isLineAccount } from '../../core/accounts/account.ts'
import { accountInWords, counted, grouped, roughly, tokensInWords } from '../../core/accounts/in-words.ts'
import { billed, available } from '../../core/accounts/grant.ts'
import { CodedError, ERRORS, firstProblem, remedyAfter } from '../../protocol/errors.ts'
import type { DeviceReportWire } from '../../protocol/local/report.ts'
import { AGENT_STATUS_PATH, agentStatus, type AgentStatus, type AgentStatusWire } from '../../protocol/local/status.ts'
import { agentClient, healthLines, instanceInWords, type SocketFlags, withSocketFlag } from '../local-agent.ts'
import { columns, jsonLine, writeLines } from '../lines.ts'
import { everyOption, type Seen, watch } from '../watch.ts'
import type { Io } from '../io.ts'

interface StatusFlags extends SocketFlags {
  readonly check?: true
  readonly watch?: true
  readonly all?: true
  readonly every: number
}

const CHECK_EXIT = { ok: 0, attention: 1, refusing: 2 } as const

export function command(io: Io): Command {
  return withSocketFlag(new Command('status'))
    .description(
      'Shows the status of the agent: connection to the cloud, rules in force, available balances. Exit code 0 if the agent responds. With --check: 0 if all is well, 1 if it needs attention, 2 if it refuses requests.',
    )
    .option('--all', 'also show key, storage, backup, and the balances of actions and requesters')
    .option('--json', 'print one JSON document')
    .option('--check', 'set the exit code to the status, for monitoring')
    .addOption(
      new Option('--watch', 'repeat: redraw on a terminal, otherwise print one line per change').conflicts([
        'check',
        'json',
      ]),
    )
    .addOption(everyOption('2s'))
    .action(async (flags: StatusFlags) => {
      using client = agentClient(flags, io)
      if (flags.watch === true) {
        await watch(() => look(client, flags), flags.every, io)
        return
      }
      const { status, health } = await ask(client)
      writeLines(io.stdout, flags.json === true ? [jsonLine(status)] : describe(status, health, flags))
      if (flags.check === true) io.exitWith(CHECK_EXIT[health.level])
    })
}

type Health = DeviceReportWire['health']

async function ask(client: HttpClient): Promise<{ readonly status: AgentStatus; readonly health: Health }> {
  const raw = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, z.unknown())
  const parsed = agentStatus.safeParse(raw)
  if (parsed.success) return { status: parsed.data, health: healthStatusOf(raw as AgentStatusWire) }
  throw new CodedError('ANSWER_UNEXPECTED', firstProblem(parsed.error, `GET ${AGENT_STATUS_PATH}: answer`))
}

/** An unreachable agent is shown as a state, not an error. */
async function look(client: HttpClient, flags: StatusFlags): Promise<Seen> {
  try {
    const { status, health } = await ask(client)
    return { page: describe(status, health, flags), lines: [lineOf(status, health)] }
  } catch (error) {
    if (!(error instanceof CodedError)) throw error
    const state = error.code === 'AGENT_STARTING' ? 'STARTING' : 'NO RESPONSE'
    const page = [`${state}  ${error.message} ${ERRORS[error.code].remedy}`]
    return { page, lines: page }
  }
}

/** `--watch` prints a new line when this text changes. */
function lineOf(
  { connected, lastEntry, backlog, conditions, policies }: AgentStatus,
  { level, sentence }: Health,
): string {
  const rules = policies.map(({ applied }) => String(applied)).join(', ')
  const problems = conditions.map(({ subject, code }) => `, ${subject}: ${code}`).join('')
  const link = connected ? 'connected' : 'offline'
  return `${level.toUpperCase()}  ${sentence} [${link}, ${counted(lastEntry, 'entry', 'entries')}, ${grouped(backlog)} to send, rules ${rules}${problems}]`
}

function rulesText(policy: AgentStatus['policies'][number], status: AgentStatus): string {
  const { engine } = status
  const { applied, newest, engine: madeFor, ...instance } = policy
  const engines =
    madeFor === null || madeFor === engine ? '' : `, made for engine ${madeFor}, decided by engine ${engine}`
  const news = newest > applied ? `, revision ${newest} is available` : ''
  const age = ageOfRules(policy, status)
  return `revision ${applied} of instance ${instanceInWords(instance)}${engines}${age === null ? '' : `, ${age}`}${news}`
}

function describe(status: AgentStatus, health: Health, { all }: StatusFlags): readonly string[] {
  // The wall clock may be wrong.
  const { now } = status.clock
  const isWhole = all === true
  const ago = (instant: number | null): string =>
    instant === null ? 'never' : `${roughly(Math.max(0, now - instant))} ago`
  const retry = status.retryInMs === null ? '' : `, next attempt in ${inWords(status.retryInMs)}`
  const properties = columns([
    ['device', [status.name, status.deviceId ?? 'not enrolled'].filter((each) => each !== null).join('  ')],
    ['cloud', `${cloudInWords(status)}, last contact ${ago(status.lastContactAt)}${retry}`],
    ['ledger', `${counted(status.lastEntry, 'entry', 'entries')}, ${grouped(status.backlog)} not yet in the cloud`],
    ['spending', spending(status)],
    ...status.policies.map((policy) => ['rules', rulesText(policy, status)]),
    ...(isWhole ? detailsOf(status, now) : []),
  ])
  const shown = status.accounts.filter(({ account }) => isWhole || isLineAccount(account))
  const rows = shown.map((account) => [
    accountInWords(account.account, account.actionName),
    account.unlimited ? 'unlimited' : tokensInWords(available(account)),
    tokensInWords(billed(account)),
    [
      ...(account.exhausted ? ['the cloud has no more'] : []),
      ...(account.overdraft > 0n ? [`up to ${tokensInWords(account.overdraft)} of the balance is overdraft`] : []),
      ...(account.burned > 0n ? [`${tokensInWords(account.burned)} charged because of power cuts`] : []),
    ].join(', '),
  ])
  const isNoted = rows.some(([, , , note]) => note !== '')
  const accounts = columns([['TOKENS OF', 'BALANCE', 'CHARGED', isNoted ? 'NOTE' : ''], ...rows])
  const conditions = status.conditions.flatMap((condition) => {
    const { subject, code, message, since } = condition
    const remedy = isRemedied(condition, status) ? '' : remedyAfter(code)
    return [
      `! ${subject}: ${code}: ${message} (since ${new Date(since).toISOString()})`,
      ...(remedy === '' ? [] : [`  remedy: ${remedy}`]),
    ]
  })
  return [
    ...healthLines(health),
    '',
    ...properties,
    ...(shown.length === 0 ? [] : ['', ...accounts]),
    ...(conditions.length === 0 ? [] : ['', ...conditions]),
  ]
}

function detailsOf(status: AgentStatus, now: number): readonly (readonly string[])[] {
  const { push, durability, storage, backup } = status
  const made = backup === null ? '' : `${roughly(Math.max(0, now - backup.at))} ago, ${backup.file}`
  return [
    ['key', keyText(status, now)],
    ['live updates', push.toLowerCase()],
    [
      'durability',
      durability === 'durable' ? 'charges are on disk before the response' : 'write-behind, from reservations on disk',
    ],
    ...(storage === null ? [] : [['storage', written(storage)]]),
    ['backup', backup === null ? 'no backup recorded' : made],
  ]
}

function keyText({ key: { id, since, next } }: AgentStatus, now: number): string {
  const age = since === null ? '' : `, for ${roughly(Math.max(0, now - since))}`
  return `${id}${age}${next === null ? '' : `; ${next} will replace it`}`
}

function spending(status: AgentStatus): string {
  const { fenced, suspension, epoch, grant } = status
  if (suspension !== null) {
    const done = suspension.state === 'LOCKED' ? 'locked' : 'terminated'
    return `stopped: ${done} by an administrator, ${new Date(suspension.since).toISOString()}`
  }
  if (fenced) return 'stopped: the cloud fenced this device until it attaches again'
  if (epoch === 0) return 'not yet: the device must attach to the cloud first'
  if (grant === null) return 'not yet: no grant'
  if (areRulesStale(status)) return 'stopped: the rules are too old'
  if (grant.remainingMs === 0) return 'stopped: the grant has expired'
  return `from available balances, for another ${roughly(offlineMs(status))} without the cloud`
}

function written({ written, perDecision, perDay, budgetPerDay }: NonNullable<AgentStatus['storage']>): string {
  const mebibytes = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MiB`
  return [
    `${mebibytes(written)} written since the start`,
    ...(perDay === null
      ? []
      : [`${mebibytes(perDay)} a day${budgetPerDay === null ? '' : ` of ${mebibytes(budgetPerDay)}`}`]),
    ...(perDecision === null ? [] : [`${perDecision} bytes per decision`]),
  ].join(', ')
}
