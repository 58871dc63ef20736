/** Composition root of the agent, the only module that names concrete adapters. Stops them in reverse start order. */
import { randomUUID } from 'node:crypto'
import { statSync } from 'node:fs'
import { join } from 'node:path'
import type { Logger } from 'pino'
import type { Engine } from '../core/engine.ts'
import { readAuthorityFile } from '../platform/read-setting-file.ts'
import { ERRORS } from '../protocol/errors.ts'
import { DECISIONS_MAX } from '../protocol/local/report.ts'
import { signDocument } from '../protocol/signing.ts'
import { Secret } from '../settings/option.ts'
import { LiveSettings } from '../settings/reload.ts'
import { requireConsistent } from './check-settings.ts'
import { createCloudHttp } from './platform/http/cloud-client.ts'
import { EXCHANGE_DEFAULTS, type HttpExchange, createExchange } from './platform/http/exchange.ts'
import { proxyOf } from './platform/http/proxy-settings.ts'
import { keyFilesOf, openKeyFiles, ownKeyFile } from './platform/key-file/key-file.ts'
import { MQTT_DEFAULTS, createMqttPush } from './platform/mqtt/mqtt-push.ts'
import { openTokenFile, tokenFileProblem } from './platform/enrollment-token-file.ts'
import { probeSocket } from './platform/socket/probe.ts'
import { type SocketServer, openSocket } from './platform/socket/server.ts'
import { openJournal } from './platform/sqlite/journal.ts'
import { PAGE_BYTES } from './platform/sqlite/open-database.ts'
import { systemNames } from './platform/system/names.ts'
import { openPeerCredentials } from './platform/system/peer-credentials.ts'
import { readStatusAuth } from './platform/status-http/read-status-auth.ts'
import { type StatusServer, openStatus } from './platform/status-http/server.ts'
import { releaseIdleMemory } from './platform/system/idle-memory.ts'
import { certificateProblem } from '../platform/certificate-problem.ts'
import { createLog, logOutput } from '../platform/log-output.ts'
import { orNull } from '../platform/or-null.ts'
import { readLastBackup } from '../platform/last-backup.ts'
import type { Outgoing } from '../platform/outgoing.ts'
import { requireOwnDirectory } from '../platform/require-own-directory.ts'
import type { Service } from '../platform/run-service.ts'
import { Shutdown } from '../platform/shutdown.ts'
import { softwareVersion } from '../platform/software-version.ts'
import { lookAtMachine, writtenBytes } from './platform/system/machine.ts'
import { openUnusedMemory } from './platform/system/unused-memory.ts'
import { systemRandomness } from './platform/system/randomness.ts'
import { volatileLogOf } from './platform/tmpfs/volatile-log.ts'
import { openTimeSource } from './platform/system/time-source.ts'
import { pause, systemTimers } from './platform/system/timers.ts'
import { SEGMENT_ENTRIES_MAX } from '../protocol/edge/sync.ts'
import type { Callers } from './access/callers/callers.ts'
import type { Clock, TimeSource } from './runtime/clock.ts'
import type { DeviceKeys } from './keys/device-key.ts'
import type { Journal } from './ledger/journal.ts'
import type { Link } from './sync/link.ts'
import type { Timers } from './runtime/timers.ts'
import type { Push } from './sync/push.ts'
import { LogBudget } from './diagnostics/log-budget.ts'
import { LogBuffer } from './diagnostics/log-buffer.ts'
import { reportOf } from './diagnostics/report.ts'
import { RECALLED_MAX } from './diagnostics/use-over-time.ts'
import { healthStatusOf } from './diagnostics/health-status.ts'
import { startWatchdog } from './diagnostics/watchdog.ts'
import { type AgentDeps, type AssembledAgent, assembleAgent } from './assemble.ts'
import { type AgentSettings, agentOptions } from './settings.ts'

