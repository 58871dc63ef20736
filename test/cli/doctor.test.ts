// `tallygate doctor`: each check with observations in which it fails, then the whole over a real agent, running and not.
import { execFileSync } from 'node:child_process'
import { chmodSync, existsSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { createServer as createTlsServer } from 'node:tls'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, test } from 'vitest'
import { inspectDatabase } from '../../src/agent/platform/sqlite/inspect-database.ts'
import { summaryOf } from '../../src/cli/commands/doctor.ts'
import { CHECKS, type Level, examine } from '../../src/cli/doctor/checks.ts'
import { lookAtEndpoint } from '../../src/cli/doctor/endpoint.ts'
import { gather } from '../../src/cli/doctor/gather.ts'
import type { Observations } from '../../src/cli/doctor/observations.ts'
import type { Io } from '../../src/cli/io.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { Application, Site } from '../scenarios/agent/site.ts'
import { AGENT_STATUS_PATH } from '../../src/protocol/local/status.ts'
import { readSmallText } from '../../src/platform/read-file.ts'
import { agentStatus } from './agent-status.ts'
import { NOW, STATE, endpoint, file, healthy, settings } from './doctor-observations.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const DAY = 86_400_000
const DIRECT = { proxy: {}, extraCa: null }
const problem = { code: 'CLOUD_UNREACHABLE', message: 'no route' }
const noAgent = { agent: { code: 'AGENT_UNREACHABLE', message: 'connection refused.' }, agents: [] }

const base = healthy()
const status = base.agent as Exclude<Observations['agent'], { code: string; message: string }>
const disk = base.fileSystem as Exclude<Observations['fileSystem'], { code: string }>
/** A user who may neither connect nor read the ledger. */
const refused: Partial<Observations> = {
  agent: { code: 'SOCKET_NOT_PERMITTED', message: 'this user may not connect.' },
  database: file('journal.db', { readable: false }),
  inspected: { ...base.inspected, problem, identity: null, state: null },
  signIn: null,
}

const withoutToken = {
  ...status,
  deviceId: null,
  conditions: [{ subject: 'enrollment', code: 'NOT_ENROLLED', message: 'There is no enrollment token.', since: 1 }],
}

/** Per check: what is spoilt, and what it comes to. */
const madeFor = (engine: number, oldestEngine: number) => ({ ...base.inspected.policies[0]!, engine, oldestEngine })

