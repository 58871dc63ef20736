/**
 * The composition root: the only file that names concrete adapters. Nothing answers before it can; shutdown runs in
 * reverse.
 */
import { hkdfSync, randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { createSecureContext } from 'node:tls'
import type { FastifyInstance } from 'fastify'
import { type Logger, pino } from 'pino'
import { CodedError, messageOf } from '../protocol/errors.ts'
import { hostOf } from '../platform/host-of.ts'
import { isLoopback } from '../protocol/sign-in.ts'
import { listenFailure } from '../protocol/listen-failure.ts'
import { LiveSettings } from '../settings/reload.ts'
import { isUnreachable } from './cells/cell-store.ts'
import { Directory } from './cells/directory.ts'
import { CellWatch } from './cells/watch-cells.ts'
import { type CellDeps, type ComposedCell, archiveTerms, composeCell } from './compose-cell.ts'
import { ConsoleSignIn } from './console/sign-in.ts'
import { type ConsoleDeps, registerConsole } from './http/console/register-console.ts'
import { registerHealth } from './http/health.ts'
import { registerSignIn } from './http/sign-in.ts'
import { registerDocs } from './http/openapi/register-docs.ts'
import { authenticatorOver, routeOverCells } from './http/route-over-cells.ts'
import { serveOperations } from './http/serve.ts'
import { serveWebSockets } from './http/web-sockets.ts'
import { Entrance } from './http/entrance.ts'
import { Slots } from './http/slots.ts'
import { createServer } from './http/server.ts'
import { Cell, type CellNode, isShared } from './open-cell.ts'
import { openPlace } from './platform/archive/open-place.ts'
import { openKeyFile } from './platform/key-file/key-file.ts'
import { openKeyring } from './platform/key-file/keyring-file.ts'
import { Metrics, type MetricsSource, merged } from './platform/metrics/metrics.ts'
import { METRICS_PATH, countRequests, listenForMetrics, registerMetrics } from './platform/metrics/serve-metrics.ts'
import { type Push, openPush } from './platform/mqtt/open-push.ts'
import { IssuerKeys } from './platform/oidc/issuer-keys.ts'
import { awaitDatabase } from './storage/postgres/await-database.ts'
import { claimStore } from './storage/sqlite/claim-store.ts'
import { makeDurableDirectory } from './platform/system/durable-directory.ts'
import { readText } from './platform/system/read-text.ts'
import { certificateProblem } from '../platform/certificate-problem.ts'
import { readLastBackup } from '../platform/last-backup.ts'
import { openConnections } from '../platform/open-connections.ts'
import { softwareVersion } from '../platform/software-version.ts'
import { systemTimers, bootClock } from './platform/system/time.ts'
import { SignIn } from './service-api/sign-in.ts'
import { ConnectingClients } from './runtime/connecting-clients.ts'
import type { Clocks, PausedBy } from './runtime/clock-guard.ts'
import { LiveKeyring } from './devices/keyring.ts'
import { changeSharedRules } from './policy/bump-policy-revision.ts'
import { type RepeatedJobDeps, type Timers, runRepeatedly } from './runtime/run-repeatedly.ts'
import type { Store } from './storage/store.ts'
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

/** Connections that wait to be accepted: Node's 511 are too few when all devices come back. The kernel may allow fewer. */
const CONNECTIONS_WAITING_MAX = 4_096

/** How often to look whether the database of a cell responds, ms. */
const PROBE_EVERY_MS = 1_000

/** How often to look whether a cell lacks changes of the control cell, ms. */
const COPY_EVERY_MS = 5_000

const TOTALS_TIMEOUT_MS = 2_000

/** Part of the concurrent requests that may wait for the OpenID Connect provider. */
const PART_OF_SIGN_INS = 1 / 4

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
  requireOneDatabase(settings)
  if (!isShared(settings)) started.defer(claimStore(join(directory, 'twin.lock')))
  const administrationKeyFile = join(directory, 'administration-key.pem')
  const signingKeyFile = join(directory, 'signing-key.pem')
  const comparesDatabase = overrides.now === undefined
  const boot = overrides.boot ?? (comparesDatabase ? bootClock() : { bootId: '', sinceBoot: now })
  const entrance = new Entrance()
  const metricsDeps = {
    version: softwareVersion(),
    totalsTimeoutMs: TOTALS_TIMEOUT_MS,
    waiting: () => entrance.waiting,
    // Administrators back up PostgreSQL with its own tools.
    lastBackupAt: () => (isShared(settings) ? null : (readLastBackup(directory)?.at ?? null)),
  }
  const node = {
    ...{ settings, log, now, newId, administrationKeyFile, signingKeyFile, metricsDeps },
    clocks: { now, ...boot, comparesDatabase },
    cloud: null,
    pause: overrides.pause,
    fail: (error: unknown) => fail(error),
  }
  const cells = cellsOf(node)
  const [control] = cells
  for (const cell of cells) {
    started.defer(() => cell.stop())
    cuts.push(() => cell.cut())
  }
  const signal = overrides.stop ?? new AbortController().signal
  await awaitDatabase(() => startCells(cells, log), { waitMs: settings.dbWait, signal, log })
  const keys = new LiveKeyring(await openKeyring(signingKeyFile))
  const metrics = settings.cells === null ? control.metrics : nodeMetrics(metricsDeps)
  const paused = (): readonly PausedBy[] => [...new Set(cells.flatMap((cell) => cell.paused()))]
  const signIn = signInOf(settings, now, log)
  const tls = readTls(settings.tls)
  examine(settings, tls)
  const running: { push?: Push } = {}
  const push = (): Push => {
    if (running.push === undefined) throw new Error('invariant: the broker is open when requests are served')
    return running.push
  }
  const publicAddress = (): string => `${settings.http.publicUrl?.replace(/\/+$/, '') ?? http.listeningOrigin}${prefix}`
  const consoleSignIn = servesConsole(settings.http)
    ? new ConsoleSignIn({ store: control.store, newId, secret: consoleSecret(signingKeyFile) })
    : null
  const connecting = new ConnectingClients(setImmediate)
  const composed = await composeAll(cells, {
    ...{ settings, log, now, newId, timers, keys, signIn, push, publicAddress, consoleSignIn },
    defer: connecting.defer,
  })
  const [controlCell] = composed.cells
  const watch = settings.cells === null ? null : new CellWatch({ cells, keys, now, log })
  const over =
    watch === null ? null : { cells: composed.cells, directory: composed.directory, copy: () => watch.copy() }
  await watch?.copy()
  const reloadKeys = async (): Promise<void> => {
    try {
      const up = cells.filter(({ store }) => store.isUp)
      for (const cell of up) await cell.claimSigningKey()
      if (!keys.replace(await openKeyring(signingKeyFile))) return
      // Policies also tell devices which keys to trust.
      for (const { store } of up) {
        await store.transaction((tx) => changeSharedRules(tx, now(), async () => undefined))
      }
      log.info({ keyId: keys.signer.keyId, trusted: keys.trusted.map(({ keyId }) => keyId) }, 'signing keys reloaded')
    } catch (error) {
      log.error({ err: error }, 'signing keys not reloaded')
    }
  }
  const stores = cells.map(({ store }) => store)
  const authenticator = over === null ? controlCell.authenticator : authenticatorOver(over)
  running.push = await openPush({ settings: settings.push, tls, stores, authenticator, now, newId, timers, log })
  started.defer(() => push().close())
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
  http.server.on('connection', () => connecting.connected())
  cuts.push(openConnections(http.server))
  countRequests(http, metrics)
  registerHealth(
    http,
    () => requireOne(stores),
    () => [...paused(), ...(watch?.conditions ?? [])],
  )
  const { requestsMax, requestsPerKeyMax, requestTimeout } = settings.http
  const slots = new Slots({ requestsMax, ofKeyMax: requestsPerKeyMax, now: () => performance.now() })
  const serving = {
    ...{ store: controlCell.store, keys, authenticator: controlCell.authenticator, now, slots, entrance },
    requestTimeoutMs: requestTimeout,
    version: softwareVersion(),
    routeOver: over === null ? null : (index: number, version: string) => routeOverCells(over, index, version),
  }
  serveOperations(http, prefix, serving, controlCell.operations)
  registerSignIn(http, prefix, signIn)
  registerDocs(http, prefix, controlCell.operations)
  if (consoleSignIn !== null) {
    const isSecure = (): boolean => publicAddress().startsWith('https:')
    registerConsoles(http, prefix, composed.cells, { slots, signIn: consoleSignIn, isSecure })
  }

  const { accept } = push()
  if (accept !== null) serveWebSockets(http, `${prefix}/push`, accept)
  const shown = watch === null ? metrics : merged([metrics, ...cells.map((cell) => cell.metrics)])
  const metricsOrigin = await openMetrics(settings.metrics, http, shown, started)

  const { host, port } = settings.http
  const origin = await listen(() => http.listen({ host, port, backlog: CONNECTIONS_WAITING_MAX }), host, port)
  started.defer(async () => {
    // Connections may become idle after the server has closed the idle ones.
    const reap = setInterval(() => http.server.closeIdleConnections(), REAP_EVERY_MS)
    await http.close()
    clearInterval(reap)
  })
  for (const cell of composed.cells) cell.run(started)
  if (watch !== null) runCellWatch(watch, cells, { timers, log }, started)
  started.defer(() => stopAccepting())

  late.renewCertificate = ({ certificate, key }) => {
    renewCertificate({ certificate, key })
    push().renewCertificate({ certificate, key })
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
    {
      http: address,
      push: push().local,
      metrics: metricsOrigin,
      store: directory,
      adminKeyFile: administrationKeyFile,
    },
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

function requireOneDatabase({ db, cells }: CloudSettings): void {
  if (db === null || cells === null) return
  throw new CodedError(
    'CONFIG_INVALID',
    'db and cells are both set. With cells, name the database of db as the first cell.',
  )
}

/** Without cells, the cloud is one. */
function cellsOf(node: CellNode): readonly [Cell, ...Cell[]] {
  const [first = null, ...others] = node.settings.cells ?? []
  return [new Cell(node, first, true), ...others.map((place) => new Cell(node, place, false))]
}

/**
 * Starts the cells that have not started. One that responds is enough.
 * @throws CodedError of a cell that can never start, or DATABASE_UNREACHABLE if no cell responds
 */
async function startCells(cells: readonly [Cell, ...Cell[]], log: Logger): Promise<void> {
  const [control, ...others] = cells
  // At the first start, the control cell knows which keys there are.
  const results = await Promise.allSettled([control.start()])
  results.push(...(await Promise.allSettled(others.map((cell) => cell.start()))))
  const failed = results.flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []))
  const fatal = failed.filter((error) => !isUnreachable(error))
  if (fatal.length > 0 || failed.length === cells.length) throw [...fatal, ...failed][0]
  for (const { name } of cells.filter(({ isStarted }) => !isStarted)) {
    log.warn({ code: 'DATABASE_UNREACHABLE', cell: name }, 'the database of the cell does not respond')
  }
}

