/**
 * The composition root. With `compose-cell.ts` and `open-cell.ts`, it selects the concrete adapters. Nothing answers before
 * it can; shutdown runs in reverse.
 */
import { hkdfSync, randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { createServer as createTcpServer } from 'node:net'
import { join } from 'node:path'
import type { FastifyInstance } from 'fastify'
import type { Logger } from 'pino'
import { unwritableState } from '../protocol/file-reasons.ts'
import { flush } from '../platform/flush.ts'
import { certificateExpiry } from '../platform/certificate-problem.ts'
import { isLoopback } from '../platform/is-loopback.ts'
import { listenOn } from '../platform/listen-on.ts'
import { listenFailure } from '../protocol/listen-failure.ts'
import { LiveSettings } from '../settings/reload.ts'
import { CellWatch } from './cells/watch-cells.ts'
import {
  archiveTerms,
  examine,
  examineAddresses,
  metricsPlace,
  requireConsistent,
  signInIssuer,
} from './check-settings.ts'
import type { CellDeps, ComposedCell } from './compose-cell.ts'
import {
  type ComposedCells,
  cellsOf,
  composeCells,
  requireOneWorking,
  runCellWatch,
  startCells,
} from './compose-cells.ts'
import { ConsoleSignIn } from './console/sign-in.ts'
import { type ConsoleDeps, registerConsole } from './http/console/register-console.ts'
import { registerHealth } from './http/health.ts'
import { registerSignIn } from './http/sign-in.ts'
import { registerDocs } from './http/openapi/register-docs.ts'
import { type OverCells, authenticatorOver, routeOverCells } from './http/route-over-cells.ts'
import { serveOperations } from './http/serve.ts'
import { serveWebSockets } from './http/web-sockets.ts'
import { Entrance } from './http/entrance.ts'
import { Slots } from './http/slots.ts'
import { type Server, createServer } from './http/server.ts'
import { type Cell, type CellNode, isShared } from './open-cell.ts'
import { openPlace } from './platform/archive/open-place.ts'
import { openKeyFile } from './platform/key-file/key-file.ts'
import { openKeyring } from './platform/key-file/keyring-file.ts'
import { Metrics, type MetricsSource, merged } from './platform/metrics/metrics.ts'
import { METRICS_PATH, listenForMetrics, registerMetrics } from './platform/metrics/serve-metrics.ts'
import { type Push, openPush } from './platform/mqtt/open-push.ts'
import { IssuerKeys } from './platform/oidc/issuer-keys.ts'
import { awaitDatabase } from './storage/postgres/await-database.ts'
import { databaseAddress } from './storage/postgres/hosts.ts'
import { claimStore } from './storage/sqlite/claim-store.ts'
import { readLastBackup } from '../platform/last-backup.ts'
import { createLog, logOutput } from '../platform/log-output.ts'
import { makeDurableDirectory } from '../platform/make-directories.ts'
import { CONNECTIONS_WAITING_MAX, openConnections } from '../platform/open-connections.ts'
import { type Certificate, readCertificate } from '../platform/read-certificate.ts'
import { readAuthorityFile, readSettingFile } from '../platform/read-setting-file.ts'
import { requireOwnDirectory } from '../platform/require-own-directory.ts'
import type { Service } from '../platform/run-service.ts'
import { Shutdown } from '../platform/shutdown.ts'
import { softwareVersion } from '../platform/software-version.ts'
import { parseSecrets } from './platform/events/webhook.ts'
import { systemTimers, bootClock } from './platform/system/time.ts'
import { SignIn } from './service-api/sign-in.ts'
import { ConnectingClients } from './runtime/connecting-clients.ts'
import type { Clocks, PausedBy } from './runtime/clock-guard.ts'
import { StopLimit } from './runtime/stop-limit.ts'
import { LiveKeyring } from './devices/keyring.ts'
import { changeSharedRules } from './policy/bump-policy-revision.ts'
import type { Timers } from './runtime/run-repeatedly.ts'
import { type CloudSettings, cloudOptions } from './settings.ts'

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
  readonly supervisor?: { ready(): void; stopping(): void }
}

export interface Cloud extends Service<CloudSettings> {
  readonly address: string
  readonly metricsAddress: string
  /** Private key of the first administrator, PEM; exists if this cloud created it. */
  readonly administrationKeyFile: string
}

const REAP_EVERY_MS = 50

const TOTALS_TIMEOUT_MS = 2_000

/** Part of the concurrent requests that may wait for the OpenID Connect provider. */
const PART_OF_SIGN_INS = 1 / 4

