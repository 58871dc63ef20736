import { setTimeout as sleep } from 'node:timers/promises'
import { Command, Option } from 'commander'
import { CodedError } from '../../protocol/errors.ts'
import { type SocketFlags, agentClient, namedSocket, withSocketFlag } from '../local-agent.ts'
import { readFileArgument, wholeNumberArgument } from '../arguments.ts'
import type { Io } from '../io.ts'
import {
  USUAL_UNIT,
  followJournal,
  journalLines,
  readLine,
  readable,
  rememberedLines,
  splitLines,
} from '../log-lines.ts'
import { writeLines } from '../lines.ts'

interface LogsFlags extends SocketFlags {
  readonly file?: string
  readonly unit?: string
  readonly lines: number
  readonly level?: keyof typeof SEVERITY
  readonly id?: string
  readonly follow?: true
}

const SEVERITY = { debug: 20, info: 30, warn: 40, error: 50 } as const

export function command(io: Io): Command {
  return withSocketFlag(new Command('logs'))
    .description(
      'Shows the last log lines of the agent: from the systemd journal if the agent runs as a service, otherwise from the memory of the running agent. With --unit only from the journal, with --socket only from the agent.',
    )
    .addOption(
      new Option('--file <path>', "read a file that contains the agent's output").conflicts([
        'socket',
        'unit',
        'follow',
      ]),
    )
    .addOption(new Option('--unit <name>', `systemd unit (default: ${USUAL_UNIT})`).conflicts('socket'))
    .option('--lines <count>', 'maximum number of lines', wholeNumberArgument(1, 100_000), 200)
    .addOption(new Option('--level <level>', 'minimum severity to show').choices(Object.keys(SEVERITY)))
    .option('--id <text>', 'only lines that contain this id of a decision, session, device or instance')
    .option('--follow', 'continue with new lines until Ctrl-C')
    .option('--json', 'print the lines as the agent wrote them (JSON)')
    .action(async (flags: LogsFlags) => {
      const id = flags.id?.toLowerCase()
      const least = flags.level === undefined ? 0 : SEVERITY[flags.level]
      const isShown = (line: string): boolean => {
        if (id !== undefined && !line.toLowerCase().includes(id)) return false
        // Lines that the agent did not write have no level: they are shown only without --level.
        return least === 0 || (readLine(line)?.level ?? 0) >= least
      }
      const isJson = flags.json === true
      const show = (lines: readonly string[]): void => {
        for (const line of lines.filter(isShown).slice(-flags.lines)) {
          if (!isJson || readLine(line) !== undefined) writeLines(io.stdout, [isJson ? line : readable(line)])
        }
      }
      if (flags.follow === true) await follow(flags, show, io)
      else show(await linesOf(flags, io))
    })
}

const FOLLOW_EVERY_MS = 500

async function follow(flags: LogsFlags, show: (lines: readonly string[]) => void, io: Io): Promise<void> {
  const { unit = USUAL_UNIT, lines: wanted } = flags
  if (namedSocket(flags, io) === undefined && (await journalLines(unit, 1, io)) !== null) {
    await followJournal({ unit, lines: wanted }, show, { env: io.env, signal: io.stop() })
    return
  }
  let lines = await linesOf(flags, io)
  show(lines)
  using client = agentClient(flags, io)
  const signal = io.stop()
  // An agent that hangs does not respond.
  signal.addEventListener('abort', () => client[Symbol.dispose]())
  while (!signal.aborted) {
    await sleep(FOLLOW_EVERY_MS, undefined, { signal }).catch(() => undefined)
    const [newest] = lines.slice(-1)
    const now = await rememberedLines(client).catch((error: unknown) => {
      if (error instanceof CodedError && error.code === 'AGENT_UNREACHABLE') return lines
      throw error
    })
    // An agent that was restarted, or wrote very much, no longer has the line.
    show(newest === undefined ? now : now.slice(now.lastIndexOf(newest) + 1))
    lines = now
  }
}

const SEARCHED_LINES = 20_000

async function linesOf(flags: LogsFlags, io: Io): Promise<readonly string[]> {
  if (flags.file !== undefined) return splitLines(readFileArgument(io, flags.file, 'LOG_UNREADABLE'))
  const isFiltered = flags.level !== undefined || flags.id !== undefined
  const wanted = isFiltered ? Math.max(flags.lines, SEARCHED_LINES) : flags.lines
  const { unit = USUAL_UNIT } = flags
  const journal = namedSocket(flags, io) === undefined ? await journalLines(unit, wanted, io) : null
  if (journal !== null) return journal
  const where = `The journal has no lines of unit ${unit} that this user can read`
  if (flags.unit !== undefined) throw new CodedError('LOG_UNREADABLE', `${where}.`)
  try {
    using client = agentClient(flags, io)
    return await rememberedLines(client)
  } catch (error) {
    if (!(error instanceof CodedError) || error.code !== 'AGENT_UNREACHABLE') throw error
    throw new CodedError('LOG_UNREADABLE', `${where}, and no agent responds: ${error.message}`, { cause: error })
  }
}
