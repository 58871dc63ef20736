/**
 * One service as a separate process, started with the operator's command. May be killed at any time, even before it is
 * ready. Its output goes to a log.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { COMMAND, SOURCES } from '../../test/support/command.ts'

const LAST_WORDS = 20
const READY_WITHIN_MS = 60_000

export interface Launch {
  /** A wrapper command, such as a tracer, with its arguments. */
  readonly under?: readonly string[]
  readonly preload?: readonly URL[]
  readonly env?: Readonly<Record<string, string>>
}

export interface ServiceOptions extends Launch {
  readonly args: readonly string[]
  readonly logFile: string
}

type Listening = Readonly<Record<string, unknown>>

export class Service {
  /** Resolves when the service listens; rejects with its last output if it ends before. */
  readonly listening: Promise<Listening>
  /** Exit code or signal name, after all output has arrived. */
  readonly ended: Promise<number | string>
  readonly #child: ChildProcess

  constructor({ args, logFile, under = [], preload = [], env = {} }: ServiceOptions) {
    const imports = preload.flatMap((module) => ['--import', module.href])
    // A preloaded module changes modules of the sources.
    const program = preload.length > 0 ? SOURCES : COMMAND
    const [command = '', ...rest] = [...under, process.execPath, ...imports, program, ...args]
    const log = openSync(logFile, 'a')
    const child = spawn(command, rest, { env: { ...inherited(), ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
    this.#child = child
    running.add(child)
    const lastWords: string[] = []
    const note = (line: string): void => {
      writeSync(log, `${line}\n`)
      lastWords.push(line)
      if (lastWords.length > LAST_WORDS) lastWords.shift()
    }
    this.ended = new Promise((resolve, reject) => {
      child.once('error', reject)
      child.once('close', (code, signal) => {
        running.delete(child)
        closeSync(log)
        resolve(code ?? signal ?? 'unknown')
      })
    })
    const said = new Promise<Listening>((resolve) => {
      createInterface({ input: child.stdout }).on('line', (line) => {
        note(line)
        if (line.includes('"msg":"listening"')) resolve(JSON.parse(line) as Listening)
      })
      createInterface({ input: child.stderr }).on('line', note)
    })
    const name = `tallygate ${args[0] ?? ''}`
    const gone = this.ended.then((code) => {
      throw new Error(`${name} ended with ${code} before it was ready:\n${lastWords.join('\n')}`)
    })
    const late = new Promise<never>((_resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${name} does not get ready`)), READY_WITHIN_MS)
      const clear = (): void => clearTimeout(timer)
      said.then(clear, clear)
      gone.catch(clear)
    })
    this.listening = Promise.race([said, gone, late])
    // A caller that kills it does not wait for readiness.
    this.listening.catch(() => undefined)
    this.ended.catch(() => undefined)
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  get isAlive(): boolean {
    return running.has(this.#child)
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  async end(signal: NodeJS.Signals): Promise<number | string> {
    this.#child.kill(signal)
    return this.ended
  }
}

const running = new Set<ChildProcess>()

/** No child process outlives the tool. */
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})

function inherited(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TALLYGATE_')))
}
