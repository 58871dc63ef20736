/** `tallygate status`: how the agent of this device is, for a technician or a program. */
import { Command } from 'commander'
import { parseAccount } from '../../core/account.ts'
import { formatMicro } from '../../core/amount.ts'
import { billed, room } from '../../core/grant.ts'
import { AGENT_STATUS_PATH, agentStatus, type AgentStatus } from '../../protocol/local/status.ts'
import { agentClient, type SocketFlags, withSocketFlag } from '../agent-socket.ts'
import { columns } from '../columns.ts'
import type { Io } from '../io.ts'
import { jsonLine } from '../json-line.ts'

interface StatusFlags extends SocketFlags {
  readonly json?: true
}

export function command(io: Io): Command {
  return withSocketFlag(new Command('status'))
    .description('Shows how the agent of this device is: link to the cloud, rules in force, tokens at hand.')
    .option('--json', 'for programs: one JSON document')
    .action(async (flags: StatusFlags) => {
      using client = agentClient(flags, io)
      const status = await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus)
      io.stdout.write(`${flags.json === true ? jsonLine(status) : describe(status, io.now()).join('\n')}\n`)
    })
}

function describe(status: AgentStatus, now: number): readonly string[] {
  const ago = (instant: number | null): string =>
    instant === null ? 'never' : `${roughly(Math.max(0, now - instant))} ago`
  const facts = columns([
    ['device', status.deviceId ?? 'not enrolled'],
    ['cloud', `${status.connected ? 'connected' : 'not reached'}, last contact ${ago(status.lastContactAt)}`],
    ['hints', status.push.toLowerCase()],
    ['ledger', `${status.lastEntry} entries, ${status.backlog} not yet in the cloud`],
    ['spending', spending(status)],
    ['answers', status.durability === 'durable' ? 'after their charge is on the disk' : 'from blocks reserved ahead'],
    ...(status.storage === null ? [] : [['storage', written(status.storage)]]),
    ...status.policies.map(({ instanceId, applied, newest }) => [
      'rules',
      `revision ${applied} of instance ${instanceId}${newest > applied ? `, revision ${newest} exists` : ''}`,
    ]),
  ])
  const accounts = columns([
    ['TOKENS OF', 'AT HAND', 'CHARGED', ''],
    ...status.accounts.map((account) => [
      nameOf(account.account),
      account.unlimited ? 'unlimited' : formatMicro(room(account)),
      formatMicro(billed(account)),
      [
        ...(account.exhausted ? ['the pool has no more'] : []),
        ...(account.burned > 0n ? [`${formatMicro(account.burned)} of it burned by power cuts`] : []),
      ].join(', '),
    ]),
  ])
  const conditions = status.conditions.map(
    ({ subject, code, message, since }) => `! ${subject}: ${code}: ${message} (since ${new Date(since).toISOString()})`,
  )
  return [
    ...facts,
    ...(status.accounts.length === 0 ? [] : ['', ...accounts]),
    ...(conditions.length === 0 ? [] : ['', ...conditions]),
  ]
}

function spending({ fenced, hold, incarnation, grant }: AgentStatus): string {
  if (hold !== null) {
    const done = hold.state === 'LOCKED' ? 'locked' : 'its service was ended'
    return `stopped: ${done} by ${hold.by}, ${new Date(hold.since).toISOString()}`
  }
  if (fenced) return 'stopped: the cloud has fenced this device, it will attach anew'
  if (incarnation === 0) return 'not yet: never attached to the cloud'
  if (grant === null) return 'not yet: no grant'
  return `from what is at hand, for ${roughly(grant.remainingMs)} more without the cloud`
}

function written({ written, perDecision, perDay, budgetPerDay }: NonNullable<AgentStatus['storage']>): string {
  const mebibytes = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MiB`
  return [
    `${mebibytes(written)} written since the start`,
    ...(perDay === null
      ? []
      : [`${mebibytes(perDay)} a day${budgetPerDay === null ? '' : ` of ${mebibytes(budgetPerDay)}`}`]),
    ...(perDecision === null ? [] : [`${perDecision} bytes for a decision`]),
  ].join(', ')
}

const UNITS = [
  ['days', 86_400_000],
  ['hours', 3_600_000],
  ['minutes', 60_000],
  ['seconds', 1_000],
] as const

/** A length of time in the largest unit of which there are two or more. */
function roughly(ms: number): string {
  const [unit, size] = UNITS.find(([, each]) => ms >= 2 * each) ?? UNITS[3]
  return `${Math.floor(ms / size)} ${unit}`
}

function nameOf(account: string): string {
  const parsed = parseAccount(account)
  switch (parsed?.kind) {
    case 'line':
      return parsed.lineItemId
    case 'action':
      return `${parsed.lineItemId}, action ${parsed.actionId}`
    case 'limit':
      return `${parsed.lineItemId}, ${parsed.requester.type} ${parsed.requester.value}`
    case undefined:
      return account
  }
}
