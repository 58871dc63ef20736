import { Command } from 'commander'
import { counted } from '../../core/accounts/in-words.ts'
import { healthStatusOf, isRemedied } from '../../agent/diagnostics/health-status.ts'
import { type Observations, isProblem, isStarting } from '../doctor/observations.ts'
import { type SocketFlags, healthLines, withSocketFlag } from '../local-agent.ts'
import { type Examination, RESULT_EXIT, examine } from '../doctor/checks.ts'
import { type Repair, repair } from '../doctor/fix.ts'
import { gather } from '../doctor/gather.ts'
import type { Io } from '../io.ts'
import { jsonLine, writeLines } from '../lines.ts'

interface DoctorFlags extends SocketFlags {
  readonly all?: true
  readonly fix?: true
  readonly network: boolean
}

export function command(io: Io): Command {
  return withSocketFlag(new Command('doctor'))
    .description(
      'Checks the agent of this device and everything that it depends on, whether or not it runs, and shows failures first, then warnings, each with evidence and remedy. The first line shows which agent is checked, and why: the agent that --socket or TALLYGATE_AGENT_* in the environment selects; otherwise the only agent that runs as the service, as root or as this user, with its environment and flags. If there is no such agent, or more than one, the settings of this machine are used (/etc/tallygate/agent.toml). Exit code 0: no problems, 1: warnings, 2: failures.',
    )
    .option(
      '--fix',
      'also repair what is safe to repair: permissions, a left-over socket, the reserve file, the write-ahead log',
    )
    .option('--no-network', 'do not contact name servers, the cloud or the broker')
    .option('--all', 'also show the checks that passed')
    .option('--json', 'print one JSON document')
    .action(async (flags: DoctorFlags) => {
      let observations = await gather(io, flags)
      const repairs = flags.fix === true ? repair(observations) : []
      if (repairs.some(({ done }) => done)) observations = await gather(io, flags)
      const examination = examine(observations)
      const repaired = flags.fix === true ? { repairs } : {}
      writeLines(
        io.stdout,
        flags.json === true
          ? [jsonLine({ ...examination, ...repaired })]
          : describe(examination, repairs, { isWhole: flags.all === true, ...healthOf(observations) }),
      )
      io.exitWith(RESULT_EXIT[examination.result])
    })
}

const MARK = { fail: 'FAIL', warn: 'WARN', ok: 'ok  ', skip: '-   ' } as const

const SUMMARY = {
  ok: 'No problems found.',
  warn: 'The agent works, with warnings.',
  fail: 'The agent has failures.',
} as const

type Health = ReturnType<typeof healthStatusOf>

function healthOf({ agent }: Observations): Pick<View, 'health' | 'isRemedied'> {
  if (isStarting(agent)) return { health: 'STARTING', isRemedied: false }
  if (isProblem(agent)) return { health: null, isRemedied: false }
  const { conditions } = agent
  return { health: healthStatusOf(agent), isRemedied: conditions.every((each) => isRemedied(each, agent)) }
}

export function summaryOf({ result }: Pick<Examination, 'result'>, health: View['health']): string {
  if (result !== 'warn') return SUMMARY[result]
  if (health === 'STARTING') return 'The agent starts, so some checks were left out: run doctor again when it is ready.'
  if (health === null) return 'The agent does not respond to this user, so some checks were left out.'
  return health.level === 'refusing' ? 'The agent works, but the device refuses requests.' : SUMMARY.warn
}

interface View {
  /** Whether to list the checks that passed or do not apply. */
  readonly isWhole: boolean
  /** Null: no agent responds. */
  readonly health: Health | 'STARTING' | null
  /** Whether the steps of the health status contain the remedy of the check `conditions`. */
  readonly isRemedied: boolean
}

function describe(examination: Examination, repairs: readonly Repair[], view: View): readonly string[] {
  const { isWhole, health } = view
  const { checks } = examination
  const of = (level: keyof typeof MARK) => checks.filter((each) => each.level === level)
  const [selected] = checks
  const shown = [...of('fail'), ...of('warn'), ...(isWhole ? [...of('ok'), ...of('skip')] : [])]
  const width = Math.max(...shown.map(({ name }) => name.length))
  const lines = shown.flatMap(({ name, level, evidence, remedy }) => [
    `${MARK[level]}  ${name.padEnd(width)}  ${evidence}`,
    ...(remedy === '' || (name === 'conditions' && view.isRemedied) ? [] : [`${' '.repeat(width + 8)}-> ${remedy}`]),
  ])
  const mended = repairs.map(({ what, done, problem }) => (done ? `fixed: ${what}` : `NOT fixed: ${what}: ${problem}`))
  const counts = `${counted(of('fail').length, 'failure', 'failures')}, ${counted(of('warn').length, 'warning', 'warnings')}, ${of('ok').length} passed, ${of('skip').length} not applicable`
  return [
    ...(selected === undefined ? [] : [`Agent: ${selected.evidence}`]),
    ...(selected === undefined || selected.remedy === '' ? [] : [`-> ${selected.remedy}`]),
    ...mended,
    '',
    ...(health === null || health === 'STARTING' ? [] : [...healthLines(health), '']),
    ...lines,
    ...(lines.length === 0 ? [] : ['']),
    `${summaryOf(examination, health)} ${checks.length} checks: ${counts}.`,
  ]
}