export interface Overrides {
  readonly log?: Logger
  /** Sink for log lines within the daily limit, unless a logger is given. */
  readonly writeLog?: (line: string) => void
  readonly time?: TimeSource
  readonly timers?: Timers
  readonly engine?: Engine
  readonly exchange?: HttpExchange
  readonly push?: Push | null
  readonly supervisor?: Supervisor
  /** Reports a long start until the result is called; the socket may only be opened after it. */
  readonly reportLongStart?: (start: LongStart) => () => Promise<void>
  /** An already listening socket that outlives the agent: clients wait there between two agents. */
  readonly passedSocket?: { readonly fd: number; readonly path: string }
}

/** A start whose check of the ledger may take minutes. */
export interface LongStart {
  readonly ledgerBytes: number
  readonly socketPath: string
  readonly mode: number
  readonly connectionsMax: number
}

/** Notifications to the service manager. */
export interface Supervisor {
  /** Watchdog timeout, ms; null: none. */
  readonly watchdogMs: number | null
  ready(): void
  /** Resets the watchdog. @param sentence status text for people */
  well(sentence: string): void
  stopping(): void
}

export interface Agent extends Service<AgentSettings> {
  readonly socketPath: string
  /** `http://host:port` of the status page; null: off. */
  readonly statusAddress: string | null
  readonly link: Pick<Link, 'wake' | 'status'>
}

/** Parts that others use, and that exist only when these begin to work. */
interface Late {
  settings?: AgentSettings
  keys?: DeviceKeys
  clock?: Clock
  callers?: Callers
  statusPage?: StatusServer
}

/** @throws CodedError when the state, key or socket cannot be used; an unreachable cloud is not an error */
export async function composeAgent(first: AgentSettings, overrides: Overrides = {}): Promise<Agent> {
  await using started = new AsyncDisposableStack()
  const { timers = systemTimers, time = started.adopt(openTimeSource(), (opened) => opened.close()) } = overrides
  const late: Late = {}
  const { log, logBuffer } = openLog(first, { ...overrides, timers, time }, late, started)
  const live = liveSettings(consistent(first), { log, time, late })
  const settings = live.view
  late.settings = settings
  const shutdown = new Shutdown(log)
  const onFatal = (error: unknown): void => shutdown.fail(error)
  const volatileLog = volatileLogOf(settings.state.directory, settings.writeBehind.directory, time.bootId)
  const endReport = reportIfLong(settings, overrides, log, started)
  // First: it creates the state directory and locks out a second agent.
  const journal = await openJournalFile({ settings, volatileLog, time, late, log, onFatal })
  started.defer(() => journal.close())
  // The cloud would refuse another key.
  const keys = await openKeyFiles(keyFilesOf(settings), async () => (await journal.read()).identity === null)
  late.keys = keys
  const outgoing = outgoingOf(settings)
  const network = createExchange({ ...EXCHANGE_DEFAULTS, ...outgoing })
  started.defer(() => network.close())
  const { exchange = network.exchange, engine, supervisor, passedSocket } = overrides
  const version = softwareVersion()
  const agent = await assembleAgent({
    ...SYSTEM,
    settings,
    journal,
    keys,
    time,
    timers,
    volatileLog,
    version,
    log,
    onFatal,
    engine,
    reloadNotice: () => live.notice,
    cloud: (tokens) => createCloudHttp({ exchange, tokens, pause, fraction: systemRandomness.fraction }),
    lastBackup: () => readLastBackup(settings.state.directory),
    push: pushOf(settings, overrides, outgoing),
  })
  const { clock, callers, link } = agent
  Object.assign(late, { clock, callers })
  started.defer(() => link.stop())

  const status = await openStatusPage(settings, agent, { journal, log, late, started })
  examine(settings, log, time)
  await link.start()
  const socketPath = passedSocket?.path ?? settings.socket.path
  await endReport()
  const socket = await openRequests(settings, passedSocket, agent, { log, logBuffer })
  started.defer(() => agent.stop())
  for (const end of [agent.keepClock(), agent.watchConditions()]) started.defer(end)
  started.defer(releaseIdleMemory(timers, openUnusedMemory()))
  started.defer(watch(supervisor, { ...agent, socketPath }, timers, log))
  agent.wear.start()
  agent.sessions.start()

  const open = started.move()
  shutdown.begin((hasFailed) => stop(open, hasFailed, { socket, agent, settings, supervisor }))
  const statusAddress = status?.origin ?? null
  log.info({ socket: socketPath, status: statusAddress, state: settings.state.directory, version }, 'listening')
  supervisor?.ready()
  return {
    socketPath,
    statusAddress,
    link,
    ended: shutdown.ended,
    reload: (load) => {
      // Also what waits for a restart: the restart would fail.
      live.reload(() => consistent(load()))
      link.wake('operator')
    },
    stop: () => shutdown.stop(),
  }
}