const SPOILT: readonly (readonly [check: string, changes: Partial<Observations>, level: Level])[] = [
  ['configuration', { configuration: { ...base.configuration, problem } }, 'fail'],
  [
    'selected-agent',
    {
      configuration: {
        ...base.configuration,
        choice: {
          ...{ why: 'SEVERAL', isNamed: false, process: null },
          others: [
            { pid: 7, user: 'ada', socket: { path: '/run/one.sock' } },
            { pid: 8, user: 'ada', socket: { path: '/run/two.sock' } },
          ],
        },
      },
    },
    'ok',
  ],
  [
    'selected-agent',
    {
      ...noAgent,
      configuration: {
        ...base.configuration,
        choice: {
          ...{ why: 'NONE', isNamed: false, process: null },
          others: [{ pid: 7, user: 'ada', socket: 'NOT_TRUSTED' }],
        },
      },
    },
    'ok',
  ],
  ['configuration', { configuration: { ...base.configuration, otherSocket: '/run/tallygate/agent.sock' } }, 'warn'],
  [
    'configuration',
    {
      configuration: {
        ...base.configuration,
        choice: {
          ...{ why: 'ENVIRONMENT', isNamed: false, process: null },
          others: [{ pid: 7, user: 'ada', socket: { path: base.socket.path } }],
        },
      },
    },
    'warn',
  ],
  [
    'configuration-files',
    { configuration: { ...base.configuration, file: 'a.toml', files: [file('a.toml', { mode: 0o646 })] } },
    'fail',
  ],
  [
    'configuration-files',
    {
      configuration: { ...base.configuration, file: 'a.toml', files: [file('a.toml'), file('token', { mode: 0o644 })] },
    },
    'fail',
  ],
  [
    'configuration-files',
    { configuration: { ...base.configuration, file: null, files: [file('token', { mode: 0o644 })] } },
    'fail',
  ],
  ['node', { node: { version: '22.1.0', oldestMajor: 24 } }, 'fail'],
  ['sqlite', { sqlite: '3.51.2' }, 'fail'],
  ['agent', noAgent, 'fail'],
  ['agent', refused, 'warn'],
  ['agent', { agent: { code: 'AGENT_STARTING', message: 'The agent starts' } }, 'warn'],
  ['agent', { agent: { code: 'CALLER_NOT_ALLOWED', message: 'not you' } }, 'warn'],
  ['agent-version', { version: '0.2.0' }, 'warn'],
  ['socket', { ...noAgent, isListened: false }, 'warn'],
  ['socket', { socket: file('/run/agent.sock') }, 'fail'],
  ['socket', { socket: file('/run/agent.sock', { kind: 'none' }) }, 'fail'],
  ['socket', { socket: file('/run/agent.sock', { kind: 'hidden' }) }, 'warn'],
  ['socket-permissions', { socket: file('/run/agent.sock', { kind: 'socket', mode: 0o777 }) }, 'warn'],
  ['state-directory', { directory: file(STATE, { kind: 'directory', mode: 0o770 }) }, 'fail'],
  ['state-directory', { directory: file(STATE, { kind: 'directory', mode: 0o755 }) }, 'warn'],
  ['state-directory', { directory: file(STATE, { kind: 'none' }) }, 'fail'],
  ['owners', { database: file(`${STATE}/journal.db`, { uid: 0 }) }, 'fail'],
  ['file-system', { fileSystem: { ...disk, readOnly: true } }, 'fail'],
  ['file-system', { fileSystem: { ...disk, immutable: '/state/journal.db' } }, 'fail'],
  ['file-system', { fileSystem: { ...disk, type: 'tmpfs' } }, 'fail'],
  ['file-system', { fileSystem: { ...disk, type: 'overlayfs' } }, 'fail'],
  ['file-system', { fileSystem: { ...disk, type: 'nfs' } }, 'fail'],
  ['disk-space', { fileSystem: { ...disk, free: 1_000_000 } }, 'fail'],
  ['disk-space', { fileSystem: { ...disk, free: 12_000_000 } }, 'warn'],
  ['disk-space', { fileSystem: { ...disk, free: 12_000_000 }, diskReserve: file('diskReserve', { size: 0 }) }, 'fail'],
  ['disk-space', { fileSystem: { ...disk, free: 50_000_000 } }, 'warn'],
  ['inodes', { fileSystem: { ...disk, inodesFree: 3 } }, 'fail'],
  ['reserve-file', { diskReserve: file('diskReserve', { kind: 'none' }) }, 'warn'],
  ['reserve-file', { diskReserve: file('diskReserve', { kind: 'hidden' }) }, 'warn'],
  ['reserve-directory', { reserveFileSystem: disk }, 'warn'],
  ['database', { inspected: { ...base.inspected, quickCheck: 'row 3 missing from index' } }, 'fail'],
  [
    'database',
    { inspected: { ...base.inspected, problem: { code: 'DATABASE_CORRUPT', message: 'not a database' } } },
    'fail',
  ],
  ['database', { inspected: { ...base.inspected, problem: { code: 'LEDGER_UNREADABLE', message: 'EACCES' } } }, 'warn'],
  ['database-permissions', { database: file('journal.db', { mode: 0o644 }) }, 'fail'],
  [
    'hash-chain',
    {
      verification: {
        findings: [{ kind: 'ENTRY_CHAIN', where: 'entry 3', problem: 'does not fit' }],
        checked: { entries: 12, chained: 3, segments: 0, receipts: 0, accounts: 0 },
        engines: [],
      },
    },
    'fail',
  ],
  ['hash-chain', { verification: problem }, 'warn'],
  ['backup', { settings: settings({ 'backup-max-age': '12h' }) }, 'warn'],
  ['backup', { backup: null, settings: settings({ 'backup-max-age': '7d' }) }, 'warn'],
  ['schema', { inspected: { ...base.inspected, schema: 9 } }, 'fail'],
  ['write-ahead-log', { log: file('wal', { size: 900_000_000 }) }, 'warn'],
  [
    'damaged-ledgers',
    {
      inspected: {
        ...base.inspected,
        salvages: [{ at: 1, file: 'x', why: 'y', salvagedEntries: 3, lostEntries: null }],
      },
    },
    'warn',
  ],
  ['enrollment', { agent: withoutToken, settings: settings() }, 'fail'],
  ['enrollment', { agent: withoutToken, settings: settings({ 'enrollment-token-file': 't' }) }, 'fail'],
  ['enrollment', { ...noAgent, inspected: { ...base.inspected, identity: null }, settings: settings() }, 'fail'],
  [
    'enrollment',
    {
      agent: { ...status, deviceId: null },
      settings: settings({ 'enrollment-token-file': 't' }),
      directory: { ...base.directory, uid: 998 },
      enrollmentToken: { ...base.enrollmentToken, kind: 'file', mode: 0o600, uid: 0 },
    },
    'fail',
  ],
  [
    'enrollment',
    { agent: { ...status, deviceId: null }, settings: settings({ 'enrollment-token-file': 't' }) },
    'warn',
  ],
  ['key', { key: { ...base.key, kind: 'none' } }, 'fail'],
  ['key', { key: { ...base.key, mode: 0o640 } }, 'fail'],
  ['key', { key: { ...base.key, problem } }, 'fail'],
  ['key-fits', { key: { ...base.key, keyId: 'another' } }, 'fail'],
  ['key-fits', { key: { ...base.key, keyId: 'before', nextKeyId: 'thumbprint' } }, 'warn'],
  ['attachment', { agent: { ...status, fenced: true } }, 'fail'],
  ['attachment', { agent: { ...status, epoch: 0 } }, 'warn'],
  ['rules', { now: NOW + 31 * DAY, ...noAgent }, 'fail'],
  ['rules', { now: NOW + 29 * DAY, ...noAgent }, 'warn'],
  ['rules', { inspected: { ...base.inspected, policies: [] } }, 'fail'],
  ['rules', { inspected: { ...base.inspected, policies: [madeFor(9, 9)] } }, 'fail'],
  ['newest-rules', { agent: { ...status, policies: [{ ...status.policies[0]!, newest: 99 }] } }, 'warn'],
  ['grants', { agent: { ...status, grant: { ...status.grant!, remainingMs: 0 } } }, 'fail'],
  ['grants', { agent: { ...status, grant: null } }, 'warn'],
  ['grants', { agent: { ...status, accounts: [] } }, 'warn'],
  ['backlog', { agent: { ...status, backlog: 20_000 } }, 'warn'],
  ['conditions', { agent: { ...status, conditions: [{ subject: 'sync', ...problem, since: 1 }] } }, 'warn'],
  ['conditions', { agent: { ...status, conditions: [{ subject: 'ledger', ...problem, since: 1 }] } }, 'fail'],
  ['clock', { now: NOW + 2 * 60_000 }, 'warn'],
  ['clock', { ...noAgent, now: NOW + 2 * 60_000 }, 'warn'],
  ['clock', { ...noAgent, signIn: null }, 'warn'],
  ['time-zone', { timeZone: { name: 'Mars/Olympus', rules: false } }, 'warn'],
  [
    'cloud-name',
    { cloud: endpoint('https://cloud.example', { addresses: problem, connected: problem, certificate: null }) },
    'warn',
  ],
  ['cloud-reachable', { cloud: endpoint('https://cloud.example', { connected: problem, certificate: null }) }, 'warn'],
  [
    'cloud-certificate',
    {
      cloud: endpoint('https://cloud.example', {
        certificate: { ...base.cloud!.certificate!, distrust: 'self-signed' },
      }),
    },
    'warn',
  ],
  ['cloud-certificate', { cloud: endpoint('http://cloud.example', { secure: false, certificate: null }) }, 'warn'],
  [
    'cloud-certificate',
    { cloud: endpoint('http://x', { host: 'localhost.example', secure: false, certificate: null }) },
    'warn',
  ],
  [
    'cloud-certificate-expiry',
    { cloud: endpoint('https://cloud.example', { certificate: { ...base.cloud!.certificate!, validTo: NOW - 1 } }) },
    'warn',
  ],
  [
    'cloud-certificate-expiry',
    { cloud: endpoint('https://cloud.example', { certificate: { ...base.cloud!.certificate!, validTo: NOW + DAY } }) },
    'warn',
  ],
  ['sign-in', { signIn: { status: 401, code: 'TOKEN_INVALID', words: null, date: NOW, twinVersion: null } }, 'fail'],
  ['sign-in', { signIn: { status: 503, code: null, words: null, date: NOW, twinVersion: null } }, 'warn'],
  ['sign-in', { signIn: problem }, 'warn'],
  [
    'broker-name',
    { broker: endpoint('mqtts://b', { addresses: problem, connected: problem, certificate: null }) },
    'warn',
  ],
  ['broker-reachable', { broker: endpoint('mqtts://b', { connected: problem, certificate: null }) }, 'warn'],
  ['broker-certificate', { broker: endpoint('mqtt://b', { secure: false, certificate: null }) }, 'warn'],
  ['memory', { memory: { ...base.memory, limit: 64 * 1024 ** 2, used: 1 } }, 'warn'],
  ['memory', { memory: { ...base.memory, limit: 1e9, used: 0.95e9 } }, 'warn'],
  ['memory', { memory: { ...base.memory, available: 20_000_000 } }, 'warn'],
  ['open-files', { openFilesMax: 1_024 }, 'warn'],
]

