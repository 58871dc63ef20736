// A program in one of the languages, that does with its client what the lines of its standard input say, and prints a line
// for each result and `done` after each command:
//
//   access REQUESTER VERSION COUNT TIMES   granted|refused CODE TOKENS RETRY ADVICE, or error TYPE CODE RETRY
//   burst TIMES                            not in C: granted COUNT, of so many requests at the same time
//   offers                                 offer ITEM VERSION RATE INSTANCE
//   open [bound]                           opened ID
//   request REQUESTER COUNT                as access
//   state, wait, close                     state STATE, ended STATE, closed
//   close twice                            closed, after two threads or tasks have closed it at the same time
//   end                                    end STATE, or end - if the session did not end by itself
//   interrupt REQUESTER                    in Python: interrupted, after a handler of a signal has ended the request
//   cancel REQUESTER                       in Python with asyncio: cancelled, of a request whose connection ends at that moment
//   begin REQUESTER COUNT                  in Go: nothing, and a request of the session is sent meanwhile
//   hurry                                  in Go: late ERROR, of a call of the session that may take 10 ms
//   fork COMMAND                           as the command, which a forked process runs
import { type ChildProcessByStdio, execFile, spawn, spawnSync } from 'node:child_process'
import { copyFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const root = fileURLToPath(new URL('../../', import.meta.url))
const drivers = join(root, 'test/sdk/drivers')

export interface Language {
  readonly name: string
  /** A program can fork, and use the client in both processes. */
  readonly forks?: true
  /** Needed on the path; the arguments print a version. */
  readonly tool?: readonly [program: string, argument: string]
  /** @param directory for what is built; returns the command. */
  readonly build: (directory: string) => Promise<readonly string[]>
  readonly env?: Readonly<Record<string, string>>
}

const run = promisify(execFile)
const python = { PYTHONPATH: join(root, 'sdk/python/src'), PYTHONDONTWRITEBYTECODE: '1' }

export const LANGUAGES: readonly Language[] = [
  { name: 'Node', build: async () => [process.execPath, join(drivers, 'node.ts')] },
  {
    name: 'Python',
    forks: true,
    tool: ['python3', '--version'],
    build: async () => ['python3', join(drivers, 'python_sync.py')],
    env: python,
  },
  {
    name: 'Python with asyncio',
    forks: true,
    tool: ['python3', '--version'],
    build: async () => ['python3', join(drivers, 'python_asyncio.py')],
    env: python,
  },
  {
    name: 'Go',
    tool: ['go', 'version'],
    build: async (directory) => {
      const env = { ...process.env, GOFLAGS: '-mod=mod', GOTOOLCHAIN: 'local', GOPROXY: 'off' }
      await run('go', ['build', '-o', join(directory, 'driver-go'), '.'], { cwd: join(drivers, 'go'), env })
      return [join(directory, 'driver-go')]
    },
  },
  {
    name: 'C',
    forks: true,
    tool: ['cc', '--version'],
    build: async (directory) => {
      copyFileSync(join(drivers, 'driver.c'), join(directory, 'driver.c'))
      const strict = ['-std=gnu11', '-Wall', '-Wextra', '-Werror', '-O1', '-fsanitize=address,undefined']
      const files = ['-I', join(root, 'sdk/c'), join(directory, 'driver.c'), '-o', join(directory, 'driver-c')]
      await run('cc', [...strict, '-pthread', ...files])
      return [join(directory, 'driver-c')]
    },
  },
]

/** Why this language cannot be tested here. Undefined: it can. */
export function missingTool({ tool }: Language): string | undefined {
  if (tool === undefined) return undefined
  const [program, argument] = tool
  return spawnSync(program, [argument], { stdio: 'ignore' }).status === 0
    ? undefined
    : `there is no ${program} on the path`
}

export class Driver implements Disposable {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>
  readonly #lines: AsyncIterator<string>
  /** Number of result lines so far. */
  answered = 0

  /** @param env undefined: the variable is not set */
  constructor(command: readonly string[], env: Readonly<Record<string, string | undefined>>) {
    const [program = '', ...args] = command
    this.#child = spawn(program, args, { env: { ...process.env, ...env }, stdio: ['pipe', 'pipe', 'inherit'] })
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]()
  }

  /** The lines that follow the command. */
  async do(command: string): Promise<readonly string[]> {
    this.#child.stdin.write(`${command}\n`)
    const results: string[] = []
    for (;;) {
      const next = await this.#lines.next()
      if (next.done === true) throw new Error(`the program ended during ${command}`)
      const { value } = next
      if (value === 'done') return results
      this.answered += 1
      results.push(value.trimEnd())
    }
  }

  /** Without a chance to say anything. */
  kill(): void {
    this.#child.kill('SIGKILL')
  }

  [Symbol.dispose](): void {
    this.kill()
  }
}
