/** Composition root of the agent, the only module that names concrete adapters. Stops them in reverse start order. */
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Logger, pino } from 'pino'
import type { Engine } from '../core/engine.ts'
import { CodedError } from '../protocol/errors.ts'
import { DECISIONS_MAX, type DeviceReportWire } from '../protocol/local/report.ts'
import { signDocument } from '../protocol/signing.ts'
import { LiveSettings } from '../settings/reload.ts'
import { createCloudHttp } from './platform/http/cloud-client.ts'
import { EXCHANGE_DEFAULTS, type HttpExchange, createExchange } from './platform/http/exchange.ts'
import { proxyOf } from './platform/http/proxy-settings.ts'
import { keyFilesOf, openKeyFiles, ownKeyFile } from './platform/key-file/key-file.ts'
import { MQTT_DEFAULTS, createMqttPush } from './platform/mqtt/mqtt-push.ts'
import { openTokenFile, tokenFileProblem } from './platform/enrollment-token-file.ts'
import { probeSocket } from './platform/socket/probe.ts'
import { openSocket } from './platform/socket/server.ts'
import { openJournal } from './platform/sqlite/journal.ts'
import { PAGE_BYTES } from './platform/sqlite/open-database.ts'
import { systemNames } from './platform/system/names.ts'
import { openPeerCredentials } from './platform/system/peer-credentials.ts'
import { readStatusAuth } from './platform/status-http/read-status-auth.ts'
import { type StatusServer, openStatus } from './platform/status-http/server.ts'
import { releaseIdleMemory } from './platform/system/idle-memory.ts'
import { certificateProblem } from '../platform/certificate-problem.ts'
import { hasCertificate } from '../platform/has-certificate.ts'
import { readLastBackup } from '../platform/last-backup.ts'
import type { Outgoing } from '../platform/outgoing.ts'
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
import type { Link } from './sync/link.ts'
import type { Timers } from './sync/ports.ts'
import type { Push } from './sync/push.ts'
import { LogBudget } from './diagnostics/log-budget.ts'
import { LogBuffer } from './diagnostics/log-buffer.ts'
import { reportOf } from './diagnostics/report.ts'
import type { ReadinessProbe } from './diagnostics/readiness.ts'
import { RECALLED_MAX } from './diagnostics/use-over-time.ts'
import { healthStatusOf } from './diagnostics/health-status.ts'
import { startWatchdog } from './diagnostics/watchdog.ts'
import { type AssembledAgent, assembleAgent } from './assemble.ts'
import { Shutdown } from './shutdown.ts'
import { type AgentSettings, ENROLLMENT_TOKEN_FILE, agentOptions } from './settings.ts'

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
  /** An already listening socket that outlives the agent: clients wait there between two agents. */
  readonly passedSocket?: { readonly fd: number; readonly path: string }
}

/** Notifications to the service manager. */
export interface Supervisor {
  /** Watchdog timeout, ms; null: none. */
  readonly watchdogMs: number | null
  ready(): void
  well(sentence: string): void
  stopping(): void
}

export interface Agent {
  readonly socketPath: string
  /** `http://host:port` of the status page; null: off. */
  readonly statusAddress: string | null
  readonly link: Pick<Link, 'wake' | 'status'>
  /** Resolves after {@link Agent.stop}. Rejects after cleanup if the agent had to end by itself, with a CodedError as reason. */
  readonly ended: Promise<void>
  /** On any error, all settings stay unchanged and the status reports it. @param load reads them. @throws CodedError */
  reload(load: () => AgentSettings): void
  /** Refuses new requests, records pending ones, signs off from the cloud, and ends. Idempotent. */
  stop(): Promise<void>
}

