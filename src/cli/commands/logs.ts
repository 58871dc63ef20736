/** `tallygate logs`: what the agent of this device has logged last. */
import { Command, Option } from 'commander'
import { CodedError } from '../../protocol/errors.ts'
import { type SocketFlags, agentClient, withSocketFlag } from '../agent-socket.ts'
import { readFileArgument, wholeNumberArgument } from '../arguments.ts'
import type { Io } from '../io.ts'
import { USUAL_UNIT, journalLines, readLine, readable, rememberedLines, splitLines } from '../log-lines.ts'
import { writeLines } from '../lines.ts'

interface LogsFlags extends SocketFlags {
  readonly file?: string
  readonly unit: string
  readonly lines: number
  readonly level?: keyof typeof SEVERITY
  readonly id?: string
  readonly json?: true
}

const SEVERITY = { debug: 20, info: 30, warn: 40, error: 50 } as const

export function command(io: Io): Command {
  return withSocketFlag(new Command('logs'))
    .description(
      'Shows the last log lines of the agent: from the journal of systemd where it runs as a service, else those that a ' +
        'running agent remembers.',
    )
    .addOption(
      new Option('--file <path>', 'from this file, into which its output was led').conflicts(['socket', 'unit']),
    )
    .option('--unit <name>', 'unit of systemd', USUAL_UNIT)
    .option('--lines <count>', 'so many lines at most', wholeNumberArgument(1, 100_000), 200)
    .addOption(new Option('--level <level>', 'of this severity or graver').choices(Object.keys(SEVERITY)))
    .option('--id <text>', 'only lines that name this id: of a decision, a session, a device, an instance')
    .option('--json', 'for programs: the lines as the agent wrote them')
    .action(async (flags: LogsFlags) => {
      const found = await linesOf(flags, io)
      const id = flags.id?.toLowerCase()
      const least = flags.level === undefined ? 0 : SEVERITY[flags.level]
      const shown = found.filter((line) => {
        if (id !== undefined && !line.toLowerCase().includes(id)) return false
        // What is no line of the agent has no level: it is told where no level is asked for.
        return least === 0 || (readLine(line)?.level ?? 0) >= least
      })
      const isJson = flags.json === true
      for (const line of shown.slice(-flags.lines)) {
        if (!isJson || readLine(line) !== undefined) writeLines(io.stdout, [isJson ? line : readable(line)])
      }
    })
}

/** A filter looks at more than it shows. */
const SEARCHED_LINES = 20_000

async function linesOf(flags: LogsFlags, io: Io): Promise<readonly string[]> {
  if (flags.file !== undefined) return splitLines(readFileArgument(io, flags.file, 'LOG_UNREADABLE'))
  const isFiltered = flags.level !== undefined || flags.id !== undefined
  const wanted = isFiltered ? Math.max(flags.lines, SEARCHED_LINES) : flags.lines
  const journal = flags.socket === undefined ? await journalLines(flags.unit, wanted, io) : null
  if (journal !== null) return journal
  try {
    using client = agentClient(flags, io)
    return await rememberedLines(client)
  } catch (error) {
    if (!(error instanceof CodedError) || error.code !== 'AGENT_UNREACHABLE') throw error
    const where = `the journal has no line of the unit ${flags.unit} that this user may read, and no agent answers`
    throw new CodedError('LOG_UNREADABLE', `${where}: ${error.message}`, { cause: error })
  }
}
