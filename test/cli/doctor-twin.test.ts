// `tallygate doctor` at a device whose cloud is a real twin, and at agents that run as processes of their own.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { expect, onTestFinished, test } from 'vitest'
import { openKeyFile } from '../../src/agent/platform/key-file/key-file.ts'
import type { Examined } from '../../src/cli/doctor/checks.ts'
import { readSmallText } from '../../src/platform/read-file.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { Application } from '../scenarios/agent/site.ts'
import { startAgent } from '../scenarios/agent/start-agent.ts'
import { ALWAYS, openTwin } from '../cloud/harness.ts'
import { tallygate } from './outside.ts'
import { COMMAND } from '../support/command.ts'

/** A device that has enrolled at a twin, and ended. */
async function enrolled() {
  const twin = await openTwin()
  onTestFinished(() => twin[Symbol.asyncDispose]())
  twin.followMachine()
  const enrollmentToken = await twin.enrollmentToken(await twin.shop(ALWAYS))
  const directory = temporaryDirectory()
  const env = {
    TALLYGATE_AGENT_STATE_DIRECTORY: join(directory, 'state'),
    TALLYGATE_AGENT_SOCKET_PATH: join(directory, 'agent.sock'),
  }
  const start = () => startAgent({ directory, enrollmentToken })
  const agent = await start()
  const { deviceId } = await new Application(agent).until(({ accounts, connected }) => accounts.length > 0 && connected)
  await agent.stop()
  const signIn = async () => (await check(['--json'], env))('sign-in')
  return { twin, env, start, signIn, deviceId: deviceId!, key: join(directory, 'state', 'device.key') }
}

async function check(
  flags: readonly string[],
  env: Readonly<Record<string, string>>,
  time: number | (() => number) = Date.now(),
): Promise<(name: string) => Omit<Examined, 'name'>> {
  const { out, err } = await tallygate(['doctor', '--json', ...flags], {
    env,
    now: typeof time === 'number' ? () => time : time,
    // Bounded, as in the command: doctor also reads the files of agents of other tests.
    readText: readSmallText,
  })
  if (out === '') throw new Error(err)
  const { checks } = JSON.parse(out) as { readonly checks: readonly Examined[] }
  return (name) => {
    const { level, evidence, remedy } = checks.find((each) => each.name === name)!
    return { level, evidence, remedy }
  }
}

const fails = (evidence: RegExp, remedy: RegExp) => ({
  level: 'fail',
  evidence: expect.stringMatching(evidence) as string,
  remedy: expect.stringMatching(remedy) as string,
})

test('a device that the twin knows signs in, with any rules and with a lock', { timeout: 60_000 }, async () => {
  const { twin, signIn, deviceId, env } = await enrolled()
  expect(await signIn()).toMatchObject({
    level: 'ok',
    evidence: expect.stringMatching(/accepts the device; cloud version \d/) as string,
  })
  expect((await check([], env))('cloud-reachable')).toMatchObject({ level: 'ok' })
  await twin.call('POST', `/edge/api/v1/devices/${deviceId}/lock`, { body: {} })
  expect(await signIn()).toMatchObject({ level: 'ok' })
})

test('a device that was revoked is to be enrolled again', { timeout: 60_000 }, async () => {
  const { twin, signIn, deviceId } = await enrolled()
  await twin.call('POST', `/edge/api/v1/devices/${deviceId}/revoke`, { body: {} })
  expect(await signIn()).toEqual(
    fails(
      /403 DEVICE_REVOKED: .* was revoked at 2\d{3}-.*Z by an administrator\.$/,
      /empty directory and a new enrollment token/,
    ),
  )
})

test('a key that was not enrolled is to be put back', { timeout: 60_000 }, async () => {
  const { signIn, key, env } = await enrolled()
  renameSync(key, `${key}.enrolled`)
  await openKeyFile({ path: key, create: true })
  expect(await signIn()).toEqual(fails(/401 TOKEN_INVALID/, /Put the enrolled key back/))
  expect((await check(['--no-network'], env))('key-fits')).toMatchObject({ level: 'fail' })
  renameSync(`${key}.enrolled`, key)
  expect(await signIn()).toMatchObject({ level: 'ok' })
})