describe('the checks', () => {
  it('do not look for a copy of a device whose service was ended', () => {
    const ended = { ...status, fenced: true, suspension: { state: 'TERMINATED', since: 1 } as const }
    const found = examine({ ...base, agent: ended }).checks.find(({ name }) => name === 'attachment')
    expect(found).toMatchObject({ level: 'ok', remedy: '' })
  })

  it('give only files of the state directory to its owner, not what a link there leads to', () => {
    const { checks } = examine({ ...base, database: { ...base.database, uid: 0 } })
    expect(checks.find(({ name }) => name === 'owners')?.remedy).toMatch(/^Run chown -h \d+ on these files/)
  })

  it('name the space that a disk lacks', () => {
    const diskReserve = file('diskReserve', { kind: 'none' })
    const { checks } = examine({ ...base, diskReserve, fileSystem: { ...disk, free: 12_000_000 } })
    expect(checks.find(({ name }) => name === 'disk-space')?.remedy).toContain(
      'less than 16.0 MiB (state.disk_reserve)',
    )
  })

  it('count no backlog in a ledger that cannot be read', () => {
    const { checks } = examine({ ...base, ...noAgent, inspected: { ...base.inspected, state: null } })
    expect(checks.find(({ name }) => name === 'backlog')).toMatchObject({ level: 'skip' })
  })

  it('have nothing to say about a healthy device', () => {
    const { result, checks } = examine(healthy())
    expect(checks.filter(({ level }) => level !== 'ok' && level !== 'skip')).toEqual([])
    expect(result).toBe('ok')
  })

  it.each(SPOILT)('%s finds what is wrong', (name, changes, level) => {
    const found = examine(healthy(changes)).checks.find((each) => each.name === name)!
    expect(found.level).toBe(level)
    expect(found.evidence).not.toBe('')
    // The text names the next step.
    expect(found.remedy).toMatch(/\w.*\.$/)
  })

  it('are more than twenty, each with a test in which it fails', () => {
    expect(Object.keys(CHECKS).length).toBeGreaterThanOrEqual(20)
    expect(Object.keys(CHECKS).filter((name) => !SPOILT.some(([each]) => each === name))).toEqual([])
  })

  it('do not call an agent working that this user cannot reach', () => {
    const { result } = examine(healthy({ agent: refused.agent! }))
    expect(result).toBe('warn')
    expect(summaryOf({ result }, null)).toMatch(/^The agent does not respond to this user/)
    expect(summaryOf({ result }, 'STARTING')).toMatch(/^The agent starts, so some checks were left out/)
    expect(summaryOf({ result }, { level: 'ok', sentence: '', steps: [] })).toBe('The agent works, with warnings.')
  })

  it('name no process that listens on another socket as the agent that does not respond', () => {
    const other = { pid: 900, user: 'root', socket: { path: '/tmp/other.sock' } }
    const agents = [...base.agents, { pid: 900, user: 'root', command: 'tallygate agent' }]
    const choice = { ...base.configuration.choice, others: [other] }
    const configuration = { ...base.configuration, choice }
    const evidence = (given: Partial<Observations>) =>
      examine(healthy({ ...noAgent, configuration, ...given })).checks.find(({ name }) => name === 'agent')?.evidence
    expect(evidence({ agents })).toMatch(/ Process 812 runs but does not respond\.$/)
    expect(evidence({ agents: agents.slice(1) })).toMatch(/ No agent runs\.$/)
    const only = { ...choice, process: { pid: 812, user: 'root' }, others: [] }
    expect(evidence({ agents, configuration: { ...configuration, choice: only, otherSocket: '/run/a.sock' } })).toMatch(
      /connection refused\. Process 812 listens on \/run\/a\.sock\.$/,
    )
  })

  it('name remedies that work for an agent that runs but is silent, and for a key that cannot be used', () => {
    const remedies = (given: Partial<Observations>) =>
      Object.fromEntries(examine(healthy(given)).checks.map(({ name, remedy }) => [name, remedy]))
    // Starting a unit that runs does nothing.
    // It may be about to check its ledger, which a restart begins again.
    const silent = /^If it has just started, run doctor again .* restart tallygate-agent\.socket/
    expect(remedies({ ...noAgent, agents: base.agents })['agent']).toMatch(silent)
    const signIn = { code: 'DEVICE_KEY_UNUSABLE', message: 'there is no such file' }
    expect(remedies({ signIn })['sign-in']).toBe('See the check "key".')
    expect(remedies({ signIn: problem })['sign-in']).toContain('cloud')
  })

  it('advise to look at the disk, not to enroll again, if it cannot be read', () => {
    const failed = { code: 'DISK_FAILED', message: 'EIO' }
    const { checks } = examine(
      healthy({ ...noAgent, key: { ...base.key, problem: failed }, inspected: { ...base.inspected, problem: failed } }),
    )
    for (const name of ['database', 'key']) {
      expect(checks.find((each) => each.name === name)?.remedy).toMatch(/^Keep the files .* the kernel log/)
    }
  })

  it('name the check that says why the hash chain was not read', () => {
    const remedy = (code: string) =>
      examine(healthy({ verification: { code, message: 'no' } })).checks.find(({ name }) => name === 'hash-chain')
        ?.remedy
    expect(remedy('DATABASE_NEWER')).toBe('See the check "schema".')
    expect(remedy('DATABASE_CORRUPT')).toBe('See the check "database".')
  })

  it('advise another user only for a ledger that this user may not read', () => {
    const inspected = { ...base.inspected, problem: { code: 'LEDGER_UNREADABLE', message: 'no space for the copy' } }
    const remedy = (readable: boolean) =>
      examine(healthy({ inspected, database: file('journal.db', { readable }) })).checks.find(
        ({ name }) => name === 'database',
      )?.remedy
    expect([remedy(true), remedy(false)]).toEqual([
      'Correct this, then run doctor again.',
      'Run doctor as root or as the user of the agent.',
    ])
  })

  it('name a ledger that lost its content as empty', async () => {
    const path = join(temporaryDirectory(), 'journal.db')
    writeFileSync(path, '')
    expect((await inspectDatabase(path)).problem).toEqual({ code: 'DATABASE_CORRUPT', message: 'the file is empty' })
  })

  it('ask the running agent whether it has an enrollment token, and otherwise name the settings without one', () => {
    const inspected = { ...base.inspected, identity: null }
    const found = (changes: Partial<Observations>) => {
      const { checks } = examine(healthy({ inspected, settings: settings(), ...changes }))
      const { level, evidence, remedy } = checks.find(({ name }) => name === 'enrollment')!
      return `${level}: ${evidence} -> ${remedy}`
    }
    const withToken = settings({ 'enrollment-token-file': 't' })
    expect(found({ agent: { ...status, deviceId: null } })).toMatch(/^warn: .* token is set -> Connect/)
    expect(found({ agent: withoutToken })).toMatch(/^fail: not enrolled: There is no enrollment token\. -> Ask an/)
    expect(found({ agent: withoutToken, settings: withToken })).toMatch(/^fail: .* -> Restart the agent/)
    const refused = { subject: 'enrollment', code: 'ENROLLMENT_REFUSED', message: 'It has expired.', since: 1 } as const
    expect(found({ agent: { ...withoutToken, conditions: [refused] }, settings: withToken })).toMatch(
      /^fail: not enrolled: It has expired\. -> Ask an administrator for a new token .* then restart the agent\.$/,
    )
    expect(found({ ...noAgent, settings: withToken })).toMatch(/^warn: .* token is set -> Connect/)
    expect(found(noAgent)).toMatch(
      /^fail: not enrolled, and the settings of this machine name no enrollment token \(\/etc\/tallygate\/enrollment-token does not exist\) -> /,
    )
    const chosen = (choice: Partial<Observations['configuration']['choice']>) =>
      found({
        ...noAgent,
        configuration: { ...base.configuration, choice: { ...base.configuration.choice, ...choice } },
      })
    expect(chosen({ why: 'ENVIRONMENT' })).toContain('the settings in the environment of this command name no')
    expect(chosen({ why: 'ONLY', process: { pid: 7, user: 'ada' } })).toContain(
      'the settings of process 7 of ada name no',
    )
  })

  it('advise nothing but the enrollment to a device that is not enrolled', () => {
    const clock = { ...status.clock, latest: null }
    const agent = { ...withoutToken, clock, epoch: 0, grant: null, policies: [], accounts: [], instanceIds: [] }
    const inspected = { ...base.inspected, identity: null, policies: [], state: null }
    for (const observed of [{ agent }, noAgent]) {
      const { checks } = examine(healthy({ inspected, signIn: null, ...observed }))
      expect(checks.filter(({ remedy }) => remedy.includes('Connect the device'))).toEqual([])
      expect(checks.find(({ name }) => name === 'enrollment')?.remedy).toMatch(/^Ask an administrator for one/)
      for (const name of ['attachment', 'clock']) {
        expect(checks.find((check) => check.name === name)).toMatchObject({
          level: 'skip',
          evidence: 'the device is not enrolled',
        })
      }
    }
  })

  it('do not guess from a damaged ledger whether the device is enrolled', () => {
    const inspected = { ...base.inspected, problem, identity: null, state: null }
    const levels = Object.fromEntries(
      examine(healthy({ ...noAgent, inspected, signIn: null })).checks.map(({ name, level }) => [name, level]),
    )
    expect(levels).toMatchObject({ database: 'fail', enrollment: 'skip', attachment: 'skip', clock: 'skip' })
  })

  it('do not guess for a user who can neither ask the agent nor read its ledger', () => {
    const { checks } = examine(healthy(refused))
    for (const name of ['enrollment', 'attachment', 'clock', 'damaged-ledgers']) {
      expect(checks.find((check) => check.name === name)).toMatchObject({ level: 'skip' })
    }
  })

  it('say why they did not look at the cloud or the broker', () => {
    const { inspected } = base
    const skipped = (changes: Partial<Observations>) =>
      examine(healthy({ cloud: null, broker: null, signIn: null, ...changes }))
        .checks.filter(({ name }) => ['cloud-name', 'broker-certificate'].includes(name))
        .map(({ level, evidence }) => [level, evidence])
    const both = (evidence: string) => [
      ['skip', evidence],
      ['skip', evidence],
    ]
    const noNetwork = 'doctor makes no network requests (--no-network)'
    expect(skipped({})).toEqual(both(noNetwork))
    const noBroker = { ...inspected, identity: { ...inspected.identity!, pushUrl: null } }
    expect(skipped({ inspected: noBroker })[1]).toEqual(['skip', 'the cloud has no broker'])
    expect(skipped({ settings: settings({ 'push-enabled': 'false' }) })[1]).toEqual(['skip', 'push.enabled is false'])
    const unread = { ...inspected, problem, identity: null }
    expect(skipped({ inspected: unread })).toEqual(both('the ledger cannot be read'))
    const notEnrolled = 'the device is not enrolled, so it has no cloud address yet'
    expect(skipped({ inspected: { ...inspected, identity: null } })).toEqual(both(notEnrolled))
  })

  it('say so when the device is not enrolled, and never throw', () => {
    const inspected = { ...base.inspected, identity: null, state: null, policies: [], schema: null, quickCheck: null }
    const observations = healthy({
      ...noAgent,
      inspected,
      cloud: null,
      broker: null,
      signIn: null,
      key: { ...base.key, keyId: null },
    })
    for (const { evidence } of examine(observations).checks) expect(evidence).not.toContain('the check failed')
  })
})