/** @throws CodedError if no store responds */
async function requireOne(stores: readonly Store[]): Promise<void> {
  const reads = stores.map((store) => store.read((reader) => reader.keys.countAdministration()))
  await Promise.any(reads).catch((error: unknown) => {
    throw error instanceof AggregateError ? error.errors[0] : error
  })
}

function nodeMetrics(deps: CellNode['metricsDeps']): Metrics {
  const totals = (): Promise<never> => Promise.reject(new Error('invariant: the cells count their totals'))
  return new Metrics({ ...deps, part: 'NODE', totals, paused: () => [] })
}

interface ComposedCells {
  readonly cells: readonly [ComposedCell, ...ComposedCell[]]
  readonly directory: Directory<ComposedCell>
}

async function composeAll(
  cells: readonly [Cell, ...Cell[]],
  deps: Omit<CellDeps, 'isElsewhere'>,
): Promise<ComposedCells> {
  const late: { directory?: Directory<ComposedCell> } = {}
  const isElsewhere = async (id: string): Promise<boolean> =>
    ((await late.directory?.find('instance', id)) ?? null) !== null
  const all = { ...deps, ...(deps.settings.cells === null ? {} : { isElsewhere }) }
  const [control, ...others] = cells
  const composed: ComposedCells['cells'] = [
    await composeCell(control, all),
    ...(await Promise.all(others.map((cell) => composeCell(cell, all)))),
  ]
  late.directory = new Directory(composed)
  return { cells: composed, directory: late.directory }
}

