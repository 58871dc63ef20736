/**
 * The composition root: the only file that names concrete adapters. Nothing answers before it can; shutdown runs in
 * reverse.
 */
import { createPublicKey, hkdfSync, randomUUID } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { createSecureContext } from 'node:tls'
import type { FastifyInstance } from 'fastify'
import { type Logger, pino } from 'pino'
import { CodedError } from '../protocol/errors.ts'
import { isLoopback } from '../protocol/sign-in.ts'
import { listenFailure } from '../protocol/listen-failure.ts'
import { LiveSettings } from '../settings/reload.ts'
import { thumbprint } from '../protocol/signing.ts'
import { ConsoleSignIn } from './console/sign-in.ts'
import { registerConsole } from './http/console/register-console.ts'
import { edgeOperations } from './http/edge/edge.ts'
import { registerHealth } from './http/health.ts'
import { registerSignIn } from './http/sign-in.ts'
import { registerDocs } from './http/openapi/register-docs.ts'
import { serveOperations } from './http/serve.ts'
import { serveWebSockets } from './http/web-sockets.ts'
import { Slots } from './http/slots.ts'
import { createServer } from './http/server.ts'
import { serviceOperations } from './http/service/service.ts'
import { zstd } from './platform/archive/compression.ts'
import { openPlace } from './platform/archive/open-place.ts'
import { openKeyFile } from './platform/key-file/key-file.ts'
import { openKeyring } from './platform/key-file/keyring-file.ts'
import { Metrics } from './platform/metrics/metrics.ts'
import {
  METRICS_PATH,
  countDecisions,
  countRequests,
  listenForMetrics,
  registerMetrics,
} from './platform/metrics/serve-metrics.ts'
import { openSinks } from './platform/events/open-sinks.ts'
import { openPush } from './platform/mqtt/open-push.ts'
import { IssuerKeys } from './platform/oidc/issuer-keys.ts'
import { awaitDatabase } from './storage/postgres/await-database.ts'
import { type PostgresStore, openPostgresStore } from './storage/postgres/store.ts'
import { claimStore } from './storage/sqlite/claim-store.ts'
import { holdsData } from './storage/sqlite/read-tables.ts'
import { openSqliteStore } from './storage/sqlite/store.ts'
import { makeDurableDirectory } from './platform/system/durable-directory.ts'
import { certificateProblem } from '../platform/certificate-problem.ts'
import { readLastBackup } from '../platform/last-backup.ts'
import { softwareVersion } from '../platform/software-version.ts'
import { openMarkFile } from './platform/system/mark-file.ts'
import { systemTimers, bootClock } from './platform/system/time.ts'
import { CloudShortages } from './sync/grants/cloud-shortages.ts'
import { Authenticator } from './service-api/authenticate.ts'
import { SignIn } from './service-api/sign-in.ts'
import { CLOCK_LOOK_EVERY_MS, ClockGuard, type Clocks, type PausedBy } from './runtime/clock-guard.ts'
import { announcePools } from './events/announce-pools.ts'
import { EventPublisher, type PublisherDeps } from './events/publish-events.ts'
import type { Sink } from './events/sink.ts'
import { FleetWatch } from './devices/watch-fleet.ts'
import { takeNextKey } from './devices/change-device-key.ts'
import { claimSigningKey } from './devices/claim-signing-key.ts'
import { type Keyring, LiveKeyring } from './devices/keyring.ts'
import { registerFirstKey } from './service-api/change-keys.ts'
import { type ExpireInactive, expireNextInactive } from './sync/grants/expire-inactive.ts'
import { notifyServable, recallEveryMs, recallForCloud } from './sync/grants/watch-shortages.ts'
import { Policies } from './policy/load-policy.ts'
import { changeSharedRules, renewDuePolicy } from './policy/bump-policy-revision.ts'
import { endRecoveries } from './sync/recovery/recovery.ts'
import { Sales, TURN_EVERY_MS } from './sync/recovery/sales.ts'
import { giveWayTo } from './runtime/give-way.ts'
import { type RepeatedJobDeps, type Timers, runRepeatedly } from './runtime/run-repeatedly.ts'
import { forgetTraffic } from './storage/audit.ts'
import { forgetAnswers } from './service-api/idempotency-key.ts'
import { AccessBatcher } from './service-api/request-access.ts'
import { heartbeatOfDevice, sweepNextSession } from './sessions/session-life.ts'
import type { Store } from './storage/store.ts'
import { watchStore } from './storage/watch-store.ts'
import type { EdgeTerms } from './devices/terms.ts'
import { type CloudSettings, cloudOptions } from './settings.ts'
import { EventRetention } from './events/event-retention.ts'
import { ArchiveDaily } from './usage/archive/archive-daily.ts'

