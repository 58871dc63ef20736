// A stop while the check of the ledger blocks the thread, with real processes and signals.
import { type ChildProcessByStdio, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { constants } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { expect, it, onTestFinished } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'

const MODULE = new URL('../../src/cli/service-manager/long-start.ts', import.meta.url).href

/** @param during what happens between the start and the end of the reports */
function program(during: string): readonly string[] {
  const socketPath = join(temporaryDirectory(), 'agent.sock')
  const start = { ledgerBytes: 1, socketPath, mode: 0o660, connectionsMax: 2 }
  const source = `
    import { writeSync } from 'node:fs'
    import { reportLongStart } from ${JSON.stringify(MODULE)}
    process.on('SIGTERM', () => {
      writeSync(1, ', stopped')
      process.exit(0)
    })
    const end = reportLongStart(${JSON.stringify(start)}, { notifyPath: null, passedSocket: null })
    ${during}
    await end()
    writeSync(1, 'serves')
    setTimeout(() => undefined, 60_000)`
  return [process.execPath, '--input-type=module', '--eval', source]
}

const BLOCKED = `
  writeSync(1, 'checks')
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60_000)`

type Started = ChildProcessByStdio<null, Readable, null>

async function started([command = '', ...args]: readonly string[], until: string): Promise<Started> {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  let output = ''
  child.stdout.on('data', (bytes: Buffer) => (output += bytes.toString()))
  await expect.poll(() => output, { timeout: 20_000 }).toBe(until)
  return child
}

it('ends the process at once', async () => {
  const child = await started(program(BLOCKED), 'checks')
  child.kill('SIGTERM')
  expect(await once(child, 'close')).toEqual([null, 'SIGTERM'])
})

it('ends the first process of a container at once', async ({ skip }) => {
  const isolated = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc']
  try {
    execFileSync(isolated[0]!, [...isolated.slice(1), 'true'], { stdio: 'pipe' })
  } catch (error) {
    skip(`no process namespace can be made here: ${(error as Error).message}`)
  }
  const child = await started([...isolated, ...program(BLOCKED)], 'checks')
  const [first] = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').split(' ')
  process.kill(Number(first), 'SIGTERM')
  const { SIGTERM } = constants.signals
  expect(await once(child, 'close')).toEqual([SIGTERM, null])
})

it('is in order as soon as the agent serves', async () => {
  const child = await started(program(''), 'serves')
  child.kill('SIGTERM')
  expect(await once(child, 'close')).toEqual([0, null])
})