interface Doctor {
  readonly result: string
  readonly checks: readonly { readonly name: string; readonly level: Level; readonly evidence: string }[]
  readonly repairs?: readonly { readonly what: string; readonly done: boolean; readonly problem: string }[]
}

function environment(site: Site): Readonly<Record<string, string>> {
  return { TALLYGATE_AGENT_STATE_DIRECTORY: site.stateDirectory, TALLYGATE_AGENT_SOCKET_PATH: site.socketPath }
}

async function doctor(
  site: Site,
  ...args: readonly string[]
): Promise<Doctor & { readonly code: number; readonly of: (name: string) => Level }> {
  const { code, out, err } = await tallygate(['doctor', '--json', ...args], { env: environment(site), now: Date.now })
  if (out === '') throw new Error(err)
  const found = JSON.parse(out) as Doctor
  return { ...found, code, of: (name) => found.checks.find((each) => each.name === name)!.level }
}

const WRITTEN = [
  'database',
  'hash-chain',
  'schema',
  'key',
  'key-fits',
  'enrollment',
  'attachment',
  'rules',
  'owners',
] as const

test(
  'over a running agent it changes nothing, finds the ledger whole, and tells by its exit code',
  { timeout: 60_000 },
  async () => {
    const site = await Site.make()
    // Each sync writes, so none may come by itself while the files are compared.
    const rarely = { 'sync-interval': '1h' }
    const agent = await site.start(rarely)
    const application = await Application.ready(agent)
    await application.ask(3)
    agent.reload(() => site.settings(rarely))
    await application.until(({ backlog }) => backlog === 0)
    const path = join(site.stateDirectory, 'journal.db')
    const before = [path, `${path}-wal`].map((each) => statSync(each).mtimeMs)
    const online = await doctor(site, '--no-network')
    expect([path, `${path}-wal`].map((each) => statSync(each).mtimeMs)).toEqual(before)
    for (const name of [...WRITTEN, 'agent', 'agent-version', 'socket', 'grants', 'clock', 'database-permissions']) {
      expect({ name, level: online.of(name) }).toEqual({ name, level: 'ok' })
    }
    expect(online.code).toBe({ ok: 0, warn: 1, fail: 2 }[online.result])
    // The cloud of this test has a name that leads nowhere.
    expect((await doctor(site)).of('cloud-name')).toBe('warn')
    const { out, code } = await tallygate(['doctor', '--all', '--no-network'], {
      env: environment(site),
      now: Date.now,
    })
    expect([0, 1, 2]).toContain(code)
    expect(out).toMatch(/^Agent: /)
    expect(out).toMatch(/\n\nThis device is /)
    expect(out).toMatch(/^ok {4}configuration +no settings file/m)
    expect(out).toMatch(/\d+ checks: \d+ failures, \d+ warnings, \d+ passed, \d+ not applicable\.\n$/)
    const marks = [...out.matchAll(/^(FAIL|WARN|ok|-) {2,}/gm)].map(([, mark = '']) => mark)
    expect(marks).toEqual(marks.toSorted((a, b) => 'FAIL WARN ok -'.indexOf(a) - 'FAIL WARN ok -'.indexOf(b)))
    const short = await tallygate(['doctor', '--no-network'], { env: environment(site), now: Date.now })
    expect(short.code).toBe(code)
    expect(short.out).not.toMatch(/^ok /m)
  },
)