/** Cells other than the control cell have consoles below `cells/<name>`. */
function registerConsoles(
  http: FastifyInstance,
  prefix: string,
  [control, ...others]: ComposedCells['cells'],
  deps: Pick<ConsoleDeps, 'slots' | 'isSecure' | 'signIn'>,
): void {
  registerConsole(http, prefix, { ...control.console, ...deps, controlled: null })
  for (const { name, console } of others) {
    registerConsole(http, `${prefix}/cells/${name}`, { ...console, ...deps, controlled: control.name })
  }
}

function runCellWatch(
  watch: CellWatch,
  cells: readonly Cell[],
  deps: RepeatedJobDeps,
  started: AsyncDisposableStack,
): void {
  for (const job of [
    // One that does not respond must not delay the others.
    ...cells.map((cell) => runRepeatedly(deps, PROBE_EVERY_MS, () => watch.probe(cell), 'a cell was not probed')),
    runRepeatedly(
      deps,
      COPY_EVERY_MS,
      async () => {
        await watch.copy()
        return false
      },
      'the control cell was not copied',
    ),
  ]) {
    started.defer(() => job.stop())
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
  metrics: MetricsSource,
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

function makeDirectory(path: string): void {
  try {
    makeDurableDirectory(path)
  } catch (cause) {
    throw new CodedError('STATE_UNWRITABLE', `${path} cannot be made: ${messageOf(cause)}`, { cause })
  }
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
    .map(hostOf)
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
  const tls = { certificate: readText(certificateFile), key: readText(keyFile) }
  try {
    createSecureContext({ cert: tls.certificate, key: tls.key })
  } catch (cause) {
    throw new CodedError('CONFIG_INVALID', `${certificateFile} and ${keyFile} do not go together, or are no PEM.`, {
      cause,
    })
  }
  return tls
}

/** @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED */
async function listen<T>(start: () => Promise<T>, host: string, port: number): Promise<T> {
  try {
    return await start()
  } catch (cause) {
    throw listenFailure(cause, `${host}:${port}`)
  }
}
