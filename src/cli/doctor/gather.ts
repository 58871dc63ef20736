/** Gathers the inputs of the checks. Changes nothing. Failures are part of the result. */
import { constants, statSync, accessSync, existsSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { connect } from 'node:net'
import { dirname, join, resolve } from 'node:path'
import Database from 'better-sqlite3'
import { decodeJwt } from 'jose'
import { parse as parseToml } from 'smol-toml'
import { requireConsistent } from '../../agent/check-settings.ts'
import { createExchange, EXCHANGE_DEFAULTS } from '../../agent/platform/http/exchange.ts'
import { proxyOf } from '../../agent/platform/http/proxy-settings.ts'
import { keyFilesOf, openKeyFiles } from '../../agent/platform/key-file/key-file.ts'
import { readStatusAuth } from '../../agent/platform/status-http/read-status-auth.ts'
import { type InspectedDatabase, inspectDatabase, notInspected } from '../../agent/platform/sqlite/inspect-database.ts'
import { readLedger } from '../../agent/platform/sqlite/read-ledger.ts'
import { sizeIn } from '../../agent/platform/system/machine.ts'
import type { DeviceKeys } from '../../agent/keys/device-key.ts'
import { DeviceTokens } from '../../agent/keys/device-token.ts'
import { Clock } from '../../agent/runtime/clock.ts'
import type { ClockReading } from '../../core/rules/decision.ts'
import { verifyLedger } from '../../agent/ledger/verify-ledger.ts'
import { agentOptions, type AgentSettings } from '../../agent/settings.ts'
import { ENGINE } from '../../core/engine.ts'
import { enrollmentClaims } from '../../protocol/edge/enrollment.ts'
import { policyRequest } from '../../protocol/edge/policy-document.ts'
import { CodedError, errorBody } from '../../protocol/errors.ts'
import { AGENT_STATUS_PATH, agentStatus } from '../../protocol/local/status.ts'
import { VERSION_HEADER } from '../../protocol/wire.ts'
import { parseJson } from '../../protocol/parse-json.ts'
import { loadSettings, usableSettings } from '../../settings/load.ts'
import { namedOptions, Secret } from '../../settings/option.ts'
import { orNull } from '../../platform/or-null.ts'
import { readLastBackup } from '../../platform/last-backup.ts'
import { immutableAt, isReadOnly } from '../../platform/denial-of.ts'
import type { Outgoing } from '../../platform/outgoing.ts'
import { softwareVersion } from '../../platform/software-version.ts'
import { givingWay } from '../giving-way.ts'
import type { Io } from '../io.ts'
import { lookAtEndpoint } from './endpoint.ts'
import { runningAgents } from './running-agents.ts'
import { type SettingsSources, choose, sourcesOfMachine } from './sources.ts'
import {
  type Observations,
  type FileObservation,
  type FileSystemObservation,
  type Problem,
  isProblem,
  isStarting,
} from './observations.ts'
import { AGENT_TIMEOUT_MS, agentClient, namedSocket, type SocketFlags } from '../local-agent.ts'
import { fileText } from '../../platform/file-text.ts'

const OLDEST_NODE_MAJOR = 24

export async function gather(
  io: Io,
  { network, ...flags }: SocketFlags & { readonly network: boolean },
): Promise<Observations> {
  const named = namedSocket(flags, io)
  const agents = runningAgents()
  const chosen = choose(io, agents, named)
  const { settings, configuration } = configurationOf(io, chosen, named)
  const { directory } = settings.state
  const databasePath = join(directory, 'journal.db')
  const socketPath = named ?? settings.socket.path
  const found = await askAgent(socketPath, io)
  const answeredAt = io.now()
  const [inspected, isListened, fileSystem, reserveFileSystem] = await Promise.all([
    inspectUnlessStarting(databasePath, found),
    isStarting(found) || listens(socketPath),
    fileSystemOf(directory),
    settings.durability === 'write-behind' ? fileSystemOf(settings.writeBehind.directory) : null,
  ])
  // This user may lack access to the directory; the agent has it.
  const backup = isProblem(found) ? readLastBackup(directory) : found.backup
  // A check must not create a missing key.
  const keys = await openKeyFiles({ ...keyFilesOf(settings), create: false }).catch(problemOf)
  const key = keyOf(keyFilesOf(settings).path, keys)
  const { identity } = inspected
  const { caFile } = settings.tls
  const outgoing = {
    proxy: proxyOf(settings.proxy, chosen.sources.env),
    extraCa: caFile === null ? null : fileText(caFile),
  }
  const reach = async (url: string | null | undefined) =>
    network && url !== null && url !== undefined && URL.canParse(url) ? lookAtEndpoint(url, outgoing) : null
  const [cloud, broker, verification] = await Promise.all([
    reach(identity === null ? edgeUrlIn(settings.enrollment.token) : identity.edgeUrl),
    reach(identity?.pushUrl),
    inspected.problem ?? readLedger(databasePath, (ledger) => verifyLedger(ledger, givingWay())).catch(problemOf),
  ])
  const pid = configuration.choice.process?.pid ?? agents[0]?.pid ?? null
  const isReached = cloud !== null && typeof cloud.connected === 'number'
  const now = io.now()
  const agent = isProblem(found) ? found : { ...found, clock: later(found.clock, now - answeredAt) }
  return {
    now,
    version: softwareVersion(),
    node: { version: process.versions.node, oldestMajor: OLDEST_NODE_MAJOR },
    sqlite: sqliteVersion(),
    timeZone: timeZone(io),
    configuration,
    settings: named === undefined ? settings : { ...settings, socket: { ...settings.socket, path: named } },
    directory: fileOf(directory),
    fileSystem,
    reserveFileSystem,
    diskReserve: fileOf(`${databasePath}-disk-reserve`),
    key,
    enrollmentToken: fileOf(settings.enrollment.token.source),
    database: fileOf(databasePath),
    log: fileOf(`${databasePath}-wal`),
    inspected,
    verification,
    backup,
    isBackupThere: backup !== null && fileOf(backup.file).kind !== 'none',
    socket: fileOf(socketPath),
    isListened,
    agent,
    agents: agents.map(({ pid, user, command }) => ({ pid, user, command })),
    memory: memoryOf(pid),
    openFilesMax: openFilesMaxOf(pid),
    cloud,
    broker,
    signIn: isReached ? await signIn(isProblem(agent) ? now : agent.clock.now, inspected, keys, outgoing) : null,
  }
}

/** The check of a large ledger takes minutes. */
function later({ now, earliest, latest }: ClockReading, ms: number): ClockReading {
  return { now: now + ms, earliest: earliest + ms, latest: latest === null ? null : latest + ms }
}

/** Where a device that is not enrolled will enroll. Null: there is no usable token. */
function edgeUrlIn(token: AgentSettings['enrollment']['token']): string | null {
  return token instanceof Secret ? orNull(() => enrollmentClaims.parse(decodeJwt(token.reveal())).edge) : null
}

/** A copy, and its check, would take the disk from an agent that is checking the same ledger, and find nothing else. */
async function inspectUnlessStarting(path: string, agent: Observations['agent']): Promise<InspectedDatabase> {
  return isStarting(agent) ? notInspected(agent) : inspectDatabase(path)
}

function configurationOf(
  io: Io,
  { sources, choice }: ReturnType<typeof choose>,
  socket: string | undefined,
): {
  readonly settings: AgentSettings
  readonly configuration: Observations['configuration']
} {
  const { settings, problem, paths } = namedBy(io, sources)
  const machine = namedBy(io, sourcesOfMachine(io))
  const { keyFile } = machine.settings.device
  const isOther = socket !== undefined && resolve(socket) !== resolve(settings.socket.path)
  return {
    settings,
    configuration: {
      file: sources.file,
      choice,
      otherSocket: isOther ? settings.socket.path : null,
      problem,
      files: paths.map(fileOf),
      filesOfMachine: keyFile === null ? machine.paths : [...machine.paths, keyFile],
    },
  }
}

/** The settings, without what is invalid, with the paths of the settings file and of every file with a secret. */
function namedBy(
  io: Io,
  { file, env, flags }: SettingsSources,
): { readonly settings: AgentSettings; readonly problem: Problem | null; readonly paths: readonly string[] } {
  const sources = { file, env, flags, readText: io.readText }
  let settings: AgentSettings
  let problem: Problem | null = null
  try {
    settings = loadSettings(agentOptions, sources)
    requireConsistent(settings)
    if (settings.status.port !== null) readStatusAuth(settings.status)
  } catch (error) {
    problem = problemOf(error)
    settings = usableSettings(agentOptions, sources)
  }
  const secrets = namedOptions(agentOptions)
    .filter(({ option }) => option.secret)
    .flatMap(({ key, env: name, flag, option }) => [
      flags[flag] ?? null,
      env[name] ?? null,
      ...(file === null ? [] : namedIn(file, key, io)),
      existsSync(option.defaultText ?? '') ? option.defaultText : null,
    ])
  const paths = [file, ...secrets, settings.status.keyFile].filter((path) => path !== null)
  return { settings, problem, paths: [...new Set(paths)] }
}

/** The path that a key of the settings file names. In a file that is not TOML, the paths of all keys with its last name. */
function namedIn(file: string, key: string, { readText }: Io): readonly string[] {
  const path = key.split('.')
  let text = ''
  try {
    text = readText(file)
    let value: unknown = parseToml(text)
    for (const name of path) value = (value as Readonly<Record<string, unknown>> | undefined)?.[name]
    return typeof value === 'string' ? [value] : []
  } catch {
    const assignment = new RegExp(`^[^#\\n]*\\b${path.at(-1)}\\s*=\\s*["']([^"'\\n]+)["']`, 'gm')
    return [...text.matchAll(assignment)].flatMap(([, found]) => found ?? [])
  }
}

function fileOf(path: string): FileObservation {
  const nothing = { path, mode: 0, uid: 0, size: 0, readable: false }
  try {
    const found = statSync(path, { throwIfNoEntry: false })
    if (found === undefined) return { ...nothing, kind: 'none' }
    const kind = found.isFile() ? 'file' : found.isDirectory() ? 'directory' : found.isSocket() ? 'socket' : 'other'
    return { path, kind, mode: found.mode & 0o777, uid: found.uid, size: found.size, readable: isReadable(path) }
  } catch (error) {
    const isNone = (error as NodeJS.ErrnoException).code === 'ENOTDIR'
    return { ...nothing, kind: isNone ? 'none' : 'hidden' }
  }
}

function isReadable(path: string): boolean {
  try {
    accessSync(path, constants.R_OK)
    return true
  } catch {
    return false
  }
}

/** By the kernel's magic number. */
const FILE_SYSTEMS: Readonly<Record<number, string>> = {
  0x01021994: 'tmpfs',
  0x858458f6: 'ramfs',
  0x794c7630: 'overlayfs',
  0x73717368: 'squashfs',
  0x6969: 'nfs',
  0xff534d42: 'cifs',
  0xfe534d42: 'smb2',
  0x01021997: '9p',
  0x65735546: 'fuse',
  0xef53: 'ext4',
  0x58465342: 'xfs',
  0x9123683e: 'btrfs',
  0xf2f52010: 'f2fs',
  0x24051905: 'ubifs',
  0x2fc12fc1: 'zfs',
}

/** Of the directory, or of its nearest existing parent. */
async function fileSystemOf(directory: string): Promise<FileSystemObservation | Problem> {
  let path = directory
  while (!existsSync(path) && dirname(path) !== path) path = dirname(path)
  const found = await statfs(path).catch(problemOf)
  if (isProblem(found)) return found
  const { type, bavail, blocks, bsize, ffree, files } = found
  return {
    type: FILE_SYSTEMS[type >>> 0] ?? `0x${(type >>> 0).toString(16)}`,
    free: bavail * bsize,
    total: blocks * bsize,
    inodesFree: ffree,
    inodesTotal: files,
    readOnly: isReadOnly(path),
    immutable: immutableAt(join(path, 'journal.db')),
  }
}

function keyOf(path: string, keys: DeviceKeys | Problem): Observations['key'] {
  const file = fileOf(path)
  if (isProblem(keys)) return { ...file, problem: keys, keyId: null, nextKeyId: null }
  const { current, next } = keys
  return { ...file, problem: null, keyId: current.signer.keyId, nextKeyId: next?.signer.keyId ?? null }
}

function listens(path: string): Promise<boolean | null> {
  return new Promise((resolve) => {
    // A text alone would be a port if it is a number.
    const socket = connect({ path })
    const end = (answer: boolean | null): void => {
      socket.destroy()
      resolve(answer)
    }
    socket.setTimeout(AGENT_TIMEOUT_MS, () => end(null))
    socket.on('connect', () => end(true))
    socket.on('error', ({ code }: NodeJS.ErrnoException) =>
      end(code === 'ECONNREFUSED' || code === 'ENOENT' ? false : null),
    )
  })
}

async function askAgent(path: string, io: Io): Promise<Observations['agent']> {
  using client = agentClient({ socket: path }, io)
  return await client.json({ method: 'GET', path: AGENT_STATUS_PATH }, agentStatus).catch(problemOf)
}

function memoryOf(pid: number | null): Observations['memory'] {
  const text = fileText('/proc/meminfo') ?? ''
  const group = /^0::(.*)$/m.exec(fileText(`/proc/${pid ?? 'self'}/cgroup`) ?? '')?.[1]
  const inGroup = (name: string): number | null => {
    const value = group === undefined ? null : fileText(join('/sys/fs/cgroup', group, name))?.trim()
    return value === null || value === undefined || !/^\d+$/.test(value) ? null : Number(value)
  }
  return {
    total: sizeIn(text, 'MemTotal'),
    available: sizeIn(text, 'MemAvailable'),
    limit: inGroup('memory.max'),
    used: inGroup('memory.current'),
  }
}

function openFilesMaxOf(pid: number | null): number | null {
  const limits = pid === null ? null : fileText(`/proc/${pid}/limits`)
  const limit = /^Max open files +(\d+)/m.exec(limits ?? '')?.[1]
  return limit === undefined ? null : Number(limit)
}

function timeZone({ env }: Io): Observations['timeZone'] {
  const named = env['TZ']?.replace(/^:/, '')
  const name = named === undefined || named === '' ? Intl.DateTimeFormat().resolvedOptions().timeZone : named
  try {
    // A runtime without time zone data knows only UTC.
    const rules = new Intl.DateTimeFormat('en', { timeZone: 'Europe/Berlin', timeZoneName: 'short' }).format(0) !== ''
    new Intl.DateTimeFormat('en', { timeZone: name })
    return { name, rules }
  } catch {
    return { name, rules: false }
  }
}

/**
 * Requests the policy with the device's identity, which changes nothing. As the agent, it follows the cloud's clock if the cloud
 * rejects the time of the token.
 * @param now as the agent judges it: the wall clock may be wrong
 */
async function signIn(
  now: number,
  inspected: Observations['inspected'],
  keys: DeviceKeys | Problem,
  outgoing: Outgoing,
): Promise<Observations['signIn']> {
  const first = await signInAt(now, inspected, keys, outgoing)
  if (first === null || isProblem(first) || first.code !== 'TOKEN_NOT_IN_TIME' || first.date === null) return first
  return signInAt(first.date, inspected, keys, outgoing)
}

async function signInAt(
  now: number,
  { identity, policies: [policy] }: Observations['inspected'],
  keys: DeviceKeys | Problem,
  outgoing: Outgoing,
): Promise<Observations['signIn']> {
  const instanceId = policy?.instanceId ?? identity?.instanceIds[0]
  if (identity === null || instanceId === undefined) return null
  if (isProblem(keys)) return keys
  const signer = keys.next?.signer.keyId === identity.keyId ? keys.next : keys.current
  const clock = new Clock({ wall: () => now, sinceBoot: () => performance.now(), bootId: '' }, null)
  const network = createExchange({ ...EXCHANGE_DEFAULTS, ...outgoing, silenceMs: 10_000, durationMs: 20_000 })
  try {
    const token = await new DeviceTokens({ current: signer }, clock).token(identity)
    const knownRevision = policy?.revision ?? 0
    const request = policyRequest(identity.edgeUrl, { instanceId, knownRevision, engine: ENGINE })
    const response = await network.exchange({
      method: 'GET',
      url: request.url,
      headers: { ...request.headers, accept: 'application/json, application/jose', authorization: `Bearer ${token}` },
      body: null,
      compress: false,
      signal: new AbortController().signal,
    })
    const date = Date.parse(response.headers['date'] ?? '')
    const refusal = errorBody.safeParse(parseJson(response.body)).data
    return {
      status: response.status,
      code: refusal?.code ?? null,
      words: refusal?.message ?? null,
      date: Number.isNaN(date) ? null : date,
      twinVersion: response.headers[VERSION_HEADER] ?? null,
    }
  } catch (error) {
    return problemOf(error)
  } finally {
    network.close()
  }
}

function sqliteVersion(): string {
  const database = new Database(':memory:')
  try {
    return database.prepare('SELECT sqlite_version()').pluck().get() as string
  } finally {
    database.close()
  }
}

function problemOf(error: unknown): Problem {
  if (error instanceof CodedError) {
    const { code, message, details } = error
    return { code, message, ...(typeof details['remedy'] === 'string' ? { remedy: details['remedy'] } : {}) }
  }
  const { code = 'UNKNOWN', message } = error as NodeJS.ErrnoException
  return { code, message }
}