test(
  'without an agent it reads the ledger all the same, and --fix mends what is safe and loses no entry',
  { timeout: 60_000 },
  async () => {
    const site = await Site.make()
    const agent = await site.start()
    const application = await Application.ready(agent)
    site.isOnline = false
    await application.ask(3)
    await agent.stop()
    const path = join(site.stateDirectory, 'journal.db')
    chmodSync(path, 0o644)
    chmodSync(join(site.stateDirectory, 'device.key'), 0o644)
    chmodSync(site.stateDirectory, 0o777)
    rmSync(`${path}-disk-reserve`)
    leaveSocket(site.socketPath)

    const broken = await doctor(site, '--no-network')
    expect(broken).toMatchObject({ code: 2, result: 'fail' })
    expect(broken.repairs).toBeUndefined()
    for (const name of ['agent', 'state-directory', 'key', 'database-permissions']) expect(broken.of(name)).toBe('fail')
    for (const name of ['socket', 'reserve-file']) expect(broken.of(name)).toBe('warn')
    expect(existsSync(site.socketPath)).toBe(true)

    const mended = await doctor(site, '--no-network', '--fix')
    expect(mended.repairs?.filter(({ done }) => !done)).toEqual([])
    expect(mended.repairs?.length).toBeGreaterThanOrEqual(5)
    for (const name of ['state-directory', 'key', 'database-permissions', 'reserve-file', 'socket']) {
      expect(['ok', 'skip']).toContain(mended.of(name))
    }
    expect(existsSync(site.socketPath)).toBe(false)
    expect(statSync(`${path}-disk-reserve`).size).toBe(16 * 1024 ** 2)

    const again = await site.start()
    expect(await new Application(again).status()).toMatchObject({ lastEntry: 1, backlog: 1 })
  },
)

