import { join } from 'node:path'
import { expect, it } from 'vitest'
import { composeAgent } from '../../../src/agent/compose.ts'
import { agentOptions } from '../../../src/agent/settings.ts'
import { loadSettings } from '../../../src/settings/load.ts'
import { temporaryDirectory } from '../harness.ts'

it('an agent logs a condition that follows from its state, although no one looks at its status', async () => {
  const directory = temporaryDirectory()
  const flags = {
    'enrollment-token-file': join(directory, 'none'),
    'state-directory': directory,
    'socket-path': join(directory, 'agent.sock'),
    'backup-max-age': '1d',
  }
  const settings = loadSettings(agentOptions, { file: null, env: {}, flags, readText: () => '' })
  const due: (() => void)[] = []
  const lines: string[] = []
  const agent = await composeAgent(settings, {
    writeLog: (line) => void lines.push(line),
    push: null,
    timers: {
      after: (ms, call) => {
        if (ms === 10_000) due.push(call)
        return () => undefined
      },
    },
  })
  for (const call of [...due]) call()
  await agent.stop()
  const [overdue] = lines.filter((line) => line.includes('BACKUP_OVERDUE'))
  expect(JSON.parse(overdue ?? '{}')).toMatchObject({ level: 40, subject: 'backup', code: 'BACKUP_OVERDUE' })
})