test('a clock that is off is reported as that, and does not refuse the device', { timeout: 60_000 }, async () => {
  const { env } = await enrolled()
  const of = await check([], env, Date.now() + 86_400_000 + 1_800_000)
  expect(of('sign-in')).toMatchObject({ level: 'ok' })
  expect(of('clock')).toMatchObject({
    level: 'warn',
    evidence: "the wall clock is 24 hours off the cloud's clock (unsigned)",
  })
})

test(
  'a clock that is off does not refuse a device whose agent has the time of the cloud',
  { timeout: 60_000 },
  async () => {
    const { start, env } = await enrolled()
    await new Application(await start()).until(({ clock }) => clock.latest !== null)
    const of = await check([], env, Date.now() + 2 * 86_400_000)
    expect(of('sign-in')).toMatchObject({ level: 'ok' })
    expect(of('clock')).toMatchObject({ level: 'warn' })
  },
)

test('a check that takes long refuses no device, and doubts no clock', { timeout: 60_000 }, async () => {
  const { twin, start, env } = await enrolled()
  await new Application(await start()).until(({ clock }) => clock.latest !== null)
  let passed = 0
  const of = await check([], env, () => {
    const now = Date.now() + passed
    passed = 600_000
    twin.now = Date.now() + passed
    return now
  })
  expect(of('sign-in')).toMatchObject({ level: 'ok' })
  expect(of('clock')).toMatchObject({ level: 'ok' })
})

test('a twin that is away is a warning, and broken nothing', { timeout: 60_000 }, async () => {
  const { twin, signIn, env } = await enrolled()
  await twin.stop()
  expect(await signIn()).toMatchObject({ level: 'skip' })
  expect((await check([], env))('cloud-reachable').level).not.toBe('ok')
})

test('a socket path that is a number is no port', async () => {
  const of = await check(['--no-network', '--socket', '99999'], { TALLYGATE_AGENT_STATE_DIRECTORY: '/nowhere' })
  expect(of('agent')).toMatchObject({ level: 'fail', evidence: expect.stringContaining('unix:99999') as string })
})

test('--socket leads to the files of the agent that listens there', { timeout: 60_000 }, async () => {
  const directory = temporaryDirectory()
  writeFileSync(join(directory, 'agent.toml'), 'socket.path = "elsewhere.sock"\n')
  const flags = ['--config', 'agent.toml', '--state-directory=state', '--socket-path', 'agent.sock']
  const agent = spawn(process.execPath, [COMMAND, 'agent', ...flags], {
    cwd: directory,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  onTestFinished(() => void agent.kill('SIGKILL'))
  for await (const line of createInterface({ input: agent.stdout })) if (line.includes('"listening"')) break
  agent.stdout.resume()

  const socket = join(directory, 'agent.sock')
  const of = await check(['--no-network', '--socket', socket], { TALLYGATE_AGENT_STATE_DIRECTORY: '/nowhere' })
  expect(of('configuration')).toMatchObject({
    level: 'ok',
    evidence: expect.stringContaining(
      `${join(directory, 'agent.toml')} is valid; with the environment and flags of process ${agent.pid}, the state directory is ${join(directory, 'state')}`,
    ) as string,
  })
  for (const name of ['agent', 'database', 'state-directory', 'hash-chain']) {
    expect({ name, level: of(name).level }).toEqual({ name, level: 'ok' })
  }
  const ended = once(agent, 'close')
  agent.kill('SIGTERM')
  await ended
  const stopped = await check(['--no-network', '--socket', socket], {
    TALLYGATE_AGENT_STATE_DIRECTORY: '/nowhere',
    TALLYGATE_AGENT_SOCKET_PATH: '/elsewhere.sock',
  })
  expect(stopped('configuration')).toMatchObject({
    level: 'warn',
    evidence: expect.stringContaining(`the socket is /elsewhere.sock; ${socket} may belong to another agent`) as string,
  })
})
