// Facts of a device that has nothing to complain about, as plain data, for tests that spoil one of them.
import { agentOptions } from '../../src/agent/settings.ts'
import type { Observations, EndpointObservation, FileObservation } from '../../src/cli/doctor/observations.ts'
import { agentStatus as parsedStatus } from '../../src/protocol/local/status.ts'
import { loadSettings } from '../../src/settings/load.ts'
import { agentStatus, instanceId } from './agent-status.ts'

const GIB = 1024 ** 3
const DAY = 86_400_000
export const NOW = 1_800_000_000_000
export const STATE = '/var/lib/tallygate/agent'

export function file(path: string, changes: Partial<FileObservation> = {}): FileObservation {
  return { path, kind: 'file', mode: 0o600, uid: 990, size: 4096, readable: true, ...changes }
}

export function endpoint(url: string, changes: Partial<EndpointObservation> = {}): EndpointObservation {
  const certificate = { distrust: null, subject: 'cloud.example', issuer: 'An Authority', validTo: NOW + 90 * DAY }
  const about = {
    url,
    host: 'cloud.example',
    port: 443,
    secure: true,
    proxy: null,
    addresses: ['192.0.2.7'],
    connected: 12,
  }
  return { ...about, certificate, ...changes }
}

export const settings = (flags: Readonly<Record<string, string>> = {}) =>
  loadSettings(agentOptions, {
    file: null,
    env: {},
    flags,
    readText: () => ('enrollment-token-file' in flags ? 'a token' : ''),
  })

export function healthy(changes: Partial<Observations> = {}): Observations {
  const disk = {
    type: 'ext4',
    free: 20 * GIB,
    total: 32 * GIB,
    inodesFree: 900_000,
    inodesTotal: 1_000_000,
    readOnly: false,
    immutable: null,
  }
  return {
    now: NOW,
    version: '0.1.0',
    node: { version: '26.10.0', oldestMajor: 24 },
    sqlite: '3.54.1',
    timeZone: { name: 'Europe/Berlin', rules: true },
    configuration: {
      file: '/etc/tallygate/agent.toml',
      choice: { why: 'NONE', isNamed: false, process: null, others: [] },
      otherSocket: null,
      problem: null,
      files: [file('/etc/tallygate/agent.toml', { mode: 0o644 })],
      filesOfMachine: ['/etc/tallygate/agent.toml'],
    },
    settings: settings(),
    directory: file(STATE, { kind: 'directory', mode: 0o700 }),
    fileSystem: disk,
    reserveFileSystem: null,
    diskReserve: file(`${STATE}/journal.db-disk-reserve`, { size: 16 * 1024 ** 2 }),
    key: { ...file(`${STATE}/device.key`), problem: null, keyId: 'thumbprint', nextKeyId: null },
    enrollmentToken: file('/etc/tallygate/enrollment-token', { kind: 'none' }),
    database: file(`${STATE}/journal.db`),
    log: file(`${STATE}/journal.db-wal`),
    inspected: {
      problem: null,
      quickCheck: 'ok',
      schema: 1,
      knownSchema: 1,
      tables: 'CREATE TABLE state (...)',
      identity: {
        ...{ deviceId: '0c1d8a1e-0000-4000-8000-000000000000', keyId: 'thumbprint', instanceIds: [instanceId] },
        ...{ trustedKeys: [], edgeUrl: 'https://cloud.example/edge/api/v1', serviceUrl: 'https://cloud.example/api' },
        pushUrl: 'mqtts://cloud.example:8883',
        suspension: null,
      },
      state: { epoch: 1, fenced: 0, last_entry: 12, acked_entry: 9, backlog: 3 },
      policies: [
        {
          ...{
            instanceId,
            name: 'Workshop',
            revision: 8,
            confirmedAt: NOW - 1_000,
            issuedAt: NOW - DAY,
            usableForMs: 30 * DAY,
          },
          ...{ engine: 1, oldestEngine: 1 },
        },
      ],
      salvages: [],
    },
    verification: {
      findings: [],
      checked: { entries: 12, chained: 12, segments: 2, receipts: 1, accounts: 1 },
      engines: [],
    },
    backup: { at: NOW - DAY, file: '/media/usb/press-4.db' },
    isBackupThere: true,
    socket: file('/run/tallygate/agent.sock', { kind: 'socket', mode: 0o660 }),
    isListened: true,
    agent: parsedStatus.parse(
      agentStatus({
        policies: [{ instanceId, name: 'Workshop', applied: 8, newest: 8, engine: 1, remainingMs: 604_800_000 }],
        clock: { now: NOW, earliest: NOW - 500, latest: NOW + 500 },
      }),
    ),
    agents: [{ pid: 812, user: 'tallygate', command: '/usr/bin/tallygate agent' }],
    memory: { total: 4 * GIB, available: 2 * GIB, limit: null, used: null },
    openFilesMax: 65_536,
    cloud: endpoint('https://cloud.example'),
    broker: endpoint('mqtts://cloud.example:8883', { port: 8883 }),
    signIn: { status: 304, code: null, words: null, date: NOW, twinVersion: '0.1.0' },
    ...changes,
  }
}
