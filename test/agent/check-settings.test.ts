import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { requireConsistent } from '../../src/agent/check-settings.ts'
import { composeAgent } from '../../src/agent/compose.ts'
import { type AgentSettings, agentOptions } from '../../src/agent/settings.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { temporaryDirectory } from './harness.ts'

const settingsOf = (flags: Readonly<Record<string, string>>): AgentSettings =>
  loadSettings(agentOptions, { file: null, env: {}, flags, readText: () => 'name:password' })

it.each([
  {},
  { 'grants-starting': '0' },
  { 'grants-top-up-deadline': '0ms' },
  { 'device-key-file': '/a', 'device-next-key-file': '/b' },
  { 'proxy-url': 'http://proxy.example:3128', 'proxy-credentials-file': '/a' },
])('accepts %o', (flags) => {
  requireConsistent(settingsOf(flags))
})

it.each([
  [{ 'grants-starting': '0', 'grants-top-up-deadline': '0ms' }, 'the device would never receive tokens'],
  [{ 'device-next-key-file': '/b' }, 'device.next_key_file needs device.key_file'],
  [{ 'proxy-credentials-file': '/a' }, 'proxy.credentials_file needs proxy.url'],
])('an agent with %o does not start', async (flags, message) => {
  const started = composeAgent(settingsOf({ ...flags, 'state-directory': temporaryDirectory() }))
  await expect(started).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    message: expect.stringContaining(message) as string,
  })
})

it('an agent does not reload settings that work together only with those that wait for its restart', async () => {
  const place = temporaryDirectory()
  const flags = {
    'state-directory': join(place, 'state'),
    'socket-path': join(place, 'socket'),
    'grants-starting': '0',
  }
  const lines: string[] = []
  const agent = await composeAgent(settingsOf({ ...flags, 'enrollment-token-file': join(place, 'none') }), {
    writeLog: (line) => void lines.push(line),
  })
  onTestFinished(() => agent.stop())
  agent.reload(() => settingsOf({ ...flags, 'grants-starting': '1', 'grants-top-up-deadline': '0ms' }))
  expect(lines.find((line) => line.includes('settings not reloaded'))).toContain('grants.starting is 0')
})
