/** What settings must be together, beyond the form of each one. */
import type { Logger } from 'pino'
import { certificateProblem } from '../platform/certificate-problem.ts'
import { hostInUrl, hostOf } from '../platform/host-of.ts'
import { CodedError } from '../protocol/errors.ts'
import { isLoopback } from '../platform/is-loopback.ts'
import type { Certificate } from '../platform/read-certificate.ts'
import type { CloudSettings } from './settings.ts'

/** Routes treat other characters as patterns or escapes, and clients remove segments of dots. */
const PREFIX = /^(\/(?!\.{1,2}(\/|$))[\w.~-]+)*$/

/** @throws CodedError CONFIG_INVALID */
export function requireConsistent(settings: CloudSettings): void {
  const { http, db, cells, edge, oidc, metrics } = settings
  if (!PREFIX.test(http.prefix)) {
    const wanted = 'takes a path like "/name", of letters, digits and the characters - . _ ~'
    throw invalid(`http.prefix is ${JSON.stringify(http.prefix)}, but ${wanted}.`)
  }
  if (db !== null && cells !== null) {
    throw invalid('db and cells are both set. With cells, name the database of db as the first cell.')
  }
  if (edge.settleAfter <= edge.syncEvery) {
    throw invalid(
      'edge.settle_after must be longer than edge.sync_every: devices that report in time would be settled.',
    )
  }
  for (const name of ['grantLifetime', 'policyUsable'] as const) {
    if (edge[name] > edge.syncEvery) continue
    const key = name === 'grantLifetime' ? 'edge.grant_lifetime' : 'edge.policy_usable'
    throw invalid(`${key} must be longer than edge.sync_every: devices would refuse requests between two reports.`)
  }
  if (edge.settleAs === 'release' && edge.settleAfter < edge.grantLifetime) {
    throw invalid(
      'With edge.settle_as "release", edge.settle_after must be at least edge.grant_lifetime: devices could still spend the tokens that return to the pool.',
    )
  }
  requirePublicUrl(http)
  requireBroker(settings.push)
  requireNats(settings.events)
  refuseUnused(settings)
  signInIssuer(oidc)
  metricsPlace(metrics)
}

/** @throws CodedError CONFIG_INVALID */
function requirePublicUrl({ publicUrl, prefix }: CloudSettings['http']): void {
  if (publicUrl === null) return
  const { search, hash, pathname } = new URL(publicUrl)
  if (namesUser(publicUrl) || search !== '' || hash !== '') {
    throw invalid('http.public_url takes a URL without user name, query and fragment.')
  }
  if (prefix !== '' && pathname.replace(/\/+$/, '').endsWith(prefix)) {
    throw invalid(`http.public_url ends with ${prefix}, which the cloud adds. Remove it, or change http.prefix.`)
  }
}

/** Devices get the address of the broker. @throws CodedError CONFIG_INVALID */
function requireBroker({ broker, host, url, publicUrl }: CloudSettings['push']): void {
  if (broker === 'external' && url === null) {
    throw invalid('push.broker is "external", but push.url is missing. Set it to the address of the broker.')
  }
  if (url !== null && namesUser(url)) throw invalid('push.url takes no user name: set push.username and push.password.')
  if (publicUrl !== null && namesUser(publicUrl)) {
    throw invalid('push.public_url takes no user name: every device gets it. Set push.username of each agent.')
  }
  // Devices would refuse the response to each sync.
  if (broker === 'embedded' && publicUrl === null && !URL.canParse(`mqtt://${hostInUrl(host)}`)) {
    throw invalid(
      `push.host is ${JSON.stringify(host)}, which a URL cannot contain. Set push.public_url to the URL at which devices reach the broker.`,
    )
  }
}

/** @throws CodedError CONFIG_INVALID */
function requireNats({
  natsUrl,
  natsSubject,
  natsUsername,
  natsPassword,
  natsCredentials,
}: CloudSettings['events']): void {
  if (natsUrl === null) {
    if (natsUsername === null && natsPassword === null && natsCredentials === null) return
    throw invalid('Credentials for NATS are set, but events.nats_url is not. Set it, or remove the credentials.')
  }
  if (namesUser(natsUrl)) throw invalid('events.nats_url takes no user name: set events.nats_username.')
  if (!/^[\w-]+(\.[\w-]+)*$/.test(natsSubject)) {
    throw invalid(`events.nats_subject is ${JSON.stringify(natsSubject)}, but takes words with dots.`)
  }
  if ((natsUsername === null) !== (natsPassword === null)) {
    throw invalid('events.nats_username and events.nats_password_file go together: one is missing.')
  }
  if (natsCredentials !== null && natsUsername !== null) {
    throw invalid('events.nats_credentials_file and events.nats_username are both set. Remove one.')
  }
}

function namesUser(url: string): boolean {
  const { username, password } = new URL(url)
  return username !== '' || password !== ''
}

