// A twin as a process of its own, as an operator runs it. What it logs above the level of a warning is an error of the test.
import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { COMMAND } from '../support/command.ts'

export class TwinProcess implements AsyncDisposable {
  /** `http://host:port/prefix` */
  readonly address: string
  /** Messages of severity warning or above, with their code where there is one. */
  readonly complaints: string[] = []
  readonly #child: ChildProcess
  readonly #ended: Promise<number | null>

  private constructor(child: ChildProcess, ended: Promise<number | null>, address: string) {
    this.#child = child
    this.#ended = ended
    this.address = address
  }

  /** @param args of `tallygate cloud`; a free port is chosen for it, and there is no broker if they name none */
  static async start(args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<TwinProcess> {
    const broker = args.includes('--push-broker') ? [] : ['--push-broker', 'off']
    const child = spawn(process.execPath, [COMMAND, 'cloud', '--http-port', '0', ...broker, ...args], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, ...env },
    })
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
    const lines = createInterface({ input: child.stdout })
    return new Promise<TwinProcess>((resolve, reject) => {
      let twin: TwinProcess | undefined
      lines.on('line', (line) => {
        const { msg, http, level, err } = JSON.parse(line) as {
          msg?: string
          http?: string
          level?: number
          err?: { code?: string }
        }
        if (msg === 'listening') resolve((twin = new TwinProcess(child, ended, http ?? '')))
        if ((level ?? 0) >= 40) twin?.complaints.push([msg, err?.code].filter(Boolean).join(': '))
      })
      ended.then((code) => reject(new Error(`the twin ended with ${code} before it listened`)), reject)
    })
  }

  get pid(): number | undefined {
    return this.#child.pid
  }

  /** Resolves when it has gone, with its exit code. */
  async end(signal: NodeJS.Signals): Promise<number | null> {
    this.#child.kill(signal)
    return this.#ended
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end('SIGKILL')
  }
}
