// Which agent `tallygate doctor` asks, with none, one and several on the machine, and who is believed.
import { expect, test } from 'vitest'
import type { RunningAgent } from '../../src/cli/doctor/running-agents.ts'
import { choose } from '../../src/cli/doctor/sources.ts'

const running = (pid: number, changes: Partial<RunningAgent> = {}, ...environment: string[]): RunningAgent => ({
  pid,
  command: 'tallygate agent',
  user: 'tallygate',
  started: { environment: ['HOME=/', ...environment], words: ['node', 'tallygate', 'agent'], folder: '/srv' },
  ...changes,
})
const at = (name: string): string => `TALLYGATE_AGENT_SOCKET_PATH=/run/${name}.sock`
const one = running(7, {}, at('one'), 'TALLYGATE_AGENT_STATE_DIRECTORY=/var/one')
const two = running(8, { user: 'ada' }, at('two'))

const asked = (agents: readonly RunningAgent[], env: Readonly<Record<string, string>> = {}, socket?: string) =>
  choose({ env, readText: () => '' }, agents, socket)

test('with no agent, the settings of this machine count', () => {
  const { sources, choice } = asked([], { HOME: '/root' })
  expect(choice).toEqual({ why: 'NONE', isNamed: false, process: null, others: [] })
  expect(sources).toMatchObject({ env: { HOME: '/root' }, flags: {} })
})

test('with one, it is what its process was started with, flags before environment', () => {
  const { sources, choice } = asked([one])
  expect(choice).toEqual({ why: 'ONLY', isNamed: false, process: { pid: 7, user: 'tallygate' }, others: [] })
  expect(sources.env).toMatchObject({ TALLYGATE_AGENT_STATE_DIRECTORY: '/var/one' })
  const words = ['node', 'tallygate', 'agent', '--state-directory=here', '--config', 'agent.toml']
  const flagged = running(9, { started: { environment: [], words, folder: '/srv' } })
  expect(asked([flagged]).sources).toEqual({
    file: '/srv/agent.toml',
    env: {},
    flags: { 'state-directory': '/srv/here' },
  })
})

test('with several, none is guessed: each is named with its socket', () => {
  const { sources, choice } = asked([one, two])
  expect(choice).toEqual({
    why: 'SEVERAL',
    isNamed: false,
    process: null,
    others: [
      { pid: 7, user: 'tallygate', socket: { path: '/run/one.sock' } },
      { pid: 8, user: 'ada', socket: { path: '/run/two.sock' } },
    ],
  })
  expect(sources.env).toEqual({})
})

test('the socket chooses among several, whatever the environment of the command says', () => {
  const { sources, choice } = asked([one, two], { TALLYGATE_AGENT_STATE_DIRECTORY: '/nowhere' }, '/run/one.sock')
  expect(choice).toMatchObject({ why: 'SOCKET', isNamed: true, process: { pid: 7 }, others: [{ pid: 8 }] })
  expect(sources.env).toMatchObject({ TALLYGATE_AGENT_STATE_DIRECTORY: '/var/one' })
  const { choice: elsewhere } = asked([one, two], {}, '/run/elsewhere.sock')
  expect(elsewhere).toMatchObject({ why: 'SEVERAL', isNamed: true, process: null })
})

test('the environment of the command comes before whatever runs', () => {
  const { sources, choice } = asked([one], { TALLYGATE_AGENT_STATE_DIRECTORY: '/mine' })
  expect(choice).toMatchObject({
    why: 'ENVIRONMENT',
    process: null,
    others: [{ pid: 7, socket: { path: '/run/one.sock' } }],
  })
  expect(sources.env).toEqual({ TALLYGATE_AGENT_STATE_DIRECTORY: '/mine' })
})

test('the environment of the command selects the agent with the same socket and state directory, with all of its settings', () => {
  const env = { TALLYGATE_AGENT_SOCKET_PATH: '/run/one.sock', TALLYGATE_AGENT_STATE_DIRECTORY: '/var/one/' }
  const started = running(
    7,
    {},
    at('one'),
    'TALLYGATE_AGENT_STATE_DIRECTORY=/var/one',
    'TALLYGATE_AGENT_LOG_LEVEL=warn',
  )
  const { sources, choice } = asked([two, started], env)
  expect(choice).toMatchObject({ why: 'ENVIRONMENT', process: { pid: 7 }, others: [{ pid: 8 }] })
  expect(sources.env).toMatchObject({ TALLYGATE_AGENT_LOG_LEVEL: 'warn' })
  for (const name of Object.keys(env)) {
    expect(asked([started], { ...env, [name]: '/elsewhere' }).choice).toMatchObject({
      why: 'ENVIRONMENT',
      process: null,
    })
  }
  const theirs = running(9, { user: 'mallory', started: 'NOT_TRUSTED' })
  expect(asked([theirs], env).choice).toMatchObject({ why: 'ENVIRONMENT', process: null })
})

test('an agent of another user is reported and its answers are not used', () => {
  const theirs = running(7, { user: 'mallory', started: 'NOT_TRUSTED' })
  expect(asked([theirs]).choice).toEqual({
    why: 'NONE',
    isNamed: false,
    process: null,
    others: [{ pid: 7, user: 'mallory', socket: 'NOT_TRUSTED' }],
  })
  // Not even where it says that it listens on the socket that is meant.
  expect(asked([theirs], {}, '/run/one.sock').choice).toMatchObject({ why: 'NONE', process: null })
  // Nor does it keep the one that is believed from being the only one.
  expect(asked([theirs, one]).choice).toMatchObject({ why: 'ONLY', process: { pid: 7, user: 'tallygate' } })
})

test('one whose environment this user may not see is not guessed', () => {
  const hidden = running(7, { started: 'NOT_READABLE' })
  expect(asked([hidden]).choice).toMatchObject({ why: 'NONE', others: [{ pid: 7, socket: 'NOT_READABLE' }] })
})

test('one whose settings cannot be used is reported as that', () => {
  const broken = running(8, {}, 'TALLYGATE_AGENT_NO_SUCH_SETTING=1')
  expect(asked([one, broken]).choice.others).toMatchObject([{ pid: 7 }, { pid: 8, socket: 'SETTINGS_WRONG' }])
})