test(
  'a socket that a service manager holds for an agent that does not answer is left where it is',
  { timeout: 60_000 },
  async () => {
    const site = await Site.make()
    const agent = await site.start()
    await Application.ready(agent)
    await agent.stop()
    const manager = createServer((connection) => connection.destroy())
    await new Promise<void>((resolve) => manager.listen(site.socketPath, resolve))
    onTestFinished(() => void manager.close())
    const found = await doctor(site, '--no-network', '--fix')
    expect(found.of('agent')).toBe('fail')
    expect(found.repairs?.map(({ what }) => what).filter((what) => what.includes('remove'))).toEqual([])
    expect(existsSync(site.socketPath)).toBe(true)
  },
)

test('a database that is damaged is found, and --fix leaves it alone', { timeout: 60_000 }, async () => {
  const site = await Site.make()
  const agent = await site.start()
  await Application.ready(agent)
  await agent.stop()
  const path = join(site.stateDirectory, 'journal.db')
  const bytes = readFileSync(path)
  bytes.fill(0x5a, 4096, 3 * 4096)
  writeFileSync(path, bytes)
  const found = await doctor(site, '--no-network', '--fix')
  expect(found.of('database')).toBe('fail')
  expect(readFileSync(path).equals(bytes)).toBe(true)
})

test('a ledger that the starting agent checks is not read as well', async () => {
  const message = 'The agent starts: it is checking its ledger of 2.0 GiB, 1.0 GiB read.'
  await using agent = await fakeService('socket', {
    [`GET ${AGENT_STATUS_PATH}`]: { status: 503, body: { code: 'AGENT_STARTING', message } },
  })
  const directory = temporaryDirectory()
  // Reading it would be a failure.
  writeFileSync(join(directory, 'journal.db'), 'no ledger', { mode: 0o600 })
  const env = { TALLYGATE_AGENT_STATE_DIRECTORY: directory, TALLYGATE_AGENT_SOCKET_PATH: agent.address }
  const args = ['doctor', '--json', '--no-network', '--fix']
  const { checks, repairs } = JSON.parse((await tallygate(args, { env })).out) as Doctor
  const found = Object.fromEntries(checks.map(({ name, level, evidence }) => [name, [level, evidence]]))
  const ofLedger = [
    'database',
    'hash-chain',
    'schema',
    'damaged-ledgers',
    'enrollment',
    'attachment',
    'rules',
    'backlog',
  ]
  for (const name of ofLedger) {
    expect({ name, found: found[name] }).toEqual({ name, found: ['skip', 'the agent is checking the ledger'] })
  }
  expect(found['cloud-name']).toEqual(['skip', 'the agent is checking the ledger'])
  expect(found['grants']).toEqual(['skip', 'the agent starts'])
  expect(found['agent']).toEqual(['warn', message])
  expect(repairs?.filter(({ what }) => /^(remove|checkpoint|reserve) /.test(what))).toEqual([])
  expect(existsSync(agent.address)).toBe(true)
})

