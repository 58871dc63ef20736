// What the kernel says of processes that run an agent, and what is no agent.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { expect, onTestFinished, test } from 'vitest'
import { runningAgents } from '../../src/cli/doctor/running-agents.ts'
import { temporaryDirectory } from '../agent/harness.ts'

/** A process of this user with these words after the name of the program; it does nothing. */
async function process(...words: readonly string[]): Promise<{ readonly pid: number; readonly folder: string }> {
  const folder = temporaryDirectory()
  const child = spawn('sh', ['-c', 'echo ready; read -r forever', ...words], {
    cwd: folder,
    env: { TALLYGATE_AGENT_STATE_DIRECTORY: '/var/one' },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  onTestFinished(async () => {
    const ended = once(child, 'close')
    child.kill('SIGKILL')
    await ended
  })
  await once(child.stdout, 'data')
  return { pid: child.pid!, folder }
}

test('an agent is found by its command line, with what it was started with', async () => {
  const { pid, folder } = await process('/opt/bin/tallygate', 'agent', '--state-directory', 'here')
  expect(runningAgents().find((each) => each.pid === pid)).toMatchObject({
    command: '/opt/bin/tallygate agent --state-directory here',
    started: {
      folder,
      environment: expect.arrayContaining(['TALLYGATE_AGENT_STATE_DIRECTORY=/var/one']) as string[],
      words: expect.arrayContaining(['--state-directory', 'here']) as string[],
    },
  })
})

test('another command of the program is not an agent, nor is a word of that name', async () => {
  const others = [await process('tallygate', 'status'), await process('grep', 'agent', 'tallygate')]
  const pids = new Set(runningAgents().map(({ pid }) => pid))
  expect(others.filter(({ pid }) => pids.has(pid))).toEqual([])
})