interface StopDeps {
  readonly socket: SocketServer
  readonly agent: AssembledAgent
  readonly settings: AgentSettings
  readonly supervisor: Supervisor | undefined
}

/** @param open all other parts of the agent, which close last */
async function stop(
  open: AsyncDisposableStack,
  hasFailed: boolean,
  { socket, agent, settings, supervisor }: StopDeps,
): Promise<void> {
  open.defer(async () => {
    await socket.stop(hasFailed ? 0 : settings.socket.drainTimeout)
    if (!hasFailed) await agent.drain()
  })
  open.defer(() => (hasFailed ? undefined : supervisor?.stopping()))
  await open.disposeAsync()
}

/** What the agent uses of this machine. */
const SYSTEM = {
  elapsed: () => performance.now(),
  randomness: systemRandomness,
  newId: randomUUID,
  names: systemNames(),
  ownUid: process.getuid?.() ?? 0,
  defer: setImmediate,
  written: writtenBytes,
  tokenFileProblem,
}

function openLog(
  first: AgentSettings,
  { log, writeLog = writerOf(logOutput()), timers, time }: Overrides & Pick<AgentDeps, 'timers' | 'time'>,
  late: Late,
  started: AsyncDisposableStack,
): { readonly log: Logger; readonly logBuffer: LogBuffer } {
  const logBuffer = new LogBuffer()
  const budget = new LogBudget({
    write: writeLog,
    sinceBoot: () => time.sinceBoot(),
    timers,
    perDay: () => (late.settings ?? first).log.perDayMax,
  })
  started.defer(() => budget.flush())
  const write = (line: string): void => {
    logBuffer.add(line)
    budget.take(line)
  }
  return { log: log ?? createLog(first.log.level, { write }), logBuffer }
}

interface LiveSettingsDeps {
  readonly log: Logger
  readonly time: TimeSource
  readonly late: Late
}

function liveSettings(
  first: AgentSettings,
  { log, time, late }: LiveSettingsDeps,
): LiveSettings<(typeof agentOptions)['options']> {
  return new LiveSettings({
    table: agentOptions,
    settings: first,
    files: ({ status }) => (status.port === null ? {} : statusFiles(readStatusAuth(status))),
    startFiles: ({ tls }) =>
      tls.caFile === null ? {} : { 'tls.ca_file': readAuthorityFile('tls.ca_file', tls.caFile) },
    prepare: (next) => {
      // With those that wait for a restart as they are.
      requireConsistent(next)
      const isOtherLevel = next.log.level !== late.settings?.log.level
      const rules = late.callers?.prepare(next.callers)
      // The files may have new contents under the same names.
      const auth = late.statusPage === undefined ? null : readStatusAuth(next.status)
      return () => {
        rules?.()
        if (auth !== null) late.statusPage?.renew(auth)
        examine(next, log, time)
        if (isOtherLevel) log.level = next.log.level
      }
    },
    log,
    now: () => nowOf(late, time),
  })
}

