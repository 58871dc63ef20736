// `tallygate support-bundle`: what is in it, and what must never be, with the agent running, stopped and broken.
import { execFileSync } from 'node:child_process'
import { readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import fc from '../support/fast-check.ts'
import { expect, test } from 'vitest'
import { isPartial } from '../../src/cli/support/contents.ts'
import { redactor } from '../../src/cli/support/redact.ts'
import { AGENT_LOG_PATH } from '../../src/protocol/local/log.ts'
import { AGENT_STATUS_PATH } from '../../src/protocol/local/status.ts'
import { readSmallText } from '../../src/platform/read-file.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { Application, Site } from '../scenarios/agent/site.ts'
import { agentStatus } from './agent-status.ts'
import { file, healthy } from './doctor-observations.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const JWT = 'eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJkZXZpY2UifQ.c2lnbmF0dXJlLW9mLWEtdG9rZW4'
const PEM =
  '-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIPlantedPlantedPlantedPlantedPlanted\n-----END PRIVATE KEY-----\n'

const NAMES = [
  ...['README.txt', 'doctor.json', 'environment.json', 'ledger.json', 'log.ndjson'],
  ...['report.json', 'schema.sql', 'settings.json', 'versions.json'],
]

/** Unpacks with the tar of the system. */
function unpack(file: string): Readonly<Record<string, string>> {
  const folder = temporaryDirectory()
  execFileSync('tar', ['-xzf', file, '-C', folder])
  const inside = join(folder, 'tallygate-support')
  return Object.fromEntries(readdirSync(inside).map((name) => [name, readFileSync(join(inside, name), 'utf8')]))
}

async function bundle(env: Readonly<Record<string, string>>, more: readonly string[] = []) {
  const file = join(temporaryDirectory(), 'bundle.tar.gz')
  const args = ['support-bundle', '--no-network', '--output', file, ...more]
  const ran = await tallygate(args, {
    env: { PATH: '/nowhere', ...env },
    readText: readSmallText,
    now: Date.now,
  })
  if (ran.code !== 0) throw new Error(ran.err)
  return { file, files: unpack(file), ...ran }
}

test(
  'with a running agent it has everything that helps, and none of the secrets of the device',
  { timeout: 60_000 },
  async () => {
    const site = await Site.make()
    const agent = await site.start()
    const application = await Application.ready(agent)
    await application.ask(1)
    const env = {
      TALLYGATE_AGENT_STATE_DIRECTORY: site.stateDirectory,
      TALLYGATE_AGENT_SOCKET_PATH: site.socketPath,
      TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE: join(site.directory, 'token'),
    }
    const running = await bundle(env)
    expect(Object.keys(running.files).sort()).toEqual(NAMES)
    expect(statSync(running.file).mode & 0o077).toBe(0)
    expect(statSync(running.file).size).toBeLessThan(200_000)
    expect(JSON.parse(running.files['report.json']!)).toMatchObject({ status: { lastEntry: 1 } })
    expect(JSON.parse(running.files['ledger.json']!)).toMatchObject({ quickCheck: 'ok', state: { last_entry: 1 } })
    expect(JSON.parse(running.files['settings.json']!)).toMatchObject({ 'enrollment.token_file': '[secret]' })
    expect(running.files['schema.sql']).toContain('CREATE TABLE block')
    expect(running.files['environment.json']).toContain('TALLYGATE_AGENT_ENROLLMENT_TOKEN_FILE')

    await agent.stop()
    const stopped = await bundle(env)
    expect(JSON.parse(stopped.files['report.json']!)).toMatchObject({ problem: { code: 'AGENT_UNREACHABLE' } })
    expect(JSON.parse(stopped.files['ledger.json']!)).toMatchObject({ quickCheck: 'ok' })

    const token = readFileSync(join(site.directory, 'token'), 'utf8')
    const key = readFileSync(join(site.stateDirectory, 'device.key'), 'utf8').split('\n')[1]!
    const entry = 'correlationId'
    for (const { file } of [running, stopped]) {
      const text = gunzipSync(readFileSync(file)).toString('latin1')
      for (const secret of [token, token.slice(-40), key, 'PRIVATE KEY']) expect(text).not.toContain(secret)
      expect(text).not.toContain(entry)
    }
  },
)

test('secrets that were planted wherever text comes from are not in it', { timeout: 60_000 }, async () => {
  const folder = temporaryDirectory()
  const state = join(folder, 'state')
  mkdirSync(state)
  writeFileSync(join(state, 'device.key'), PEM)
  writeFileSync(join(folder, 'token'), 'Planted-Enrollment-4711')
  const config = join(folder, 'agent.toml')
  writeFileSync(
    config,
    `# password = "Planted-Comment-1", see https://root:Planted-Url-2@example.org/\n` +
      `[state]\ndirectory = "${state}"\n[enrollment]\ntoken_file = "${join(folder, 'token')}"\n`,
  )
  const lines = [
    { msg: `token ${JWT} refused`, url: 'mqtts://device:Planted-Broker-3@broker.example:8883' },
    { msg: 'Authorization: Bearer Planted-Bearer-4' },
    { msg: PEM, err: { stack: 'postgres://u:Planted-Stack-6@db/x?password=Planted-Query-7&x=1' } },
    { msg: 'refused Planted-Enrollment-4711' },
  ].map((line) => JSON.stringify({ level: 30, time: 1, ...line }))
  const condition = {
    subject: 'sync',
    code: 'CLOUD_UNREACHABLE',
    message: `https://x:Planted-Report-9@cloud ${JWT}`,
    since: 1,
  }
  await using agent = await fakeService('socket', {
    [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus({ conditions: [condition] }) },
    [`GET ${AGENT_LOG_PATH}`]: { body: `${lines.join('\n')}\n` },
  })
  const { file, files } = await bundle({ TALLYGATE_AGENT_CONFIG: config }, ['--socket', agent.address])
  expect(Object.keys(files).sort()).toEqual(NAMES)
  expect(files['log.ndjson']).toContain('broker.example:8883')
  const text = gunzipSync(readFileSync(file)).toString('latin1')
  expect(text).not.toMatch(/Planted/)
  expect(text).not.toContain(JWT.slice(0, 30))
  expect(text).not.toContain('c2lnbmF0dXJl')
})

test.each([
  [false, {}],
  [true, { database: file('/x/journal.db', { readable: false }) }],
  [true, { database: file('/x/journal.db', { kind: 'hidden', readable: false }) }],
  [true, { agent: { code: 'SOCKET_NOT_PERMITTED', message: 'this user may not connect' } }],
  [false, { agent: { code: 'AGENT_UNREACHABLE', message: 'it does not run' }, database: file('/x', { kind: 'none' }) }],
] as const)('a user who may not read everything gets a partial bundle: %s for %j', (expected, changes) => {
  expect(isPartial(healthy(changes))).toBe(expected)
})

test('it stays small, however much there is to tell', { timeout: 60_000 }, async () => {
  const line = JSON.stringify({ level: 30, time: 1, msg: 'x'.repeat(2_000) })
  await using agent = await fakeService('socket', {
    [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus() },
    [`GET ${AGENT_LOG_PATH}`]: { body: `${Array.from({ length: 4_000 }, () => line).join('\n')}\n` },
  })
  const { files } = await bundle({ TALLYGATE_AGENT_STATE_DIRECTORY: temporaryDirectory() }, ['--socket', agent.address])
  expect(files['log.ndjson']!.length).toBeLessThanOrEqual(2_100_000)
})

test('the command that it prints shows the bundle, also from a path with a space', { timeout: 60_000 }, async () => {
  const args = ['support-bundle', '--no-network', '--output', join(temporaryDirectory(), 'my bundle.tar.gz')]
  const { out } = await tallygate(args, {
    env: { TALLYGATE_AGENT_STATE_DIRECTORY: temporaryDirectory() },
    now: Date.now,
  })
  const [, shows = ''] = /send it: (.*) \| less\n$/.exec(out) ?? []
  expect(execFileSync('sh', ['-c', shows], { encoding: 'utf8' })).toContain('A support bundle of a Tallygate device')
})

test('a place that cannot be written is reported before anything is gathered', async () => {
  await using agent = await fakeService('socket', {})
  const args = ['support-bundle', '--no-network', '--socket', agent.address, '--output', '/nowhere/x.tar.gz']
  expect(await tallygate(args, { env: { TALLYGATE_AGENT_STATE_DIRECTORY: '/nowhere' } })).toMatchObject({ code: 73 })
  expect(agent.asked).toEqual([])
})

test.each([
  "url = 'http://user:Planted's@proxy'",
  'url = "http://user:Plan@Planted@proxy"',
  String.raw`url = "http://user:Plan\\Planted@proxy"`,
  'url = "http://user:Plan/Planted@proxy"',
  'url = "http://user:Plan Planted@proxy"',
  String.raw`url = "http://user:Plan\"Planted@proxy"`,
  'https://host/x?a=1&sig=Planted',
  'https://host/x?X-Amz-Signature=Planted&b=2',
  'https://host/x?sslpassword=1&access_token=Planted',
  'Authorization: Basic UGxhbnRlZA==Planted',
])('the redactor leaves no part of %s', (text) => {
  expect(redactor([])(`before ${text}\nafter`)).not.toMatch(/Plan/)
  expect(redactor([])(`before ${text}\nafter`)).toMatch(/^before .*\nafter$/)
})

test('the redactor leaves no part of a long password', () => {
  expect(redactor([])(`"http://u:${'x'.repeat(5_000)}@proxy:3128"`)).toBe('"http://[secret]@proxy:3128"')
})

test('log lines of other programs are left out, whatever is in them', async () => {
  const others = [
    'Environment="DB_PASSWORD=Planted"',
    '/etc/systemd/system/tallygate-agent.service.d/x.conf:3: Invalid environment assignment, ignoring: PASSWORD=Planted',
    'tallygate-agent.service: Ignoring invalid environment assignment: X Planted',
    'Starting mysql with --password=Planted',
    'Started Tallygate agent with the password Planted',
    '+ mysql -pPlanted',
    '+ sshpass -p Planted ssh device',
    'AccountKey=Planted==',
    'name,password',
    'device,Planted',
    'stringData:',
    '  password: Planted',
    'ENV PASSWORD Planted',
    'Error: the password Planted is wrong',
  ]
  const kept = [
    JSON.stringify({ level: 30, time: 1, msg: 'listening' }),
    'Starting tallygate-agent.service - Tallygate agent...',
    'Started tallygate-agent.service - Tallygate agent.',
    'Failed to start Tallygate agent.',
    "tallygate-agent.service: Failed with result 'watchdog'.",
    'tallygate-agent.service: Main process exited, code=killed, status=9/KILL',
    'tallygate-agent.service: Failed at step EXEC spawning /usr/bin/tallygate: No such file or directory',
    'tallygate: CONFIG_UNREADABLE: enrollment.token_file: /etc/tallygate/enrollment-token: this user may not read it.',
    'Dependency failed for tallygate-agent.service - Tallygate agent.',
    "tallygate-agent.service: Job tallygate-agent.service/start failed with result 'dependency'.",
    'tallygate-agent.service: Failed to load environment files: No such file or directory',
    'tallygate-agent.service: Failed to set up mount namespacing: /run/x: No such file or directory',
    'node: error while loading shared libraries: libatomic.so.1: cannot open shared object file: No such file or directory',
    "/usr/bin/node: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /usr/bin/node)",
    "  code: 'SQLITE_IOERR_WRITE'",
    '  errno: -13,',
    'FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory',
    'Error [ERR_X]: a reason',
    '    at main (file:///usr/lib/tallygate/dist/cli/main.js:1:1)',
    'Node.js v26.10.0',
  ]
  const folder = temporaryDirectory()
  writeFileSync(join(folder, 'lines'), `${[...others, ...kept].join('\n')}\n`)
  writeFileSync(join(folder, 'journalctl'), `#!/bin/sh\nexec /bin/cat ${join(folder, 'lines')}\n`, { mode: 0o755 })
  const { files } = await bundle({ PATH: folder, TALLYGATE_AGENT_STATE_DIRECTORY: temporaryDirectory() })
  const omitted = others.map(() => '[a line of another program]')
  expect(files['log.ndjson']).toBe(`${[...omitted, ...kept].join('\n')}\n`)
})

test.each(['\\\\', 'eyJaaaa-', 'eyJ', 'a://', '-----BEGIN ', '?sig=', '?token-', 'bearer ', 'basic x'])(
  'the redactor reads a long log of %j in a short time',
  (text) => {
    const start = performance.now()
    redactor([])(text.repeat(200_000))
    expect(performance.now() - start).toBeLessThan(5_000)
  },
)

test('the log is that of the agent whose socket is named, if it responds', async () => {
  const line = (msg: string): string => JSON.stringify({ level: 30, time: 1, msg })
  const folder = temporaryDirectory()
  writeFileSync(join(folder, 'journalctl'), `#!/bin/sh\necho '${line('service')}'\n`, { mode: 0o755 })
  const env = { PATH: folder, TALLYGATE_AGENT_STATE_DIRECTORY: temporaryDirectory() }
  await using agent = await fakeService('socket', {
    [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus() },
    [`GET ${AGENT_LOG_PATH}`]: { body: `${line('named')}\n` },
  })
  const logOf = async (...socket: readonly string[]) => (await bundle(env, socket)).files['log.ndjson']
  expect(await logOf('--socket', agent.address)).toBe(`${line('named')}\n`)
  expect(await logOf('--socket', join(folder, 'none.sock'))).toBe(`${line('service')}\n`)
  expect(await logOf()).toBe(`${line('service')}\n`)
})

test('a key whose beginning is cut off is not in it', { timeout: 60_000 }, async () => {
  const key = PEM.replace('MC4', `${'x'.repeat(1_000)}MC4`)
  const rest = 'rest '.repeat(400_000 - key.length / 10)
  await using agent = await fakeService('socket', {
    [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus() },
    [`GET ${AGENT_LOG_PATH}`]: { body: `${JSON.stringify({ level: 30, time: 1, msg: `${key}${rest}` })}\n` },
  })
  const { files } = await bundle({ TALLYGATE_AGENT_STATE_DIRECTORY: temporaryDirectory() }, ['--socket', agent.address])
  expect(files['log.ndjson']).toContain('rest')
  expect(files['log.ndjson']).not.toMatch(/Planted/)
})

test('no known secret is left by the redactor, whatever stands around it', () => {
  const secret = fc.stringMatching(/^[\w!#$%^*()+-]{8,40}$/)
  fc.assert(
    fc.property(secret, fc.string(), fc.string(), (planted, before, after) => {
      expect(redactor([`${planted}\n`])(`${before}${planted}${after}`)).not.toContain(planted)
    }),
  )
})

test.each([
  '{"tokens":5,"token_file":"/etc/token","code":"TOKEN_EXPIRED","msg":"the token was refused","pid":1}',
  '{"token":null,"tokenBytes":7,"tokens used":"5.5"}',
  '[enrollment]\ntoken_file = "/etc/tallygate/token"',
  'CONFIG_UNREADABLE: enrollment.token_file: /etc/tallygate/enrollment-token: this user may not read it.',
])('the redactor keeps %s', (text) => {
  expect(redactor([])(text)).toBe(text)
})