export interface Overrides {
  readonly log?: Logger
  readonly now?: () => number
  /** Default: derived from `now` if given, else the machine's. */
  readonly boot?: Pick<Clocks, 'sinceBoot' | 'bootId'>
  readonly newId?: () => string
  readonly timers?: Timers
  /** How the start waits for signs of life of other nodes. */
  readonly pause?: (ms: number) => Promise<unknown>
  /** Called for responses that their operation does not declare, if checking is on. Default: logs them. */
  readonly onWrongAnswer?: (error: Error) => void
  readonly stop?: AbortSignal
}

export interface Cloud {
  readonly address: string
  readonly metricsAddress: string
  /** Private key of the first administrator, PEM; exists if this cloud created it. */
  readonly administrationKeyFile: string
  /**
   * Rejects when the cloud stopped because of a failure, after all resources are released; resolves after {@link
   * Cloud.close}.
   */
  readonly ended: Promise<void>
  /**
   * Applies changed settings that can change at run time, and reloads the certificate. On any error all keep their
   * values, and log and metrics report it.
   * @param load reads all sources of the settings again. @throws CodedError
   */
  reload(load: () => CloudSettings): void
  /** Stops accepting requests, finishes those in progress, and stops. Idempotent. */
  close(): Promise<void>
}

const REAP_EVERY_MS = 50

const TOTALS_TIMEOUT_MS = 2_000

/** Part of the concurrent requests that may wait for the OpenID Connect provider. */
const PART_OF_SIGN_INS = 1 / 4

const FORGET_EVERY_MS = 60_000

/** How often to look whether archiving is due, ms. */
const ARCHIVE_EVERY_MS = 60_000

/** How often to make partitions of the usage in advance, and to drop archived ones, ms. */
const PARTITIONS_EVERY_MS = 60_000

/** How often the metrics of instances change, ms. */
const FLEET_EVERY_MS = 60_000

/** How often to look for policies to renew: calendars last for weeks. */
const POLICIES_EVERY_MS = 60_000

/** How often to look for devices that were short of tokens that are available again, ms. */
const NOTIFY_EVERY_MS = 1_000

/** Shortest interval between recalls for the cloud's own needs; the sync interval can be this short, ms. */
const RECALL_EVERY_MIN_MS = 1_000

const SETTLE_EVERY_MS = 60_000

/** How often a sink looks for new events, ms. */
const EVENTS_EVERY_MS = 1_000

const MARK_EVERY_MS = 1_000