/** @throws CodedError CONFIG_INVALID */
function consistent(settings: AgentSettings): AgentSettings {
  requireConsistent(settings)
  if (settings.status.port !== null) readStatusAuth(settings.status)
  return settings
}

function nowOf({ clock }: Late, time: TimeSource): number {
  return clock?.reading().now ?? time.wall()
}

/** Warns of files that others can read or that clients refuse. */
function examine({ status, enrollment }: AgentSettings, log: Logger, time: TimeSource): void {
  const { token } = enrollment
  const open = token instanceof Secret ? openTokenFile(token.source) : null
  if (open !== null) log.warn({ file: token.source }, open)
  const pem = status.port === null ? undefined : readStatusAuth(status).tls?.certificate
  const reason = pem === undefined ? null : certificateProblem(pem, [], time.wall())
  if (reason === null) return
  const file = status.certificateFile
  log.warn({ code: 'CERTIFICATE_NOT_VALID', file, reason }, `the certificate of the status page ${reason}`)
}

/** From this size on, a slow disk needs seconds to read a ledger. */
const LARGE_LEDGER_BYTES = 64 * 1024 * 1024

function reportIfLong(
  { state, socket }: AgentSettings,
  { reportLongStart }: Overrides,
  log: Logger,
  started: AsyncDisposableStack,
): () => Promise<void> {
  const ledger = ledgerOf(state)
  const ledgerBytes = orNull(() => statSync(ledger).size) ?? 0
  if (ledgerBytes < LARGE_LEDGER_BYTES || reportLongStart === undefined) return () => Promise.resolve()
  log.info({ ledger, bytes: ledgerBytes }, 'checking the ledger')
  const end = reportLongStart({
    ledgerBytes,
    socketPath: socket.path,
    mode: Number.parseInt(socket.mode, 8),
    connectionsMax: socket.connectionsMax,
  })
  started.defer(end)
  return end
}

function ledgerOf({ directory }: AgentSettings['state']): string {
  return join(directory, 'journal.db')
}

interface JournalDeps extends LiveSettingsDeps {
  readonly settings: AgentSettings
  readonly volatileLog: ReturnType<typeof volatileLogOf>
  readonly onFatal: (error: unknown) => void
}

function openJournalFile({ settings, volatileLog, time, late, log, onFatal }: JournalDeps): Promise<Journal> {
  const { state, explain } = settings
  requireOwnDirectory(state.directory)
  const left = volatileLog.left()
  return openJournal({
    path: ledgerOf(state),
    later: [ownKeyFile(state.directory)],
    left: left === undefined ? null : { log: left, bootId: time.bootId },
    limits: {
      pagesMax: Math.floor(state.ledgerMax / PAGE_BYTES),
      diskReservePages: Math.floor(state.diskReserve / PAGE_BYTES),
      retentionMs: state.retention,
      retainedBytesMax: state.retainedMax,
      answersMax: state.answersMax,
      recentEntries: Math.max(DECISIONS_MAX, explain.decisions),
      pastRulesBytesMax: explain.rulesMax,
      segmentEntriesMax: SEGMENT_ENTRIES_MAX,
    },
    sign: async (payload) => {
      if (late.keys === undefined) throw new Error('invariant: the key is loaded before a segment is sealed')
      return signDocument('segment', payload, late.keys.current.signer)
    },
    now: () => nowOf(late, time),
    log,
    onBroken: onFatal,
  })
}