/** @throws CodedError when the store, a key, the certificate or the address cannot be used */
export async function startCloud(first: CloudSettings, overrides: Overrides = {}): Promise<Cloud> {
  await using started = new AsyncDisposableStack()
  const { now = Date.now, newId = randomUUID, timers = systemTimers, stop = new AbortController().signal } = overrides
  const log = overrides.log ?? createLog(first.log.level, logOutput())
  const renewals: RenewCertificate[] = []
  const live = liveSettings(first, { log, now, renewals })
  const settings = live.view
  requireUsable(settings)
  const shutdown = new Shutdown(log)
  const limit = started.use(new StopLimit({ timers, limitMs: () => settings.http.drainTimeout, stop }))

  claimDirectory(settings, started)
  await requireFreeAddresses(settings)
  const entrance = new Entrance()
  const { requestsMax, requestsPerKeyMax } = settings.http
  const slots = new Slots({ requestsMax, ofKeyMax: requestsPerKeyMax, now: () => performance.now() })
  const node = nodeOf({ settings, log, now, newId }, overrides, { entrance, slots }, (error) => shutdown.fail(error))
  const cells = cellsOf(node)
  for (const cell of cells) {
    started.defer(() => cell.stop())
    limit.onOver(() => cell.cut())
  }
  await awaitDatabase(() => startCells(cells), { waitMs: settings.dbWait, signal: stop, log })
  const keys = new LiveKeyring(await openKeyring(node.signingKeyFile))
  const metrics = settings.cells === null ? cells[0].metrics : nodeMetrics(node.metricsDeps)
  const tls = readCertificate('tls', settings.tls)
  if (tls !== null) watchCertificate(tls, { settings, log, now, timers, renewals, metrics }, started)
  examineAddresses(settings, log)
  const server = openServer({ settings, log, newId, tls, metrics, onWrongAnswer: overrides.onWrongAnswer })
  const { http } = server
  limit.onOver(openConnections(http.server))

  const services = await openServices(node, cells, { settings, log, now, newId, timers, keys, http, tls })
  const { composed, watch, push } = services
  started.defer(() => push.close())
  renewals.push(server.renewCertificate, (renewed) => push.renewCertificate(renewed))

  registerHealthOf(http, cells, watch)
  registerRoutes(server, { ...services, settings, now, keys, entrance, slots })
  const shown = watch === null ? metrics : merged([metrics, ...cells.map((cell) => cell.metrics)])
  const metricsOrigin = await openMetrics(settings.metrics, http, shown, started)
  const origin = await listenForRequests(server, settings.http, started)
  for (const cell of composed.cells) cell.run(started)
  if (watch !== null) runCellWatch(watch, cells, { timers, log }, started)
  started.defer(() => server.stopAccepting())

  const running = started.move()
  shutdown.begin(async (hasFailed) => {
    limit.begin()
    if (!hasFailed) overrides.supervisor?.stopping()
    await running.disposeAsync()
  })
  const { administrationKeyFile } = node
  const address = `${origin}${settings.http.prefix}`
  const addresses = { http: address, push: push.local, metrics: metricsOrigin }
  // Only the first node of a store has made a key.
  const adminKeyFile = existsSync(administrationKeyFile) ? administrationKeyFile : null
  log.info({ ...addresses, store: settings.store.path, adminKeyFile }, 'listening')
  overrides.supervisor?.ready()
  return {
    address,
    metricsAddress: `${metricsOrigin ?? origin}${METRICS_PATH}`,
    administrationKeyFile,
    ended: shutdown.ended,
    reload: (load) => {
      // Also what waits for a restart: the restart would fail.
      live.reload(() => requireUsable(load()))
      void reloadKeys(cells, keys, node)
      metrics.reloaded(live.notice?.code !== 'CONFIG_NOT_RELOADED')
    },
    stop: () => shutdown.stop(),
  }
}

/** @returns the settings. @throws CodedError CONFIG_INVALID */
function requireUsable(settings: CloudSettings): CloudSettings {
  requireConsistent(settings)
  for (const url of [settings.db, ...(settings.cells ?? []).map((cell) => cell.url)]) {
    if (url !== null) databaseAddress(url)
  }
  const archive = archiveTerms(settings.usage)
  if (archive !== null) openPlace(archive.place, settings.s3, new AbortController().signal)
  return settings
}

type RenewCertificate = (tls: Certificate) => void

const CERTIFICATE_EVERY_MS = 86_400_000

