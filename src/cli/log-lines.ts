/**
 * The last log lines of the agent, from where this machine keeps them: the journal of systemd, or the memory of the agent
 * itself. A line is the JSON that the agent writes; whatever else stands in between is kept as it is.
 */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { z } from 'zod'
import type { HttpClient } from '../client/http.ts'
import { AGENT_LOG_PATH } from '../protocol/local/log.ts'
import { parseJson } from '../protocol/parse-json.ts'
import type { Io } from './io.ts'

export const USUAL_UNIT = 'tallygate-agent'

const LEVELS: Readonly<Record<number, string>> = {
  10: 'TRACE',
  20: 'DEBUG',
  30: 'INFO',
  40: 'WARN',
  50: 'ERROR',
  60: 'FATAL',
}

/** Most bytes that a journal may give. */
const JOURNAL_BYTES_MAX = 32 * 1024 * 1024

const logLine = z.looseObject({ level: z.number(), time: z.number(), msg: z.string().default('') })

/** The lines of a unit in the journal of systemd; null where there is no such journal, or nothing of the unit in it. */
export async function journalLines(
  unit: string,
  lines: number,
  { env }: Pick<Io, 'env'>,
): Promise<readonly string[] | null> {
  const options = ['--no-pager', '--quiet', '--output', 'cat', '--unit', unit, '--lines', String(lines)]
  try {
    const { stdout } = await promisify(execFile)('journalctl', options, { env, maxBuffer: JOURNAL_BYTES_MAX })
    const found = splitLines(stdout)
    return found.length === 0 ? null : found
  } catch {
    return null
  }
}

/** What a running agent remembers. @throws CodedError AGENT_UNREACHABLE and the like */
export async function rememberedLines(client: HttpClient): Promise<readonly string[]> {
  return splitLines(await client.text({ method: 'GET', path: AGENT_LOG_PATH }))
}

export function splitLines(text: string): readonly string[] {
  return text.split('\n').filter((line) => line.trim() !== '')
}

/** Undefined for a line that is none of the agent's. */
export function readLine(line: string): z.infer<typeof logLine> | undefined {
  return logLine.safeParse(parseJson(line)).data
}

/** For a person: time, level, message, and what else it tells. */
export function readable(line: string): string {
  const read = readLine(line)
  if (read === undefined) return line
  const { level, time, msg, ...rest } = read
  const name = LEVELS[level] ?? String(level)
  const told = Object.entries(rest).filter(([, value]) => value !== null)
  const more = told.map(([key, value]) => `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
  return [instantOf(time), name.padEnd(5), msg, ...more].join(' ')
}

function instantOf(time: number): string {
  const date = new Date(time)
  return Number.isNaN(date.getTime()) ? String(time) : date.toISOString()
}
