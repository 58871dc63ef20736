// The agent as a process: killed in the middle of its work, asked to stop, and with a disk that fails under it. Its
// applications send again what had no answer, and in the end every request is charged once.
import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { CodedError } from '../../../src/protocol/errors.ts'
import { journalIn } from '../../agent/harness.ts'
import { ACCOUNT, Application, code, Site } from './site.ts'
import { COMMAND } from '../../support/command.ts'

/** @param limit shell commands to run before */
async function startProcess(
  site: Site,
  { limit = ':', durability = 'durable' }: { limit?: string; durability?: string } = {},
): Promise<ChildProcess> {
  const flags = ['--state-directory', site.stateDirectory, '--socket-path', site.socketPath, '--log-level', 'error']
  flags.push('--durability', durability, '--write-behind-directory', join(site.directory, 'run'))
  const command = `${limit}; exec "$0" "$@"`
  const child = spawn('/bin/sh', ['-c', command, process.execPath, COMMAND, 'agent', ...flags], { stdio: 'ignore' })
  onTestFinished(() => void child.kill('SIGKILL'))
  await expect
    .poll(
      async () =>
        new Application(site).status().then(
          ({ epoch }) => epoch,
          () => 0,
        ),
      { timeout: 20_000 },
    )
    .toBe(1)
  return child
}

async function ended(child: ChildProcess): Promise<unknown> {
  if (child.exitCode !== null) return child.exitCode
  const [exitCode, signal] = (await once(child, 'exit')) as [number | null, string | null]
  return exitCode ?? signal
}

/** Counts up in its sessions until it is stopped, and repeats what had no answer; sums up what was charged. */
class Worker {
  readonly #application: Application
  readonly #session = randomUUID()
  answered = 0
  #isStopped = false

  constructor(site: Site) {
    this.#application = new Application(site)
  }

  stop(): void {
    this.#isStopped = true
  }

  async run(): Promise<void> {
    for (let n = 1; !this.#isStopped; n += 1) await this.#untilAnswered(n)
  }

  async #untilAnswered(n: number): Promise<void> {
    const headers = { 'x-tallygate-session': this.#session, 'x-tallygate-request': String(n) }
    for (;;) {
      try {
        expect(code(await this.#application.ask(1, headers))).toBe('101')
        this.answered = n
        return
      } catch (error) {
        if (!(error instanceof CodedError) || error.code === 'IDEMPOTENCY_CONFLICT' || error.code === 'CONFLICT')
          throw error
        await new Promise((resolve) => setImmediate(resolve))
      }
    }
  }
}

describe('the process of the agent', () => {
  it.each(['durable', 'write-behind'])(
    'that is killed again and again charges every request of its applications once (%s)',
    async (durability) => {
      const site = await Site.offline()
      let child = await startProcess(site, { durability })
      const workers = Array.from({ length: 8 }, () => new Worker(site))
      const running = workers.map((worker) => worker.run())
      const sum = (): number => workers.reduce((total, { answered }) => total + answered, 0)
      for (let kill = 1; kill <= 3; kill += 1) {
        const before = sum()
        await expect.poll(sum, { timeout: 60_000 }).toBeGreaterThan(before + 150)
        child.kill('SIGKILL')
        await ended(child)
        child = await startProcess(site, { durability })
      }
      for (const worker of workers) worker.stop()
      await Promise.all(running)
      child.kill('SIGTERM')
      await ended(child)
      const { accounts, lastEntry } = await (await journalIn(site.stateDirectory)).read()
      expect(lastEntry).toBe(sum())
      expect(accounts.get(ACCOUNT)?.used).toBe(BigInt(sum()) * 1_000_000n)
    },
    300_000,
  )

  it('that is asked to stop finishes what is under way, and leaves nothing behind but its state', async () => {
    const site = await Site.offline()
    const child = await startProcess(site)
    const worker = new Worker(site)
    const running = worker.run()
    await expect.poll(() => worker.answered).toBeGreaterThan(20)
    child.kill('SIGTERM')
    expect(await ended(child)).toBe(0)
    expect(existsSync(site.socketPath)).toBe(false)
    expect(existsSync(join(site.stateDirectory, 'journal.db-wal'))).toBe(false)
    const next = await startProcess(site)
    worker.stop()
    await running
    next.kill('SIGTERM')
    await ended(next)
    const { lastEntry } = await (await journalIn(site.stateDirectory)).read()
    expect(lastEntry).toBe(worker.answered)
  }, 60_000)

  it('exits with its own code when the outcome of a write is unknown, and continues from the durable state', async () => {
    const site = await Site.offline()
    // The kernel refuses to let any file grow beyond this: SQLite meets an error that is no full disk.
    const child = await startProcess(site, { limit: 'ulimit -f 1000' })
    const workers = Array.from({ length: 8 }, () => new Worker(site))
    const running = workers.map((worker) => worker.run())
    expect(await ended(child)).toBe(74)
    const next = await startProcess(site)
    for (const worker of workers) worker.stop()
    await Promise.all(running)
    next.kill('SIGTERM')
    expect(await ended(next)).toBe(0)
    const { lastEntry } = await (await journalIn(site.stateDirectory)).read()
    expect(lastEntry).toBe(workers.reduce((total, { answered }) => total + answered, 0))
  }, 90_000)
})