/** At the start, and daily: a service can run for longer than its certificate. */
function watchCertificate(
  first: Certificate,
  {
    settings,
    log,
    now,
    timers,
    renewals,
    metrics,
  }: Pick<CellDeps, 'settings' | 'log' | 'now' | 'timers'> & {
    readonly renewals: RenewCertificate[]
    readonly metrics: Metrics
  },
  started: AsyncDisposableStack,
): void {
  let current = first
  const use = (next: Certificate): void => {
    current = next
    metrics.certificate(certificateExpiry(next.certificate))
  }
  use(first)
  renewals.push(use)
  const look = (): void => examine(current, settings, log, now())
  look()
  started.defer(timers.every(CERTIFICATE_EVERY_MS, look))
}

interface LiveSettingsDeps extends Pick<CellNode, 'log' | 'now'> {
  /** Called for each certificate that a reload reads. */
  readonly renewals: readonly RenewCertificate[]
}

function liveSettings(
  first: CloudSettings,
  { log, now, renewals }: LiveSettingsDeps,
): LiveSettings<(typeof cloudOptions)['options']> {
  const live = new LiveSettings({
    table: cloudOptions,
    settings: first,
    files: ({ tls }) => {
      const read = readCertificate('tls', tls)
      return read === null ? {} : { 'tls.certificate_file': read.certificate, 'tls.key_file': read.key }
    },
    startFiles,
    prepare: (next) => {
      const isOtherLevel = next.log.level !== live.view.log.level
      const certificate = readCertificate('tls', next.tls)
      requireUsable(next)
      return () => {
        if (isOtherLevel) log.level = next.log.level
        if (certificate === null) return
        examine(certificate, next, log, now())
        for (const renew of renewals) renew(certificate)
      }
    },
    log,
    now,
  })
  return live
}

/** Contents of the files that the settings name and only a start reads. @throws CodedError CONFIG_UNREADABLE, CONFIG_INVALID */
function startFiles({ cells, events, push }: CloudSettings): Readonly<Record<string, string>> {
  const settingFile = (setting: string, path: string | undefined): string =>
    path === undefined ? '' : readSettingFile(setting, path)
  const authority = (setting: string, path: string | null): string =>
    path === null ? '' : readAuthorityFile(setting, path)
  const webhookFiles = (events.webhooks ?? []).flatMap(({ secret_file, token_file }) => {
    const secrets = readSettingFile('events.webhooks', secret_file)
    parseSecrets(secrets, secret_file)
    return [secrets, settingFile('events.webhooks', token_file)]
  })
  return {
    cells: (cells ?? []).map(({ password_file }) => settingFile('cells', password_file)).join('\0'),
    'events.webhooks': webhookFiles.join('\0'),
    'events.ca_file': authority('events.ca_file', events.caFile),
    'push.ca_file': authority('push.ca_file', push.caFile),
  }
}

/** Of two clouds, only one uses a database file. @throws CodedError STATE_UNWRITABLE, STATE_LOCKED */
function claimDirectory(settings: CloudSettings, started: AsyncDisposableStack): void {
  const { path } = settings.store
  try {
    makeDurableDirectory(path)
    // A killed process may have left files.
    flush(path)
  } catch (cause) {
    throw unwritableState(cause, path, `${path} cannot be created or opened`)
  }
  requireOwnDirectory(path)
  if (!isShared(settings)) started.defer(claimStore(join(path, 'twin.lock')))
}

/**
 * Before a first start makes a database and an administration key, which would stay.
 * @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED
 */
async function requireFreeAddresses({ http, push, metrics }: CloudSettings): Promise<void> {
  const apart = metricsPlace(metrics)
  const places = [
    { ...http, setting: 'http.port' },
    ...(push.broker === 'embedded' ? [{ ...push, setting: 'push.port' }] : []),
    ...(apart === null ? [] : [{ ...apart, setting: 'metrics.listen' }]),
  ]
  // All at once: two settings may name the same address.
  await using probes = new AsyncDisposableStack()
  for (const { host, port, setting } of places) {
    const probe = createTcpServer((socket) => socket.destroy())
    await listenOn(probe, { host, port }, setting)
    probes.use(probe)
  }
}