test('a device that is not enrolled yet is checked with the address of the cloud in its token', async () => {
  await using cloud = await fakeService('tcp', {})
  const id = '64d2028c-ae87-4069-a624-66089d957ef9'
  const claims = {
    jti: id,
    exp: 2,
    iat: 1,
    edge: cloud.address.replace('http:', 'https:'),
    instances: [id],
    pins: ['a'],
  }
  const [head, body] = [{ alg: 'none' }, claims].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
  const found = async (token: string) => {
    const env = {
      TALLYGATE_AGENT_STATE_DIRECTORY: temporaryDirectory(),
      TALLYGATE_AGENT_SOCKET_PATH: '/nowhere/agent.sock',
      TALLYGATE_AGENT_ENROLLMENT_TOKEN: token,
    }
    const { out } = await tallygate(['doctor', '--json'], { env })
    expect(out).not.toContain(body)
    return (JSON.parse(out) as Doctor).checks.find(({ name }) => name === 'cloud-reachable')
  }
  expect(await found(`${head}.${body}.c`)).toMatchObject({
    level: 'warn',
    evidence: expect.stringContaining('it does not use TLS on this port') as string,
  })
  expect(await found('no token')).toMatchObject({ level: 'skip' })
})

test('a configuration that is wrong is a finding, with the key that is meant', async () => {
  const site = await Site.make()
  const env = { ...environment(site), TALLYGATE_AGENT_SOCKT_PATH: 'x' }
  const { out, code } = await tallygate(['doctor', '--json', '--no-network'], { env })
  const { checks } = JSON.parse(out) as Doctor
  expect(code).toBe(2)
  expect(checks.find(({ name }) => name === 'configuration')).toMatchObject({
    level: 'fail',
    evidence: expect.stringContaining('did you mean TALLYGATE_AGENT_SOCKET_PATH') as string,
  })
})

test('a response of a sign-in page of the network is not taken for one of the cloud', () => {
  for (const status of [200, 302, 403]) {
    const signIn = { status, code: null, words: null, date: NOW, twinVersion: null }
    expect(examine(healthy({ signIn })).checks.find(({ name }) => name === 'sign-in')).toMatchObject({
      level: 'warn',
      evidence: `the response (HTTP status ${status}) does not come from the cloud`,
      remedy: expect.stringContaining('proxy') as string,
    })
  }
})

test('a clock behind the last signed time is found without the cloud, before the latest time is known', () => {
  const agent = { ...status, clock: { now: NOW, earliest: NOW, latest: null } }
  const { checks } = examine(healthy({ agent, now: NOW - 365 * DAY, signIn: null }))
  expect(checks.find(({ name }) => name === 'clock')).toMatchObject({
    level: 'warn',
    evidence: expect.stringMatching(/ off the time signed by the cloud$/) as string,
    remedy: expect.stringContaining('timedatectl set-ntp true') as string,
  })
})

test('the age of the rules is judged as the agent judges it, not by a wrong clock', () => {
  const level = (changes: Partial<Observations>) =>
    examine(healthy({ now: NOW + 365 * DAY, ...changes })).checks.find(({ name }) => name === 'rules')?.level
  expect(level({})).toBe('ok')
  const at = (earliest: number, latest: number | null) =>
    level({ agent: { ...status, clock: { now: latest ?? NOW + 365 * DAY, earliest, latest } } })
  // After a restart without a network, the agent knows only how late it is at least.
  expect(at(NOW, null)).toBe('ok')
  expect(at(NOW + 31 * DAY, null)).toBe('fail')
  expect(at(NOW, NOW + 31 * DAY)).toBe('fail')
})

test.each([
  [{ code: 'CONFIG_INVALID', message: 'unknown key.' }, 'Correct the setting that the message names.'],
  [{ code: 'CONFIG_UNREADABLE', message: 'agent.toml: denied.', remedy: 'Run chown.' }, 'Run chown.'],
])('the remedy of wrong settings is that of their error', (wrong, remedy) => {
  const { checks } = examine(healthy({ configuration: { ...base.configuration, problem: wrong } }))
  expect(checks.find(({ name }) => name === 'configuration')?.remedy).toMatch(remedy)
})

test('the remedy of a condition is shown once', async () => {
  const wrong = { subject: 'settings', code: 'CONFIG_NOT_RELOADED', message: 'did you mean status.port?', since: 0 }
  const away = { subject: 'push', code: 'BROKER_UNREACHABLE', message: 'The broker does not respond.', since: 0 }
  const shown = async (...conditions: readonly (typeof wrong)[]) => {
    await using agent = await fakeService('socket', {
      [`GET ${AGENT_STATUS_PATH}`]: { body: agentStatus({ conditions: [...conditions] }) },
    })
    return (await tallygate(['doctor', '--socket', agent.address, '--no-network'])).out
  }
  const one = await shown(wrong)
  expect(one).toContain('CONFIG_NOT_RELOADED: did you mean status.port?')
  expect(one.match(/-> Correct the setting that the message names/g)).toHaveLength(1)
  expect(await shown(wrong, away)).toContain('-> tallygate status shows the remedy for each.')
})