/** An administrator would rely on a setting that has no effect. */
function refuseUnused({ db, cells, dbStandby, push }: CloudSettings): void {
  if (dbStandby && db === null && cells === null) {
    throw invalid('db_standby needs db or cells: SQLite has no standby.')
  }
  if (push.url !== null && push.broker !== 'external') {
    throw invalid(
      `push.url is set, but push.broker is "${push.broker}". Set push.broker to "external", or remove push.url.`,
    )
  }
}

/** Null: usage stays in the database. @throws CodedError CONFIG_INVALID */
export function archiveTerms({
  retention,
  archive,
}: CloudSettings['usage']): { readonly retentionMs: number; readonly place: string } | null {
  if (retention === 0) return null
  if (archive === null) throw invalid('usage.retention needs usage.archive.')
  return { retentionMs: retention, place: archive }
}

/** Null: administrators use keys only. @throws CodedError CONFIG_INVALID */
export function signInIssuer({
  issuer,
  clientId,
  access,
  scopes,
}: CloudSettings['oidc']): { readonly issuer: string; readonly clientId: string } | null {
  if (issuer === null && clientId === null && access === null) return null
  if (issuer === null || clientId === null || access === null) {
    throw invalid('oidc.issuer, oidc.client_id and oidc.access go together: one is missing.')
  }
  if (!scopes.split(' ').includes('openid')) throw invalid('oidc.scopes must contain openid.')
  const { protocol, hostname, username, search, hash } = new URL(issuer)
  if (username !== '' || search !== '' || hash !== '') {
    throw invalid('oidc.issuer takes a URL without user name, query and fragment.')
  }
  if (protocol !== 'https:' && !isLoopback(hostname)) {
    throw invalid(`oidc.issuer must begin with https://, because ${hostname} is another machine.`)
  }
  return { issuer, clientId }
}

/** Null: metrics share the address of the cloud. @throws CodedError CONFIG_INVALID */
export function metricsPlace({
  listen,
}: CloudSettings['metrics']): { readonly host: string; readonly port: number } | null {
  if (listen === null) return null
  const { bracketed, name, port } =
    /^(?:\[(?<bracketed>[^\]]+)\]|(?<name>[^:[\]]+)):(?<port>\d{1,5})$/.exec(listen)?.groups ?? {}
  const host = bracketed ?? name
  if (host === undefined || port === undefined || Number(port) > 65_535) {
    throw invalid(
      `metrics.listen is ${JSON.stringify(listen)}, but takes host:port, with a port from 0 to 65535, such as "127.0.0.1:9464".`,
    )
  }
  return { host, port: Number(port) }
}

/** Warns of a certificate that clients refuse, or soon will. */
export function examine(
  { certificate }: Certificate,
  { tls, http, push }: CloudSettings,
  log: Pick<Logger, 'warn'>,
  now: number,
): void {
  const reason = certificateProblem(certificate, hostsOf(http, push), now)
  if (reason === null) return
  log.warn({ code: 'CERTIFICATE_NOT_VALID', file: tls.certificateFile, reason }, `the certificate ${reason}`)
}

const ALL_NETWORKS = ['0.0.0.0', '::']

/** Warns of addresses that devices get from this cloud, and cannot use. */
export function examineAddresses({ http, push }: CloudSettings, log: Pick<Logger, 'warn'>): void {
  const warn = (setting: string, text: string): void => log.warn({ setting }, `${text}: set ${setting}`)
  const isOpen = !isLoopback(http.publicUrl === null ? http.host : hostOf(new URL(http.publicUrl)))
  if (http.publicUrl === null && ALL_NETWORKS.includes(http.host)) {
    warn('http.public_url', `enrollment tokens name the address ${http.host}, which devices cannot use`)
  }
  if (push.broker !== 'embedded' || push.publicUrl !== null) return
  const isWithin = ALL_NETWORKS.includes(push.host) || isLoopback(push.host)
  if (isOpen && isWithin) {
    warn(
      'push.public_url',
      `devices on other machines get ${push.host} as the address of the broker, and cannot use it`,
    )
  }
}

/** Names and addresses by which clients reach the certificate of this cloud, as far as the settings say. */
function hostsOf(http: CloudSettings['http'], push: CloudSettings['push']): readonly string[] {
  const own = ALL_NETWORKS.includes(http.host) ? [] : [http.host]
  const named = [http.publicUrl, push.broker === 'embedded' ? push.publicUrl : null]
    .filter((url) => url !== null)
    .map((url) => new URL(url))
    .filter(({ protocol }) => /^(https|wss|mqtts):$/.test(protocol))
    .map(hostOf)
  // Behind a proxy with its own certificate, or on an address of all networks, only the public names count.
  return [...new Set(named.length > 0 || http.publicUrl !== null ? named : own)]
}

function invalid(message: string): CodedError {
  return new CodedError('CONFIG_INVALID', message)
}