function nodeOf(
  base: Pick<CellNode, 'settings' | 'log' | 'now' | 'newId'>,
  overrides: Overrides,
  { entrance, slots }: Pick<RoutesDeps, 'entrance' | 'slots'>,
  fail: CellNode['fail'],
): CellNode {
  const { settings, now } = base
  const { path } = settings.store
  const comparesDatabase = overrides.now === undefined
  const boot = overrides.boot ?? (comparesDatabase ? bootClock() : { bootId: '', sinceBoot: now })
  return {
    ...base,
    administrationKeyFile: join(path, 'administration-key.pem'),
    signingKeyFile: join(path, 'signing-key.pem'),
    metricsDeps: {
      version: softwareVersion(),
      totalsTimeoutMs: TOTALS_TIMEOUT_MS,
      waiting: () => entrance.waiting,
      // Administrators back up PostgreSQL with its own tools.
      lastBackupAt: () => (isShared(settings) ? null : (readLastBackup(path)?.at ?? null)),
    },
    clocks: { now, ...boot, comparesDatabase },
    requestsInProgress: () => slots.inProgress,
    cloud: null,
    pause: overrides.pause,
    fail,
  }
}

interface ServerDeps extends Pick<CellNode, 'settings' | 'log' | 'newId'> {
  readonly tls: Certificate | null
  readonly metrics: Metrics
  readonly onWrongAnswer: Overrides['onWrongAnswer']
}

function openServer({ settings, log, newId, tls, metrics, onWrongAnswer = () => undefined }: ServerDeps): Server {
  const { prefix, bodyMax, requestTimeout, checkAnswers } = settings.http
  return createServer({
    prefix,
    bodyMax,
    requestTimeoutMs: requestTimeout,
    logger: log,
    newId,
    tls,
    onWrongAnswer: checkAnswers ? onWrongAnswer : null,
    onBrokenBody: () => metrics.brokenBody(),
    onAnswered: (answered) => metrics.request(answered),
  })
}

interface ServicesDeps extends Pick<CellDeps, 'settings' | 'log' | 'now' | 'newId' | 'timers'> {
  readonly keys: LiveKeyring
  readonly tls: Certificate | null
  readonly http: FastifyInstance
}

interface Services extends Pick<CellDeps, 'signIn' | 'consoleSignIn' | 'publicAddress'> {
  readonly composed: ComposedCells
  /** Null, like `over`: there are no cells. */
  readonly watch: CellWatch | null
  readonly over: OverCells | null
  readonly push: Push
}

async function openServices(
  { signingKeyFile }: CellNode,
  cells: readonly [Cell, ...Cell[]],
  { http, tls, ...deps }: ServicesDeps,
): Promise<Services> {
  const { settings, log, now, newId, timers, keys } = deps
  const connecting = new ConnectingClients(setImmediate)
  http.server.on('connection', () => connecting.connected())
  const late: { push?: Push } = {}
  const parts = {
    defer: connecting.defer,
    signIn: signInOf(settings, now, log),
    consoleSignIn: servesConsole(settings.http)
      ? new ConsoleSignIn({ store: cells[0].store, newId, secret: consoleSecret(signingKeyFile) })
      : null,
    publicAddress: () =>
      `${settings.http.publicUrl?.replace(/\/+$/, '') ?? http.listeningOrigin}${settings.http.prefix}`,
    push: () => {
      if (late.push === undefined) throw new Error('invariant: the broker is open when requests are served')
      return late.push
    },
  }
  const composed = await composeCells(cells, { ...deps, ...parts })
  const watch = settings.cells === null ? null : new CellWatch({ cells, keys, now, log })
  await watch?.copy()
  const over = watch === null ? null : { ...composed, copy: () => watch.copy() }
  const push = await openPush({
    settings: settings.push,
    tls,
    now,
    newId,
    timers,
    log,
    stores: cells.map(({ store }) => store),
    authenticator: over === null ? composed.cells[0].authenticator : authenticatorOver(over),
  })
  late.push = push
  return { ...parts, composed, watch, over, push }
}

function registerHealthOf(http: FastifyInstance, cells: readonly Cell[], watch: CellWatch | null): void {
  const paused = (): readonly PausedBy[] => [...new Set(cells.flatMap((cell) => cell.paused()))]
  registerHealth(
    http,
    () => requireOneWorking(cells),
    () => [...paused(), ...(watch?.conditions ?? [])],
  )
}

interface RoutesDeps extends Pick<CellDeps, 'settings' | 'now' | 'keys'>, Omit<Services, 'watch'> {
  readonly entrance: Entrance
  readonly slots: Slots
}

