// A factory whose network permits only CONNECT to port 443 through a proxy: cloud and agent as processes, commands and doctor beside them.
import { type ChildProcess, spawn } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { HttpClient } from '../../../src/client/http.ts'
import { AGENT_STATUS_PATH, type AgentStatus, agentStatus } from '../../../src/protocol/local/status.ts'
import { temporaryDirectory } from '../../agent/harness.ts'
import { tallygate } from '../../cli/outside.ts'
import { TwinProcess } from '../../cloud/twin-process.ts'
import { Authority } from '../../support/certificates.ts'
import { type HttpProxy, openProxy } from '../../support/http-proxy.ts'
import { COMMAND } from '../../support/command.ts'

/** Only the proxy can resolve it. */
const HOST = 'cloud.test'
const CLOUD = `https://${HOST}/dynamicmonetization`
const USER = 'press:line 4'

interface Factory {
  readonly proxy: HttpProxy
  readonly directory: string
  /** Runs a command of administrators. */
  readonly admin: (...args: string[]) => Promise<string>
  readonly env: Readonly<Record<string, string>>
}

async function openFactory(): Promise<Factory> {
  const directory = temporaryDirectory()
  const inside = (name: string): string => join(directory, name)
  const authority = await Authority.make()
  onTestFinished(() => authority[Symbol.asyncDispose]())
  const { certificate, key } = await authority.certify(Date.now() + 86_400_000, HOST)
  writeFileSync(inside('ca.pem'), authority.certificate)
  writeFileSync(inside('cert.pem'), certificate)
  writeFileSync(inside('key.pem'), key)
  const tls = ['--tls-certificate-file', inside('cert.pem'), '--tls-key-file', inside('key.pem')]
  const addresses = [
    '--http-public-url',
    `https://${HOST}`,
    '--push-public-url',
    `wss://${HOST}/dynamicmonetization/push`,
  ]
  const push = ['--push-broker', 'embedded', '--push-port', '0']
  const twin = await TwinProcess.start(['--store-path', inside('cloud'), ...tls, ...addresses, ...push])
  onTestFinished(() => twin[Symbol.asyncDispose]())
  const proxy = await openProxy({ [HOST]: Number(new URL(twin.address).port) }, USER)
  const env = { HTTPS_PROXY: `http://press:line%204@127.0.0.1:${proxy.port}` }
  const target = ['--url', CLOUD, '--admin-key', inside('cloud/administration-key.pem'), '--ca-file', inside('ca.pem')]
  const admin = async (...args: string[]): Promise<string> => {
    const surroundings = { env, now: Date.now, readText: (path: string) => readFileSync(path, 'utf8') }
    const { out, err } = await tallygate([...args, ...target], surroundings)
    return out + err
  }
  return { proxy, directory, admin, env }
}

/** @param env replaces the variables that name a proxy */
function startAgent({ directory }: Factory, flags: readonly string[], env: Record<string, string> = {}): ChildProcess {
  const inside = (name: string): string => join(directory, name)
  const places = ['--state-directory', inside('state'), '--socket-path', inside('agent.sock')]
  const child = spawn(
    process.execPath,
    [
      COMMAND,
      'agent',
      ...places,
      '--tls-ca-file',
      inside('ca.pem'),
      '--enrollment-token-file',
      inside('token'),
      ...flags,
    ],
    { stdio: 'ignore', env: { ...process.env, HTTPS_PROXY: '', NO_PROXY: '', https_proxy: '', no_proxy: '', ...env } },
  )
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

async function stop(agent: ChildProcess): Promise<void> {
  agent.kill('SIGTERM')
  await once(agent, 'exit')
}

async function statusOf({ directory }: Factory): Promise<AgentStatus | null> {
  using client = new HttpClient({ address: `unix:${join(directory, 'agent.sock')}`, unreachable: 'AGENT_UNREACHABLE' })
  return await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus).catch(() => null)
}

const PATIENCE = { timeout: 60_000, interval: 100 }

it('serves devices and administrators through the proxy alone', { timeout: 180_000 }, async () => {
  const factory = await openFactory()
  const { proxy, directory, admin, env } = factory
  expect(await admin('instances', 'set', 'Press hall', '--account', 'acme')).toContain('Press hall')
  writeFileSync(join(directory, 'token'), await admin('devices', 'enrollment-token'))
  expect(proxy.log.every((line) => line === `CONNECT ${HOST}:443 200`)).toBe(true)

  const password = join(directory, 'proxy-user')
  writeFileSync(password, 'press:wrong')
  const settings = ['--proxy-url', `http://127.0.0.1:${proxy.port}`, '--proxy-credentials-file', password]
  const refused = startAgent(factory, settings)
  const problem = async () => (await statusOf(factory))?.conditions.find(({ code }) => code === 'CLOUD_UNREACHABLE')
  await expect
    .poll(async () => (await problem())?.message, PATIENCE)
    .toMatch(/requires a user name and password \(407\)/)
  expect((await problem())?.message).toContain(`through the proxy 127.0.0.1:${proxy.port}`)
  await stop(refused)

  writeFileSync(password, USER)
  const agent = startAgent(factory, settings)
  const reached = async () => {
    const status = await statusOf(factory)
    return status === null ? null : { push: status.push, connected: status.connected, conditions: status.conditions }
  }
  await expect.poll(reached, PATIENCE).toEqual({ push: 'CONNECTED', connected: true, conditions: [] })
  // The timer would find the change after five minutes.
  const revision = async () => (await statusOf(factory))?.policies[0]?.applied ?? 0
  const before = await revision()
  await admin('line-items', 'set', 'ACT-1', '--quantity', '100')
  await expect.poll(revision, PATIENCE).toBeGreaterThan(before)
  await stop(agent)

  startAgent(factory, [], env)
  await expect.poll(reached, PATIENCE).toMatchObject({ push: 'CONNECTED', connected: true })
  const doctor = await tallygate(['doctor', '--json', '--socket', join(directory, 'agent.sock')], {
    now: Date.now,
    readText: (path) => readFileSync(path, 'utf8'),
  })
  const checks = JSON.parse(doctor.out) as { checks: { name: string; level: string; evidence: string }[] }
  for (const name of ['cloud-name', 'cloud-reachable', 'cloud-certificate', 'sign-in', 'broker-reachable']) {
    expect(checks.checks.find((check) => check.name === name)).toMatchObject({ level: 'ok' })
  }
  expect(checks.checks.find(({ name }) => name === 'cloud-reachable')?.evidence).toContain(
    'through the proxy 127.0.0.1',
  )
})

it('tells administrators when the proxy refuses them', { timeout: 60_000 }, async () => {
  const proxy = await openProxy({}, null)
  const key = join(temporaryDirectory(), 'key.pem')
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  writeFileSync(key, privateKey.export({ type: 'pkcs8', format: 'pem' }))
  const { err, code } = await tallygate(['instances', 'list', '--url', CLOUD, '--admin-key', key], {
    env: { HTTPS_PROXY: `127.0.0.1:${proxy.port}` },
    now: Date.now,
    readText: (path) => readFileSync(path, 'utf8'),
  })
  expect(err).toContain('SERVICE_UNREACHABLE')
  expect(err).toContain(`through the proxy 127.0.0.1:${proxy.port}: the proxy refuses the connection (403).`)
  expect(code).toBe(69)
})