/** @throws CodedError when the state, key or socket cannot be used; an unreachable cloud is not an error */
export async function composeAgent(first: AgentSettings, overrides: Overrides = {}): Promise<Agent> {
  await using started = new AsyncDisposableStack()
  const logBuffer = new LogBuffer()
  const timers = overrides.timers ?? systemTimers
  const time = overrides.time ?? started.adopt(openTimeSource(), (opened) => opened.close())
  const late: {
    keys?: DeviceKeys
    clock?: Clock
    callers?: Callers
    settings?: AgentSettings
    statusPage?: StatusServer
  } = {}
  const budget = new LogBudget({
    write: overrides.writeLog ?? writerOf(pino.destination(1)),
    sinceBoot: () => time.sinceBoot(),
    timers,
    perDay: () => (late.settings ?? first).log.perDayMax,
  })
  const write = (line: string): void => {
    logBuffer.add(line)
    budget.take(line)
  }
  const log = overrides.log ?? pino({ level: first.log.level, base: null }, { write })
  started.defer(() => budget.flush())
  const examine = ({ status, enrollment }: AgentSettings): void => {
    const open = enrollment.token === null ? null : openTokenFile(enrollment.token.source)
    if (open !== null) log.warn({ file: enrollment.token?.source }, open)
    const pem = status.port === null ? undefined : readStatusAuth(status).tls?.certificate
    const reason = pem === undefined ? null : certificateProblem(pem, [], time.wall())
    if (reason === null) return
    const file = status.certificateFile
    log.warn({ code: 'CERTIFICATE_NOT_VALID', file, reason }, `the certificate of the status page ${reason}`)
  }
  const live = new LiveSettings({
    table: agentOptions,
    settings: first,
    files: ({ status }) => (status.port === null ? {} : statusFiles(readStatusAuth(status))),
    prepare: (next) => {
      const isOtherLevel = next.log.level !== settings.log.level
      const rules = late.callers?.prepare(next.callers)
      // The files may have new contents under the same names.
      const auth = late.statusPage === undefined ? null : readStatusAuth(next.status)
      return () => {
        rules?.()
        if (auth !== null) late.statusPage?.renew(auth)
        examine(next)
        if (isOtherLevel) log.level = next.log.level
      }
    },
    log,
    now: () => late.clock?.reading().now ?? time.wall(),
  })
  const settings = live.view
  late.settings = settings
  const shutdown = new Shutdown(log)
  const onFatal = (error: unknown): void => shutdown.fail(error)

  const volatileLog = volatileLogOf(settings.state.directory, settings.writeBehind.directory, time.bootId)
  const leftLog = volatileLog.left()
  // First: it creates the state directory and locks out a second agent.
  const journal = await openJournal({
    path: join(settings.state.directory, 'journal.db'),
    later: [ownKeyFile(settings)],
    left: leftLog === undefined ? null : { log: leftLog, bootId: time.bootId },
    limits: {
      pagesMax: Math.floor(settings.state.ledgerMax / PAGE_BYTES),
      diskReservePages: Math.floor(settings.state.diskReserve / PAGE_BYTES),
      retentionMs: settings.state.retention,
      retainedBytesMax: settings.state.retainedMax,
      answersMax: settings.state.answersMax,
      recentEntries: Math.max(DECISIONS_MAX, settings.explain.decisions),
      pastRulesBytesMax: settings.explain.rulesMax,
      segmentEntriesMax: SEGMENT_ENTRIES_MAX,
    },
    sign: async (payload) => {
      if (late.keys === undefined) throw new Error('invariant: the key is loaded before a segment is sealed')
      return signDocument('segment', payload, late.keys.current.signer)
    },
    now: () => late.clock?.reading().now ?? time.wall(),
    log,
    onBroken: onFatal,
  })
  started.defer(() => journal.close())
  // The cloud would refuse another key.
  const keys = await openKeyFiles(keyFilesOf(settings), async () => (await journal.read()).identity === null)
  late.keys = keys

  const extraCa = settings.tls.caFile === null ? null : readAuthority(settings.tls.caFile)
  const outgoing = { proxy: proxyOf(settings.proxy, process.env), extraCa }
  const network = createExchange({ ...EXCHANGE_DEFAULTS, ...outgoing })
  started.defer(() => network.close())
  const exchange = overrides.exchange ?? network.exchange
  const fraction = (): number => systemRandomness.fraction()
  const version = softwareVersion()
  const agent = await assembleAgent({
    settings,
    reloadNotice: () => live.notice,
    journal,
    keys,
    time,
    elapsed: () => performance.now(),
    timers,
    randomness: systemRandomness,
    newId: randomUUID,
    names: systemNames(),
    ownUid: process.getuid?.() ?? 0,
    defer: setImmediate,
    volatileLog,
    cloud: (tokens) => createCloudHttp({ exchange, tokens, pause, fraction }),
    written: writtenBytes,
    lastBackup: () => readLastBackup(settings.state.directory),
    tokenFileProblem: () => tokenFileProblem(ENROLLMENT_TOKEN_FILE),
    push: pushOf(settings, overrides, outgoing),
    version,
    ...(overrides.engine === undefined ? {} : { engine: overrides.engine }),
    log,
    onFatal,
  })
  late.clock = agent.clock
  late.callers = agent.callers
  const { link } = agent
  started.defer(() => link.stop())

  if (settings.status.port !== null) agent.use.recall(await journal.recent(RECALLED_MAX))
  const machine = () => lookAtMachine(settings.state.directory)
  const status = await openStatusPage(
    settings,
    () => reportOf({ status: agent.status, journal, machine, refusals: agent.refusals, use: agent.use }),
    agent.readiness,
    log,
  )
  if (status !== null) late.statusPage = status
  examine(settings)
  started.defer(() => status?.stop())

  await link.start()
  const { passedSocket, supervisor } = overrides
  const socketPath = passedSocket?.path ?? settings.socket.path
  const socket = await openSocket({
    path: socketPath,
    ...(passedSocket === undefined ? {} : { passed: passedSocket.fd }),
    mode: Number.parseInt(settings.socket.mode, 8),
    bodyBytesMax: settings.socket.bodyMax,
    waitingMax: settings.socket.waitingMax,
    connectionsMax: settings.socket.connectionsMax,
    requestTimeoutMs: settings.socket.requestTimeout,
    access: agent.access,
    offers: agent.offers,
    sessions: agent.sessions,
    callers: { identify: openPeerCredentials(), rules: agent.callers },
    status: agent.status,
    cloudAddress: () => link.serviceUrl,
    rotateKey: () => link.rotateKey(),
    inspection: {
      decision: agent.decision,
      log: () => logBuffer.text(),
      refused: (error, request, caller) => agent.refusals.add(error, request, caller),
    },
    onFault: (error) => log.error({ err: error }, 'a request failed unexpectedly'),
  })
  const stopClock = agent.keepClock()
  agent.wear.start()
  const stopReleasing = releaseIdleMemory(timers, openUnusedMemory())
  const stopWatchdog = watch(supervisor, { ...agent, socketPath }, timers, log)
  agent.sessions.start()

  const parts = started.move()
  shutdown.begin({
    drain: async () => {
      supervisor?.stopping()
      await socket.stop(settings.socket.drainTimeout)
      await agent.drain()
    },
    abandon: () => socket.stop(0),
    release: async () => {
      stopWatchdog()
      stopReleasing()
      stopClock()
      agent.stop()
      await parts.disposeAsync()
    },
  })
  log.info(
    { socket: socketPath, status: status?.origin ?? null, state: settings.state.directory, version },
    'listening',
  )
  supervisor?.ready()
  return {
    socketPath,
    statusAddress: status?.origin ?? null,
    link,
    ended: shutdown.ended,
    reload: (load) => {
      live.reload(load)
      link.wake('operator')
    },
    stop: () => shutdown.stop(),
  }
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
  const fraction = (): number => systemRandomness.fraction()
  const now = (): number => performance.now()
  const { username, password } = settings.push
  const user = { username, password: password?.reveal() ?? null }
  return createMqttPush({ ...MQTT_DEFAULTS, ...user, ...outgoing, pause, fraction, now })
}