test.each([
  [
    'in tables',
    (key: string, token: string) => `[device]\nkey_file = "${key}"\n[enrollment]\ntoken_file = "${token}"\n`,
  ],
  [
    'by dotted keys',
    (key: string, token: string) => `device.key_file = "${key}"\nenrollment.token_file = "${token}"\n`,
  ],
  [
    'in inline tables',
    (key: string, token: string) => `device = { key_file = '${key}' }\nenrollment = { token_file = "${token}" }\n`,
  ],
  [
    'behind a comment',
    (key: string, token: string) =>
      `# See [enrollment].\ndevice.key_file = "${key}"\n[enrollment]\ntoken_file = "${token}"\n`,
  ],
])('the files that the settings of this machine name %s are known, for repairs', async (_name, textOf) => {
  const directory = temporaryDirectory()
  const [config, token, key] = ['agent.toml', 'token', 'key.pem'].map((name) => join(directory, name))
  writeFileSync(config!, textOf(key!, token!))
  writeFileSync(token!, 'a token')
  const io = {
    env: { TALLYGATE_AGENT_CONFIG: config! },
    now: Date.now,
    // Bounded, as in the command: doctor also reads the files of agents of other tests.
    readText: readSmallText,
  }
  const { configuration } = await gather(io as Partial<Io> as Io, { network: false })
  expect(configuration.filesOfMachine).toEqual(expect.arrayContaining([config, token, key]))
})

test('a file with a secret is known also from settings that are not TOML', async () => {
  const directory = temporaryDirectory()
  const [config, token] = ['agent.toml', 'token'].map((name) => join(directory, name))
  writeFileSync(config!, `[socket\n# token_file = "/nowhere"\nenrollment = { token_file = "${token}" }\n`)
  const io = { env: { TALLYGATE_AGENT_CONFIG: config! }, now: Date.now, readText: () => readFileSync(config!, 'utf8') }
  const { configuration } = await gather(io as Partial<Io> as Io, { network: false })
  expect(configuration.problem).toMatchObject({ code: 'CONFIG_UNREADABLE' })
  expect(configuration.files.map(({ path }) => path)).toEqual([config, token])
})

test.each([
  ['value', { TALLYGATE_AGENT_ENROLLMENT_TOKEN: ' ' }],
  ['variable', { TALLYGATE_AGENT_SOCKT_PATH: 'x' }],
  ['value beside them', { TALLYGATE_AGENT_STATE_LEDGER_MAX: '8', TALLYGATE_AGENT_SOCKET_MODE: 'x' }],
  ['pair', { TALLYGATE_AGENT_GRANTS_STARTING: '0', TALLYGATE_AGENT_GRANTS_TOP_UP_DEADLINE: '0ms' }],
  ['status page', { TALLYGATE_AGENT_STATUS_PORT: '7081', TALLYGATE_AGENT_STATUS_HOST: '0.0.0.0' }],
])('a wrong %s does not hide the agent that the other settings name', async (_name, wrong) => {
  const env = { ...wrong, TALLYGATE_AGENT_STATE_DIRECTORY: '/nowhere/state', TALLYGATE_AGENT_SOCKET_PATH: '/nowhere/s' }
  const io = { env, now: Date.now, readText: () => '' }
  const { configuration, directory, socket } = await gather(io as Partial<Io> as Io, { network: false })
  expect(configuration.problem).toMatchObject({ code: 'CONFIG_INVALID' })
  expect([directory.path, socket.path]).toEqual(['/nowhere/state', '/nowhere/s'])
})

describe('an address', () => {
  it('is reported with its certificate, trusted or not, and with what keeps it from answering', async () => {
    const folder = temporaryDirectory()
    const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')]
    const kind = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '3']
    const subject = ['-subj', '/CN=a device cloud', '-addext', 'subjectAltName=IP:127.0.0.1']
    execFileSync('openssl', [...kind, ...subject, '-keyout', key, '-out', cert], { stdio: 'ignore' })
    const pem = readFileSync(cert, 'utf8')
    const server = createTlsServer({ key: readFileSync(key), cert: pem }, (socket) =>
      socket.on('error', () => undefined),
    )
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    onTestFinished(() => void server.close())
    const { port } = server.address() as { port: number }

    const stranger = await lookAtEndpoint(`https://127.0.0.1:${port}/x`, DIRECT)
    expect(stranger).toMatchObject({ addresses: ['127.0.0.1'], connected: expect.any(Number) as number })
    expect(stranger.certificate?.distrust).toBe('this machine does not know the authority of its certificate')
    const known = await lookAtEndpoint(`mqtts://127.0.0.1:${port}`, { proxy: {}, extraCa: pem })
    expect(known.certificate).toMatchObject({ distrust: null, subject: 'a device cloud' })
    expect(known.certificate!.validTo! - Date.now()).toBeGreaterThan(DAY)

    const closed = createServer()
    await new Promise<void>((resolve) => closed.listen(0, '127.0.0.1', resolve))
    const { port: free } = closed.address() as { port: number }
    await new Promise((resolve) => closed.close(resolve))
    expect(await lookAtEndpoint(`http://127.0.0.1:${free}`, DIRECT)).toMatchObject({
      connected: { code: 'ECONNREFUSED' },
      certificate: null,
      secure: false,
    })
    await using plain = await fakeService('tcp', {})
    const { connected } = await lookAtEndpoint(plain.address.replace('http:', 'https:'), DIRECT)
    expect(connected).toMatchObject({ message: 'it does not use TLS on this port' })
    const nowhere = await lookAtEndpoint('mqtt://nowhere.invalid', DIRECT)
    expect(nowhere).toMatchObject({ port: 1883, addresses: { code: expect.any(String) as string } })
  })
})

/** A socket file as a process leaves it that was killed. */
function leaveSocket(path: string): void {
  const script = `require('net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`
  try {
    execFileSync(process.execPath, ['-e', script], { stdio: 'ignore' })
  } catch {
    // It was killed on purpose.
  }
}
