import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { killRunning, type ServiceOptions, startService } from '../../src/demo/service-process.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tallygate-process-'))
})
afterEach(() => {
  killRunning()
  rmSync(directory, { recursive: true })
})

const options = (changes: Partial<ServiceOptions> = {}): ServiceOptions => ({
  name: 'the agent',
  args: ['agent'],
  env: {
    TALLYGATE_AGENT_SOCKET_PATH: join(directory, 'agent.sock'),
    TALLYGATE_AGENT_STATE_DIRECTORY: join(directory, 'agent'),
  },
  logFile: join(directory, 'agent.log'),
  readyWithinMs: 20_000,
  ...changes,
})

test('it is ready when it listens, is killed or stopped when asked to, and its log is kept over both', async () => {
  const first = await startService(options())
  expect(first.listening['socket']).toBe(join(directory, 'agent.sock'))
  expect(await first.kill()).toBe('SIGKILL')
  const second = await startService(options())
  expect(await second.stop(10_000)).toBe(0)
  expect(readFileSync(join(directory, 'agent.log'), 'utf8').match(/"listening"/g)).toHaveLength(2)
})

test('one that ends before it is ready is reported with its last output', async () => {
  const start = startService(options({ env: { TALLYGATE_AGENT_LOG_LEVEL: 'loud' } }))
  await expect(start).rejects.toMatchObject({
    code: 'DEMO_FAILED',
    message: expect.stringMatching(
      /^the agent ended with 78 before it was ready:\ntallygate: CONFIG_INVALID: /,
    ) as string,
  })
})

test('one that takes too long is killed', async () => {
  const start = startService(options({ readyWithinMs: 1 }))
  await expect(start).rejects.toMatchObject({ message: expect.stringContaining('was not ready within') as string })
})

test('settings of the shell do not reach it', async () => {
  process.env['TALLYGATE_AGENT_LOG_LEVEL'] = 'loud'
  try {
    const service = await startService(options())
    expect(await service.stop(10_000)).toBe(0)
  } finally {
    delete process.env['TALLYGATE_AGENT_LOG_LEVEL']
  }
})