async function openStatusPage(
  { status }: AgentSettings,
  report: () => Promise<DeviceReportWire>,
  readiness: ReadinessProbe,
  log: Logger,
): Promise<StatusServer | null> {
  if (status.port === null) return null
  return openStatus({
    port: status.port,
    auth: readStatusAuth(status),
    report,
    readiness: () => readiness.check(),
    onFault: (error) => log.error({ err: error }, 'a request to the status page failed unexpectedly'),
  })
}

function statusFiles({ tls }: ReturnType<typeof readStatusAuth>): Record<string, string> {
  if (tls === null) return {}
  const ca = tls.clientCa === null ? {} : { 'status.client_ca_file': tls.clientCa }
  return { 'status.certificate_file': tls.certificate, 'status.key_file': tls.key, ...ca }
}

/** @throws CodedError CONFIG_UNREADABLE, CONFIG_INVALID */
function readAuthority(path: string): string {
  let pem: string
  try {
    pem = readFileSync(path, 'utf8')
  } catch (cause) {
    throw new CodedError('CONFIG_UNREADABLE', `tls.ca_file: ${path} cannot be read`, { cause })
  }
  if (!hasCertificate(pem)) throw new CodedError('CONFIG_INVALID', `tls.ca_file: ${path} has no PEM certificate.`)
  return pem
}