/** @throws CodedError when the store, a key, the certificate or the address cannot be used */
export async function startCloud(first: CloudSettings, overrides: Overrides = {}): Promise<Cloud> {
  await using started = new AsyncDisposableStack()
  const log = overrides.log ?? pino({ level: first.log.level, base: null })
  const now = overrides.now ?? Date.now
  const late: { renewCertificate?: (tls: Certificate) => void } = {}
  const examine = ({ tls, http, push }: CloudSettings, certificate: Certificate | null): void => {
    if (certificate === null) return
    const reason = certificateProblem(certificate.certificate, hostsOf(http, push), now())
    if (reason === null) return
    const file = tls.certificateFile
    log.warn({ code: 'CERTIFICATE_NOT_VALID', file, reason }, `the certificate ${reason}`)
  }
  const live = new LiveSettings({
    table: cloudOptions,
    settings: first,
    files: ({ tls }) => {
      const read = readTls(tls)
      return read === null ? {} : { 'tls.certificate_file': read.certificate, 'tls.key_file': read.key }
    },
    prepare: (next) => {
      const isOtherLevel = next.log.level !== settings.log.level
      const certificate = readTls(next.tls)
      requireSignInSettings(next.oidc)
      requireArchive(next)
      return () => {
        examine(next, certificate)
        if (isOtherLevel) log.level = next.log.level
        if (certificate !== null) late.renewCertificate?.(certificate)
      }
    },
    log,
    now,
  })
  const settings = live.view
  requireArchive(settings)
  const newId = overrides.newId ?? randomUUID
  const timers = overrides.timers ?? systemTimers
  const { prefix } = settings.http
  if (!/^(\/[^/\s?#]+)*$/.test(prefix)) {
    throw new CodedError('CONFIG_INVALID', `http.prefix is ${JSON.stringify(prefix)}, but takes a path like "/name".`)
  }

  const ending = Promise.withResolvers<undefined>()
  // Callers observe the original promise; this avoids an unhandled rejection.
  ending.promise.catch(() => undefined)
  let fail = (error: unknown): void => ending.reject(error)

  /** Called when a stop has taken as long as it may: they cut what does not respond. */
  const cuts: (() => void)[] = []
  const limit = { cancel: (): void => undefined }
  const limitStop = (): void => {
    limit.cancel()
    limit.cancel = timers.every(settings.http.drainTimeout, () => cuts.forEach((cut) => cut()))
  }
  started.defer(() => {
    overrides.stop?.removeEventListener('abort', limitStop)
    limit.cancel()
  })
  overrides.stop?.addEventListener('abort', limitStop)

  const directory = settings.store.path
  makeDirectory(directory)
  if (settings.db === null) started.defer(claimStore(join(directory, 'twin.lock')))
  const database = await openStore(settings, log, (error) => fail(error), overrides.stop)
  started.defer(() => database.close())
  cuts.push(() => database.cut())
  await requireMigrated(settings, database)
  const administrationKeyFile = join(directory, 'administration-key.pem')
  await giveFirstKey(database, administrationKeyFile, log, now())
  const signingKeyFile = join(directory, 'signing-key.pem')
  const openKeys = () => openSigningKey(signingKeyFile, database, settings.keys.replaceSigning, now())
  const keys = new LiveKeyring(await openKeys())

  const policies = new Policies({ max: settings.policy.cacheMax, undecidedClock: settings.policy.undecidedClock })
  const markFile = openMarkFile(join(directory, 'sales.mark'))
  started.defer(() => markFile.close())
  const sales = new Sales({
    store: database,
    file: markFile,
    policies,
    shared: settings.db !== null,
    restored: settings.store.restored,
    now,
    newId,
    pause: overrides.pause ?? sleep,
    onRecovery: (reason) =>
      log.warn({ code: 'STORE_RESTORED', reason }, 'the store comes from a backup: recovery begins'),
    onBroken: (error) => fail(error),
  })
  // Before the first client: nothing sold after the backup may be sold again.
  await sales.start()
  started.defer(() => sales.close())

  const metrics = new Metrics({
    version: softwareVersion(),
    totals: () => database.read((reader) => reader.totals()),
    totalsTimeoutMs: TOTALS_TIMEOUT_MS,
    // Administrators back up PostgreSQL with its own tools.
    lastBackupAt: () => (settings.db === null ? (readLastBackup(directory)?.at ?? null) : null),
    paused: () => paused(),
  })
  const poolTerms = { lowPercent: () => settings.events.lowPercent, now }
  const store = watchStore(announcePools(sales.store, poolTerms), metrics, () => performance.now())
  const comparesDatabase = overrides.now === undefined
  const boot = overrides.boot ?? (comparesDatabase ? bootClock() : { bootId: '', sinceBoot: now })
  const clocks: Clocks = { now, ...boot, comparesDatabase }
  const clock = new ClockGuard({ store, clocks, log, settleAfterMs: () => settings.edge.settleAfter })
  const trustsClock = (): boolean => clock.isTrusted()
  const present = (): number => clock.present()
  await clock.look()
  const onKeyReplaced = (deviceId: string): void => push.drop(deviceId)
  const signIn = signInOf(settings, now, log)
  const authenticator = new Authenticator({
    store,
    defer: setImmediate,
    takeNextKey: (deviceId, used) => takeNextKey({ store, now, onKeyReplaced }, deviceId, used),
    signIn,
  })
  const reloadKeys = async (): Promise<void> => {
    try {
      if (!keys.replace(await openKeys())) return
      // Policies also tell devices which keys to trust.
      await store.transaction((tx) => changeSharedRules(tx, now(), async () => undefined))
      log.info({ keyId: keys.signer.keyId, trusted: keys.trusted.map(({ keyId }) => keyId) }, 'signing keys reloaded')
    } catch (error) {
      log.error({ err: error }, 'signing keys not reloaded')
    }
  }
  const tls = readTls(settings.tls)
  examine(settings, tls)
  const push = await openPush({ settings: settings.push, tls, store, authenticator, now, newId, timers, log })
  started.defer(() => push.close())
  const { http, stopAccepting, renewCertificate } = createServer({
    prefix,
    bodyMax: settings.http.bodyMax,
    requestTimeoutMs: settings.http.requestTimeout,
    logger: log,
    newId,
    tls,
    onWrongAnswer: settings.http.checkAnswers ? (overrides.onWrongAnswer ?? (() => undefined)) : null,
    onBrokenBody: () => metrics.brokenBody(),
  })
  countRequests(http, metrics)
  registerHealth(
    http,
    () => store.read((reader) => reader.keys.countAdministration()),
    () => paused(),
  )
  const sinks = await openSinks(settings.events, now)
  const { trialInterval } = settings.sessions
  const sessionIntervalMs = trialInterval === 0 ? null : trialInterval
  const terms = termsOf(settings.edge, sessionIntervalMs)
  const shortages = new CloudShortages(terms)
  const service = {
    store,
    policies,
    shortages,
    batcher: new AccessBatcher(store, policies, shortages, setImmediate),
    newId,
    keyDelayMs: settings.keys.delay,
    tenantId: settings.usage.tenantId,
    giveWay: giveWayTo(() => performance.now(), setImmediate),
    sessionIntervalMs,
    trustsClock,
  }
  const publicAddress = (): string => `${settings.http.publicUrl?.replace(/\/+$/, '') ?? http.listeningOrigin}${prefix}`
  let isSettlementPaused = false
  const settlement: ExpireInactive = {
    store,
    policies,
    present,
    get afterMs() {
      return settings.edge.settleAfter
    },
    get as() {
      return settings.edge.settleAs === 'charge' ? 'CHARGED' : 'RELEASED'
    },
    get percentMax() {
      return settings.edge.settlePercentMax
    },
    onPaused: (paused) => {
      if (paused && !isSettlementPaused)
        log.warn({ code: 'SETTLEMENT_TOO_LARGE' }, 'settlement waits for an administrator')
      isSettlementPaused = paused
    },
  }
  const paused = (): readonly PausedBy[] => [
    ...(clock.doubt === null ? [] : [clock.doubt.code]),
    ...(isSettlementPaused ? (['SETTLEMENT_TOO_LARGE'] as const) : []),
  ]
  const consoleSignIn = servesConsole(settings.http)
    ? new ConsoleSignIn({ store, newId, secret: consoleSecret(signingKeyFile) })
    : null
  const presence = (deviceId: string) => push.presence(deviceId)
  const commands = { store, now, present, sessions: service, onRevoked: (deviceId: string) => push.drop(deviceId) }
  const forDevices = edgeOperations({
    ...commands,
    console: consoleSignIn,
    keys,
    policies,
    terms,
    newId,
    addresses: () => ({
      edge: `${publicAddress()}/edge/api/v1`,
      service: `${publicAddress()}/api`,
      push: push.url,
    }),
    heartbeat: (tx, device, at, locked) => heartbeatOfDevice(tx, device.id, at, locked),
    presence,
    onKeyReplaced,
    onOutcome: (outcome) => metrics.sync(outcome),
    onRestored: (deviceId, instances) => {
      log.warn({ code: 'STORE_RESTORED', deviceId, instances }, 'the store comes from a backup: recovery begins')
    },
    trustsClock,
    giveWay: service.giveWay,
    sweeps: { clock, settlement },
    sinks,
    tenantId: settings.usage.tenantId,
  })

  const operations = [...countDecisions(serviceOperations(service), metrics), ...forDevices]
  const { requestsMax, requestsPerKeyMax, requestTimeout } = settings.http
  const serving = {
    store,
    keys,
    authenticator,
    slots: new Slots({ requestsMax, ofKeyMax: requestsPerKeyMax, now: () => performance.now() }),
    requestTimeoutMs: requestTimeout,
    now,
    version: softwareVersion(),
  }
  serveOperations(http, prefix, serving, operations)
  registerSignIn(http, prefix, signIn)
  registerDocs(http, prefix, operations)
  if (consoleSignIn !== null) {
    const { slots } = serving
    registerConsole(http, prefix, {
      ...{ store, policies, presence, terms, authenticator, slots, now, signIn: consoleSignIn },
      ...{ sessions: service, devices: commands, tenantId: settings.usage.tenantId },
      isSecure: () => publicAddress().startsWith('https:'),
    })
  }

  if (push.accept !== null) serveWebSockets(http, `${prefix}/push`, push.accept)
  const metricsOrigin = await openMetrics(settings.metrics, http, metrics, started)

  const { host, port } = settings.http
  const origin = await listen(() => http.listen({ host, port }), host, port)
  cuts.push(() => http.server.closeAllConnections())
  started.defer(async () => {
    // Connections may become idle after the server has closed the idle ones.
    const reap = setInterval(() => http.server.closeIdleConnections(), REAP_EVERY_MS)
    await http.close()
    clearInterval(reap)
  })

  const sweep = (): Promise<boolean> => sweepNextSession(service, now())
  const sharing = { store, policies, now, terms }
  const renew = (): Promise<boolean> => store.transaction((tx) => renewDuePolicy(tx, now()))
  let recalledAt = -Infinity
  const recall = async (): Promise<false> => {
    const at = now()
    if (Math.abs(at - recalledAt) < recallEveryMs(terms)) return false
    recalledAt = at
    return recallForCloud(sharing)
  }
  const settle = async (): Promise<boolean> => trustsClock() && expireNextInactive(settlement)
  const look = async (): Promise<false> => {
    await clock.look()
    return false
  }
  const forgetSessions = async (): Promise<boolean> => {
    const { sessionRetention, sessionsMax } = settings.audit
    return forgetTraffic(store, trustsClock() ? now() - sessionRetention : 0, sessionsMax)
  }
  publishEvents(sinks, started, {
    ...{ store, now, log, timers, tenantId: settings.usage.tenantId, fraction: Math.random, watcher: metrics },
    // Only one process uses a file, and its lease need not expire when it is killed.
    nodeId: settings.db === null ? 'file' : newId(),
  })
  const eventRetention = new EventRetention({
    ...{ store, now, trustsClock, log },
    terms: () => ({
      retentionMs: settings.events.retention,
      undeliveredRetentionMs: settings.events.undeliveredRetention,
    }),
  })
  const archive = new ArchiveDaily({
    store,
    compression: zstd,
    tenantId: settings.usage.tenantId,
    now,
    giveWay: service.giveWay,
    terms: () => archiveTerms(settings.usage),
    open: (place, signal) => openPlace(place, settings.s3, signal),
    newHolder: () => `The cloud on ${hostname()}, process ${process.pid} (${newId()})`,
    trustsClock,
    onArchive: ({ place, manifest, records }) => {
      metrics.archive.archived(records)
      log.info({ place, manifest, records }, 'usage was archived')
    },
    onState: (state) => metrics.archive.state(state),
  })
  const fleet = new FleetWatch({ store, policies, terms, now, onRound: (figures) => metrics.fleet(figures) })
  const jobs = { timers, log }
  const keepPartitions = async (): Promise<false> => {
    await database.keepPartitions()
    return false
  }
  for (const job of [
    runRepeatedly(jobs, CLOCK_LOOK_EVERY_MS, look, 'the clocks were not compared'),
    runRepeatedly(jobs, MARK_EVERY_MS, () => sales.flush(), 'the sales mark was not flushed'),
    ...(settings.db === null
      ? []
      : [
          runRepeatedly(jobs, TURN_EVERY_MS, () => sales.turn(), 'the sales mark was not compared'),
          runRepeatedly(jobs, PARTITIONS_EVERY_MS, keepPartitions, 'the partitions of the usage were not kept'),
        ]),
    runRepeatedly(jobs, SETTLE_EVERY_MS, () => endRecoveries(store, now()), 'a recovery was not ended'),
    runRepeatedly(jobs, SETTLE_EVERY_MS, settle, 'a silent device was not settled'),
    runRepeatedly(jobs, NOTIFY_EVERY_MS, () => notifyServable(sharing), 'devices were not notified of tokens'),
    runRepeatedly(jobs, RECALL_EVERY_MIN_MS, recall, 'tokens were not recalled for the cloud'),
    runRepeatedly(jobs, settings.sessions.sweepEvery, sweep, 'a session was not moved on'),
    runRepeatedly(jobs, FORGET_EVERY_MS, () => forgetAnswers(store, now()), 'old answers were not deleted'),
    runRepeatedly(jobs, FORGET_EVERY_MS, forgetSessions, 'old records of sessions were not deleted'),
    runRepeatedly(jobs, FORGET_EVERY_MS, () => eventRetention.step(), 'old events were not deleted'),
    runRepeatedly(jobs, ARCHIVE_EVERY_MS, () => archive.step(), 'usage was not archived'),
    runRepeatedly(jobs, POLICIES_EVERY_MS, renew, 'a policy was not renewed'),
    runRepeatedly(jobs, FLEET_EVERY_MS, () => fleet.step(), 'the figures of an instance were not read'),
  ]) {
    started.defer(() => job.stop())
  }
  started.defer(() => archive.stop())
  started.defer(() => stopAccepting())

  late.renewCertificate = ({ certificate, key }) => {
    renewCertificate({ certificate, key })
    push.renewCertificate({ certificate, key })
  }

  const parts = started.move()
  let isShuttingDown = false
  const end = async (error: unknown): Promise<void> => {
    if (isShuttingDown) return
    isShuttingDown = true
    if (error !== undefined) log.fatal({ err: error }, 'the twin must end')
    limitStop()
    await parts.disposeAsync().catch((failure: unknown) => log.error({ err: failure }, 'the stop failed'))
    if (error === undefined) ending.resolve(undefined)
    else ending.reject(error)
  }
  fail = (error) => void end(error)
  const address = `${origin}${prefix}`
  log.info(
    { http: address, push: push.local, metrics: metricsOrigin, store: directory, adminKeyFile: administrationKeyFile },
    'listening',
  )
  return {
    address,
    metricsAddress: `${metricsOrigin ?? origin}${METRICS_PATH}`,
    administrationKeyFile,
    ended: ending.promise,
    reload: (load) => {
      live.reload(load)
      void reloadKeys()
      metrics.reloaded(live.notice?.code !== 'CONFIG_NOT_RELOADED')
    },
    close: async () => {
      await end(undefined)
      await ending.promise.catch(() => undefined)
    },
  }
}

function publishEvents(
  sinks: readonly Sink[],
  started: AsyncDisposableStack,
  deps: Omit<PublisherDeps, 'sink'> & RepeatedJobDeps,
): void {
  for (const sink of sinks) {
    const publisher = new EventPublisher({ ...deps, sink })
    const job = runRepeatedly(deps, EVENTS_EVERY_MS, () => publisher.step(), `events were not sent to ${sink.name}`)
    started.defer(async () => {
      publisher.stop()
      await job.stop()
      await publisher.release()
      await sink.close()
    })
  }
}

function servesConsole({ console, host }: CloudSettings['http']): boolean {
  return console === 'on' || (console === 'loopback' && isLoopback(host === '::1' ? '[::1]' : host))
}

/** Encrypts the codes of sign-ins to the console: the same on all nodes, which share the signing key. */
function consoleSecret(signingKeyFile: string): Uint8Array {
  const { privateKey } = openKeyFile(signingKeyFile, 'Ed25519')
  return new Uint8Array(
    hkdfSync('sha256', privateKey.export({ type: 'pkcs8', format: 'der' }), '', 'tallygate console codes', 32),
  )
}

/** The origin of a separate metrics address; null: metrics share the main address. */
async function openMetrics(
  { listen: at, token }: CloudSettings['metrics'],
  http: FastifyInstance,
  metrics: Metrics,
  started: AsyncDisposableStack,
): Promise<string | null> {
  const secret = token?.reveal() ?? null
  if (at === null) {
    registerMetrics(http, metrics, secret)
    return null
  }
  const { bracketed, name, port } =
    /^(?:\[(?<bracketed>[^\]]+)\]|(?<name>[^:[\]]+)):(?<port>\d{1,5})$/.exec(at)?.groups ?? {}
  const host = bracketed ?? name
  if (host === undefined || port === undefined || Number(port) > 65_535) {
    throw new CodedError('CONFIG_INVALID', `metrics.listen is ${JSON.stringify(at)}, but takes host:port.`)
  }
  const onFault = (error: unknown): void => http.log.error({ err: error }, 'the metrics failed')
  const open = () => listenForMetrics({ host, port: Number(port) }, metrics, secret, onFault)
  const listener = await listen(open, host, Number(port))
  started.defer(() => listener.close())
  return listener.origin
}

async function openStore(
  { db, dbPassword, dbWait, dbStandby, store: { path, check } }: CloudSettings,
  log: Logger,
  onBroken: (error: unknown) => void,
  signal = new AbortController().signal,
): Promise<PostgresStore> {
  if (db === null) {
    // A file responds.
    const file = openSqliteStore({ path: join(path, 'twin.db'), check, onBroken })
    return { ...file, keepPartitions: async () => undefined, cut: () => undefined }
  }
  const open = () =>
    openPostgresStore({
      url: db,
      password: dbPassword?.reveal() ?? null,
      requiresStandby: dbStandby,
      onRerun: (error) => log.debug({ err: error }, 'a transaction starts over'),
      onConnectionLost: (error) => log.warn({ err: error }, 'a connection to the database was lost'),
    })
  return awaitDatabase(open, { waitMs: dbWait, signal, log })
}

/** @throws CodedError STORE_NOT_MIGRATED if the data of this cloud is in its directory, and not in its database */
async function requireMigrated({ db, store: { path, startEmpty } }: CloudSettings, store: Store): Promise<void> {
  const file = join(path, 'twin.db')
  if (db === null || startEmpty || !holdsData(file)) return
  // Every cloud that has started has registered a key.
  if ((await store.read((reader) => reader.keys.countAdministration())) > 0) return
  throw new CodedError('STORE_NOT_MIGRATED', `The PostgreSQL database is empty, but ${file} contains data.`)
}

/** @throws CodedError SIGNING_KEY_DIFFERS, KEY_UNUSABLE, STATE_UNWRITABLE */
async function openSigningKey(path: string, store: Store, replacement: string | null, now: number): Promise<Keyring> {
  const file = {
    path,
    exists: () => existsSync(path),
    open: async () => {
      const { signer, succeeded } = await openKeyring(path)
      return { keyId: signer.keyId, succeeded }
    },
  }
  await claimSigningKey(store, file, replacement, now)
  return openKeyring(path)
}

function makeDirectory(path: string): void {
  try {
    makeDurableDirectory(path)
  } catch (cause) {
    throw new CodedError('STATE_UNWRITABLE', `${path} cannot be made.`, { cause })
  }
}

async function giveFirstKey(store: Store, path: string, log: Logger, now: number): Promise<void> {
  const keyId = await registerFirstKey(
    store,
    async () => {
      const publicKey = createPublicKey(openKeyFile(path, 'P-256').privateKey)
      const id = await thumbprint(publicKey.export({ format: 'jwk' }))
      return { id, pem: publicKey.export({ type: 'spki', format: 'pem' }) }
    },
    now,
  )
  if (keyId !== undefined) log.info({ path, keyId }, 'the first administration key was made')
}

/** A reload may change these, so they are read at each use. */
function termsOf(edge: CloudSettings['edge'], sessionIntervalMs: number | null): EdgeTerms {
  return {
    get grantLifetimeMs() {
      return edge.grantLifetime
    },
    get syncEveryMs() {
      return edge.syncEvery
    },
    get receiptMarginMs() {
      return edge.receiptMargin
    },
    get attachesMax() {
      return edge.attachesMax
    },
    grantHorizonMs: edge.grantHorizon,
    policyUsableMs: edge.policyUsable,
    sessionIntervalMs,
  }
}

/** Null: usage stays in the database. @throws CodedError CONFIG_INVALID */
function archiveTerms({ retention, archive }: CloudSettings['usage']): { retentionMs: number; place: string } | null {
  if (retention === 0) return null
  if (archive === null) throw new CodedError('CONFIG_INVALID', 'usage.retention needs usage.archive.')
  return { retentionMs: retention, place: archive }
}

/** @throws CodedError CONFIG_INVALID */
function requireArchive({ usage, s3 }: CloudSettings): void {
  const terms = archiveTerms(usage)
  if (terms !== null) openPlace(terms.place, s3, new AbortController().signal)
}

/** Null: administrators use keys only. @throws CodedError CONFIG_INVALID */
function signInOf({ oidc, http }: CloudSettings, now: () => number, log: Logger): SignIn | null {
  const terms = requireSignInSettings(oidc)
  if (terms === null) return null
  const waitingMax = Math.floor(http.requestsMax * PART_OF_SIGN_INS)
  const keys = new IssuerKeys({ issuer: terms.issuer, timeoutMs: oidc.timeout, waitingMax, now, log })
  return new SignIn(
    {
      ...terms,
      scopes: oidc.scopes,
      rolesClaim: oidc.rolesClaim,
      algorithms: oidc.algorithms,
      // A reload may change these.
      get access() {
        return oidc.access ?? []
      },
      get maxAgeMs() {
        return oidc.maxAge
      },
    },
    keys.find,
  )
}

/** Null: all three are omitted. @throws CodedError CONFIG_INVALID */
function requireSignInSettings({
  issuer,
  clientId,
  access,
}: Pick<CloudSettings['oidc'], 'issuer' | 'clientId' | 'access'>): { issuer: string; clientId: string } | null {
  if (issuer === null && clientId === null && access === null) return null
  if (issuer === null || clientId === null || access === null) {
    throw new CodedError('CONFIG_INVALID', 'oidc.issuer, oidc.client_id and oidc.access go together: one is missing.')
  }
  const { protocol, hostname, username, search, hash } = new URL(issuer)
  if (username !== '' || search !== '' || hash !== '') {
    throw new CodedError('CONFIG_INVALID', 'oidc.issuer takes a URL without user name, query and fragment.')
  }
  if (protocol !== 'https:' && !isLoopback(hostname)) {
    throw new CodedError(
      'CONFIG_INVALID',
      `oidc.issuer must begin with https://, because ${hostname} is another machine.`,
    )
  }
  return { issuer, clientId }
}

/** Names and addresses by which clients reach the certificate of this cloud, as far as the settings say. */
function hostsOf(http: CloudSettings['http'], push: CloudSettings['push']): readonly string[] {
  const own = ['0.0.0.0', '::'].includes(http.host) ? [] : [http.host]
  const named = [http.publicUrl, push.broker === 'embedded' ? push.publicUrl : null]
    .filter((url) => url !== null)
    .map((url) => new URL(url))
    .filter(({ protocol }) => /^(https|wss|mqtts):$/.test(protocol))
    .map(({ hostname }) => hostname.replace(/^\[(.*)\]$/, '$1'))
  // Behind a proxy with its own certificate, or on an address of all networks, only the public names count.
  return [...new Set(named.length > 0 || http.publicUrl !== null ? named : own)]
}

interface Certificate {
  readonly certificate: string
  readonly key: string
}

/** @throws CodedError CONFIG_INVALID, CONFIG_UNREADABLE */
function readTls({ certificateFile, keyFile }: CloudSettings['tls']): Certificate | null {
  if (certificateFile === null && keyFile === null) return null
  if (certificateFile === null || keyFile === null) {
    throw new CodedError('CONFIG_INVALID', 'tls.certificate_file and tls.key_file go together: one of them is missing.')
  }
  const tls = { certificate: readPem(certificateFile), key: readPem(keyFile) }
  try {
    createSecureContext({ cert: tls.certificate, key: tls.key })
  } catch (cause) {
    throw new CodedError('CONFIG_INVALID', `${certificateFile} and ${keyFile} do not go together, or are no PEM.`, {
      cause,
    })
  }
  return tls
}

function readPem(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    throw new CodedError('CONFIG_UNREADABLE', `${path} cannot be read.`, { cause })
  }
}

/** @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED */
async function listen<T>(start: () => Promise<T>, host: string, port: number): Promise<T> {
  try {
    return await start()
  } catch (cause) {
    throw listenFailure(cause, `${host}:${port}`)
  }
}
