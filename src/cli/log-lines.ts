/** The agent's last log lines, from the systemd journal or from the memory of the running agent. */
import { execFile, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { once } from 'node:events'
import { promisify } from 'node:util'
import { z } from 'zod'
import type { HttpClient } from '../client/http.ts'
import { AGENT_LOG_PATH } from '../protocol/local/log.ts'
import { parseJson } from '../protocol/parse-json.ts'
import type { Io } from './io.ts'
import { instantText } from './lines.ts'

export const USUAL_UNIT = 'tallygate-agent'

const LEVELS: Readonly<Record<number, string>> = {
  10: 'TRACE',
  20: 'DEBUG',
  30: 'INFO',
  40: 'WARN',
  50: 'ERROR',
  60: 'FATAL',
}

const JOURNAL_BYTES_MAX = 32 * 1024 * 1024

/** Fields with an instant, POSIX ms. */
const INSTANTS: ReadonlySet<string> = new Set(['since'])

const logLine = z.looseObject({ level: z.number(), time: z.number(), msg: z.string().default('') })

/** Null if there is no journal, or no line of the unit in it. */
export async function journalLines(
  unit: string,
  lines: number,
  { env }: Pick<Io, 'env'>,
): Promise<readonly string[] | null> {
  try {
    const { stdout } = await promisify(execFile)('journalctl', optionsOf(unit, lines), {
      env,
      maxBuffer: JOURNAL_BYTES_MAX,
    })
    const found = splitLines(stdout)
    return found.length === 0 ? null : found
  } catch {
    return null
  }
}

export async function followJournal(
  { unit, lines }: { readonly unit: string; readonly lines: number },
  show: (lines: readonly string[]) => void,
  { env, signal }: Pick<Io, 'env'> & { readonly signal: AbortSignal },
): Promise<void> {
  const options = [...optionsOf(unit, lines), '--follow']
  const child = spawn('journalctl', options, { env, stdio: ['ignore', 'pipe', 'ignore'] })
  const closed = once(child, 'close')
  const stop = (): void => void child.kill()
  signal.addEventListener('abort', stop)
  if (signal.aborted) stop()
  createInterface({ input: child.stdout }).on('line', (line) => show(splitLines(line)))
  await closed
  signal.removeEventListener('abort', stop)
}

function optionsOf(unit: string, lines: number): readonly string[] {
  return ['--no-pager', '--quiet', '--output', 'cat', '--unit', unit, '--lines', String(lines)]
}

export async function rememberedLines(client: HttpClient): Promise<readonly string[]> {
  return splitLines(await client.text({ method: 'GET', path: AGENT_LOG_PATH }))
}

export function splitLines(text: string): readonly string[] {
  return text.split('\n').filter((line) => line.trim() !== '')
}

/** Undefined if the agent did not write the line. */
export function readLine(line: string): z.infer<typeof logLine> | undefined {
  return logLine.safeParse(parseJson(line)).data
}

export function readable(line: string): string {
  const read = readLine(line)
  if (read === undefined) return line
  const { level, time, msg, ...rest } = read
  const name = LEVELS[level] ?? String(level)
  const fields = Object.entries(rest).filter(([, value]) => value !== null)
  const textOf = (key: string, value: unknown): string => {
    if (INSTANTS.has(key) && typeof value === 'number') return instantText(value)
    return typeof value === 'string' ? value : JSON.stringify(value)
  }
  const more = fields.map(([key, value]) => `${key}=${textOf(key, value)}`)
  return [instantText(time), name.padEnd(5), msg, ...more].join(' ')
}