function registerRoutes(server: Server, deps: RoutesDeps): void {
  const { http } = server
  const { settings, composed, over, push, keys, now, entrance, slots, signIn, consoleSignIn, publicAddress } = deps
  const { prefix, requestTimeout } = settings.http
  const [{ store, authenticator, operations }] = composed.cells
  const serving = {
    store,
    keys,
    authenticator,
    now,
    slots,
    entrance,
    requestTimeoutMs: requestTimeout,
    version: softwareVersion(),
    routeOver: over === null ? null : (index: number, version: string) => routeOverCells(over, index, version),
  }
  serveOperations(server, prefix, serving, operations)
  registerSignIn(http, prefix, signIn)
  registerDocs(http, prefix, operations)
  if (push.accept !== null) serveWebSockets(http, `${prefix}/push`, push.accept)
  if (consoleSignIn === null) return
  const isSecure = (): boolean => publicAddress().startsWith('https:')
  registerConsoles(http, prefix, composed, { slots, signIn: consoleSignIn, isSecure })
}

/** Policies also tell devices which keys to trust. */
async function reloadKeys(
  cells: readonly Cell[],
  keys: LiveKeyring,
  { signingKeyFile, now, log }: CellNode,
): Promise<void> {
  try {
    const up = cells.filter(({ store }) => store.isUp)
    for (const cell of up) await cell.claimSigningKey()
    if (!keys.replace(await openKeyring(signingKeyFile))) return
    for (const { store } of up) {
      await store.transaction((tx) => changeSharedRules(tx, now(), async () => undefined))
    }
    log.info({ keyId: keys.signer.keyId, trusted: keys.trusted.map(({ keyId }) => keyId) }, 'signing keys reloaded')
  } catch (error) {
    log.error({ err: error }, 'signing keys not reloaded')
  }
}

function nodeMetrics(deps: CellNode['metricsDeps']): Metrics {
  const totals = (): Promise<never> => Promise.reject(new Error('invariant: the cells count their totals'))
  return new Metrics({ ...deps, part: 'NODE', totals, paused: () => [] })
}

/** Cells other than the control cell have consoles below `cells/<name>`. */
function registerConsoles(
  http: FastifyInstance,
  prefix: string,
  { cells: [control, ...others], directory }: ComposedCells,
  deps: Pick<ConsoleDeps, 'slots' | 'isSecure' | 'signIn'>,
): void {
  const of = (cell: ComposedCell): Pick<ConsoleDeps, 'otherCellOf'> => ({
    otherCellOf: async (accountId) => {
      const found = await directory.cellToCreateIn(accountId)
      return found === cell ? null : found.name
    },
  })
  registerConsole(http, prefix, { ...control.console, ...deps, ...of(control), controlled: null })
  for (const cell of others) {
    const own = { ...cell.console, ...of(cell), controlled: control.name }
    registerConsole(http, `${prefix}/cells/${cell.name}`, { ...own, ...deps })
  }
}

function servesConsole({ console, host }: CloudSettings['http']): boolean {
  return console === 'on' || (console === 'loopback' && isLoopback(host))
}

/** Encrypts the codes of sign-ins to the console: the same on all nodes, which share the signing key. */
function consoleSecret(signingKeyFile: string): Uint8Array {
  const key = openKeyFile(signingKeyFile).export({ type: 'pkcs8', format: 'der' })
  return new Uint8Array(hkdfSync('sha256', key, '', 'tallygate console codes', 32))
}

/** @returns origin at which requests are accepted. @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED */
async function listenForRequests(
  { http, closeIdle }: Server,
  { host, port }: CloudSettings['http'],
  started: AsyncDisposableStack,
): Promise<string> {
  const origin = await http.listen({ host, port, backlog: CONNECTIONS_WAITING_MAX }).catch((cause: unknown) => {
    throw listenFailure(cause, `${host}:${port} (http.port)`)
  })
  started.defer(async () => {
    // Connections may become idle after the server has closed the idle ones.
    const reap = setInterval(closeIdle, REAP_EVERY_MS)
    await http.close()
    clearInterval(reap)
  })
  return origin
}

/** The origin of a separate metrics address; null: metrics share the main address. */
async function openMetrics(
  settings: CloudSettings['metrics'],
  http: FastifyInstance,
  metrics: MetricsSource,
  started: AsyncDisposableStack,
): Promise<string | null> {
  const secret = settings.token?.reveal() ?? null
  const place = metricsPlace(settings)
  if (place === null) {
    registerMetrics(http, metrics, secret)
    return null
  }
  const onFault = (error: unknown): void => http.log.error({ err: error }, 'the metrics failed')
  const listener = await listenForMetrics(place, metrics, secret, onFault)
  started.defer(() => listener.close())
  return listener.origin
}

/** Null: administrators use keys only. @throws CodedError CONFIG_INVALID */
function signInOf({ oidc, http }: CloudSettings, now: () => number, log: Logger): SignIn | null {
  const terms = signInIssuer(oidc)
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
