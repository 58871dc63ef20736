/** Cloud and agent as separate processes. One is ready when it logs `listening`. All are killed with the demo. */
import { spawn, type ChildProcess } from 'node:child_process'
import { closeSync, openSync, writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { CodedError } from '../protocol/errors.ts'
import { unwritableReason } from '../protocol/file-reasons.ts'
import { parseJson } from '../protocol/parse-json.ts'

export const COMMAND = fileURLToPath(new URL('../../bin/tallygate.js', import.meta.url))
const LAST_WORDS = 20

export interface ServiceOptions {
  readonly name: string
  /** Program and first arguments; absent: this installation. */
  readonly command?: readonly [program: string, ...args: string[]]
  readonly args: readonly string[]
  readonly preload?: URL
  readonly env: Readonly<Record<string, string>>
  readonly logFile: string
  readonly readyWithinMs: number
}

export type Listening = Readonly<Record<string, unknown>>

export interface ServiceProcess {
  readonly pid: number
  readonly listening: Listening
  /** Resolves with the exit code or signal name. */
  readonly ended: Promise<number | string>
  stop(graceMs: number): Promise<number | string>
  kill(): Promise<number | string>
}

/** @throws CodedError if the process ends or is not ready in time */
export async function startService(options: ServiceOptions): Promise<ServiceProcess> {
  const log = openLog(options.logFile)
  const imports = options.preload === undefined ? [] : ['--import', options.preload.href]
  const [program, ...first] = options.command ?? [process.execPath, ...imports, COMMAND]
  const child = spawn(program, [...first, ...options.args], {
    env: { ...inherited(), ...options.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  running.add(child)
  const lastWords: string[] = []
  const note = (line: string): void => {
    try {
      writeSync(log, `${line}\n`)
    } catch {
      // The service has also reported that the disk is full.
    }
    lastWords.push(line)
    if (lastWords.length > LAST_WORDS) lastWords.shift()
  }
  const ended = new Promise<number | string>((resolve) => {
    child.once('close', (code, signal) => {
      running.delete(child)
      closeSync(log)
      resolve(code ?? signal ?? 'unknown')
    })
  })

  const ready = new Promise<Listening>((resolve) => {
    createInterface({ input: child.stdout }).on('line', (line) => {
      note(line)
      const fields = line.startsWith('{') ? (parseJson(line) as Listening | undefined) : undefined
      if (fields?.['msg'] === 'listening') resolve(fields)
    })
    createInterface({ input: child.stderr }).on('line', note)
  })
  let timer: NodeJS.Timeout | undefined
  const listening = await Promise.race([
    ready,
    ended.then((code) => {
      throw new CodedError(
        'DEMO_FAILED',
        `${options.name} ended with ${code} before it was ready:\n${lastWords.join('\n')}`,
      )
    }),
    new Promise<never>((_resolve, reject) => {
      timer = setTimeout(() => {
        child.kill('SIGKILL')
        const seconds = options.readyWithinMs / 1000
        reject(
          new CodedError('DEMO_FAILED', `${options.name} was not ready within ${seconds} s:\n${lastWords.join('\n')}`),
        )
      }, options.readyWithinMs)
    }),
  ]).finally(() => clearTimeout(timer))

  const end = async (signal: NodeJS.Signals): Promise<number | string> => {
    child.kill(signal)
    return ended
  }
  return {
    pid: child.pid ?? 0,
    listening,
    ended,
    kill: () => end('SIGKILL'),
    stop: async (graceMs) => {
      const force = setTimeout(() => child.kill('SIGKILL'), graceMs)
      return end('SIGTERM').finally(() => clearTimeout(force))
    },
  }
}

function openLog(path: string): number {
  try {
    return openSync(path, 'a')
  } catch (cause) {
    throw new CodedError('OUTPUT_UNWRITABLE', `Cannot write ${path}: ${unwritableReason(cause)}.`, { cause })
  }
}

const running = new Set<ChildProcess>()

export function killRunning(): void {
  for (const child of running) child.kill('SIGKILL')
}

/** Environment without settings from the user's shell. */
function inherited(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TALLYGATE_')))
}