function openRequests(
  { socket }: AgentSettings,
  passed: Overrides['passedSocket'],
  { access, offers, sessions, callers, status, link, decision, refusals }: AssembledAgent,
  { log, logBuffer }: { readonly log: Logger; readonly logBuffer: LogBuffer },
): Promise<SocketServer> {
  return openSocket({
    path: passed?.path ?? socket.path,
    ...(passed === undefined ? {} : { passed: passed.fd }),
    mode: Number.parseInt(socket.mode, 8),
    bodyBytesMax: socket.bodyMax,
    waitingMax: socket.waitingMax,
    connectionsMax: socket.connectionsMax,
    requestTimeoutMs: socket.requestTimeout,
    access,
    offers,
    sessions,
    status,
    callers: { identify: openPeerCredentials(), rules: callers },
    cloudAddress: () => link.serviceUrl?.replace(/\/api$/, '') ?? null,
    rotateKey: () => link.rotateKey(),
    inspection: {
      decision,
      log: () => logBuffer.text(),
      refused: (error, request, caller) => {
        if (ERRORS[error.code].retry === 'online') link.hasten()
        return refusals.add(error, request, caller)
      },
    },
    onFault: (error) => log.error({ err: error }, 'a request failed unexpectedly'),
  })
}

/** Health checks per watchdog timeout: one may fail and be retried. */
const LOOKS_PER_WATCHDOG = 3

const PROBE_LIMIT_MS = 2_000

function watch(
  supervisor: Supervisor | undefined,
  { readiness, status, socketPath }: Pick<AssembledAgent, 'readiness' | 'status'> & { readonly socketPath: string },
  timers: Timers,
  log: Logger,
): () => void {
  if (supervisor === undefined || supervisor.watchdogMs === null) return () => undefined
  return startWatchdog({
    everyMs: supervisor.watchdogMs / LOOKS_PER_WATCHDOG,
    look: async () => (await readiness.works()) && (await probeSocket(socketPath, PROBE_LIMIT_MS)),
    onWell: () => supervisor.well(healthStatusOf(status()).sentence),
    onIll: (error) =>
      log.warn({ err: error }, 'the agent failed its health check: the service manager gets no watchdog notification'),
    timers,
  })
}

function writerOf(destination: { write(text: string): unknown }): (line: string) => void {
  return (line) => void destination.write(line)
}

function pushOf(settings: AgentSettings, overrides: Overrides, outgoing: Outgoing): Push | null {
  if (overrides.push !== undefined) return overrides.push
  if (!settings.push.enabled) return null
  const now = (): number => performance.now()
  const { username, password } = settings.push
  const user = { username, password: password?.reveal() ?? null }
  return createMqttPush({ ...MQTT_DEFAULTS, ...user, ...outgoing, pause, fraction: systemRandomness.fraction, now })
}

interface StatusPageDeps {
  readonly journal: Journal
  readonly log: Logger
  readonly late: Late
  readonly started: AsyncDisposableStack
}

async function openStatusPage(
  { status: page, state }: AgentSettings,
  { status, refusals, use, readiness }: AssembledAgent,
  { journal, log, late, started }: StatusPageDeps,
): Promise<StatusServer | null> {
  if (page.port === null) return null
  use.recall(await journal.recent(RECALLED_MAX))
  const machine = () => lookAtMachine(state.directory)
  const opened = await openStatus({
    port: page.port,
    auth: readStatusAuth(page),
    report: () => reportOf({ status, journal, machine, refusals, use }),
    readiness: () => readiness.check(),
    onFault: (error) => log.error({ err: error }, 'a request to the status page failed unexpectedly'),
  })
  late.statusPage = opened
  started.defer(() => opened.stop())
  return opened
}

function statusFiles({ tls }: ReturnType<typeof readStatusAuth>): Record<string, string> {
  if (tls === null) return {}
  const ca = tls.clientCa === null ? {} : { 'status.client_ca_file': tls.clientCa }
  return { 'status.certificate_file': tls.certificate, 'status.key_file': tls.key, ...ca }
}

/** @throws CodedError CONFIG_UNREADABLE, CONFIG_INVALID */
function outgoingOf({ tls, proxy }: AgentSettings): Outgoing {
  return {
    proxy: proxyOf(proxy, process.env),
    extraCa: tls.caFile === null ? null : readAuthorityFile('tls.ca_file', tls.caFile),
  }
}
