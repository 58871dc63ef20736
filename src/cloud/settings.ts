/** The cloud's settings, the single source for TOML file, environment, flags, `--help` and documentation. */
import {
  type OptionTable,
  type Settings,
  bytes,
  choice,
  duration,
  integer,
  path,
  secret,
  structure,
  text,
  toggle,
  url,
  words,
} from '../settings/option.ts'
import { accessRules } from '../protocol/sign-in.ts'
import { API_PREFIX } from '../protocol/wire.ts'
import { EVENT_GROUPS } from '../protocol/edge/events.ts'
import { cellSettings } from './cells/cell-settings.ts'
import { webhookSettings } from './events/sink-settings.ts'

/** Asymmetric ones only: a party that can check a token must not be able to make one. */
const SIGN_IN_ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
] as const

const options = {
  http: {
    host: text({
      help: 'Address to listen on. Change it from loopback only if devices or clients on other machines connect directly.',
      default: '127.0.0.1',
    }),
    port: integer({ help: 'Port to listen on; 0: any free port.', default: 7080, min: 0, max: 65_535 }),
    prefix: text({
      help: 'Path prefix of all areas of the service.',
      default: API_PREFIX,
      takes: 'a path that begins with a slash and does not end with one',
      max: 200,
    }),
    publicUrl: url({
      help: 'URL at which devices and clients reach the cloud, without the prefix. Omitted: the address that it listens on.',
      default: null,
      schemes: ['http', 'https'],
    }),
    bodyMax: bytes({ help: 'Maximum size of a request body.', default: '1MiB', min: '1KiB', max: '64MiB' }),
    requestsMax: integer({
      help: 'Maximum number of concurrent requests; further requests get OVERLOADED. Clients together may have 75 %, and clients and devices together 90 %.',
      default: 1_000,
      min: 1,
      max: 1_000_000,
    }),
    requestsPerKeyMax: integer({
      help: 'Maximum number of concurrent requests with tokens of one registered key; further requests get KEY_BUSY. A client key may use at most as many places as it leaves free. A device may have 16.',
      default: 500,
      min: 1,
      max: 1_000_000,
    }),
    requestTimeout: duration({
      help: 'Maximum time for a whole request to arrive. Allow enough for a device on a slow line. Headers get at most 10s, bodies of clients and administrators 30s. At least 1 KiB of a body must arrive within each 10s.',
      default: '2m',
      min: '1s',
      max: '1h',
    }),
    console: choice(['loopback', 'on', 'off'], {
      help: 'Whether to serve the console for administrators at /console. "loopback": only if http.host is a loopback address.',
      default: 'loopback',
    }),
    checkAnswers: toggle({
      help: 'Check every response against the declaration of its operation; an undeclared response becomes INTERNAL. For tests and trials.',
      default: false,
    }),
    drainTimeout: duration({
      reloadable: true,
      help: 'How long a stop waits for requests in progress and for the database; after that it cuts their connections. The stop needs up to another second. Give the process manager more time than both (stop_grace_period, TimeoutStopSec).',
      default: '4s',
      min: '100ms',
      max: '5m',
    }),
  },
  tls: {
    certificateFile: path({
      reloadable: 'between values',
      help: 'Certificate chain in PEM. With certificate and key, the cloud uses HTTPS. Without them, put it behind a proxy.',
      default: null,
    }),
    keyFile: path({
      reloadable: 'between values',
      help: 'Private key of the certificate, in PEM.',
      default: null,
    }),
  },
  db: url({
    help: 'URL of a PostgreSQL database, which several nodes can share. With several hosts (postgres://user@a:5432,b:5432/name), the cloud uses the one that is the primary. Omitted: an SQLite file in store.path.',
    default: null,
    schemes: ['postgres', 'postgresql'],
    hosts: 'several',
  }),
  dbPassword: secret({
    help: 'Password for db. It overrides a password in the URL, which other users of the machine can see in a flag.',
  }),
  dbWait: duration({
    help: 'How long a start waits for a PostgreSQL database that does not respond, before it ends with exit code 69.',
    default: '1m',
    min: '0',
    max: '1h',
  }),
  dbStandby: toggle({
    help: 'Change nothing unless PostgreSQL confirms commits only when a standby has them (synchronous_standby_names, synchronous_commit). Requests then get DATABASE_WITHOUT_STANDBY.',
    default: false,
  }),
  cells: structure(cellSettings, {
    help: 'Several PostgreSQL databases instead of db; each has the data of some instances. The first one is the control cell, where rate tables, keys and configuration are changed. docs/how-to/use-cells.md describes them.',
    takes:
      'a list such as [{ name = "north", url = "postgres://tallygate@north/tallygate", password_file = "/etc/tallygate/north" }]; new_accounts = false: the cell gets no new accounts',
  }),
  store: {
    path: path({
      help: 'Directory of the database and of the keys that the cloud creates. It must be on storage that keeps flushed data over a power cut.',
      default: '/var/lib/tallygate/cloud',
    }),
    restored: toggle({
      help: 'The database comes from a backup: begin a recovery, even if the sales mark does not show it. Set it for the first start after a restore.',
      default: false,
    }),
    startEmpty: toggle({
      help: 'Start with an empty PostgreSQL database, even if this directory contains a SQLite database with data. The data stays in the file.',
      default: false,
    }),
    check: toggle({
      help: 'Verify the whole database at each start, about a second per gigabyte.',
      default: true,
    }),
  },
  keys: {
    delay: duration({
      help: 'Delay until a saved key starts, and a deleted key stops, verifying tokens. The original service takes up to 10m.',
      default: '0',
      min: '0',
      max: '10m',
    }),
    replaceSigning: text({
      help: 'Thumbprint of the signing key that replaces a lost one. Every device must then be enrolled again.',
      default: null,
      max: 100,
    }),
  },
  oidc: {
    issuer: url({
      help: 'Issuer of the OpenID Connect provider with which administrators sign in, exactly as its tokens name it. It must use https unless it is on this machine. Omitted: administrators use keys only.',
      default: null,
      schemes: ['https', 'http'],
    }),
    clientId: text({
      help: 'Id of the client that is registered at the provider for this cloud: a public client (without a secret) that no other service uses.',
      default: null,
    }),
    scopes: text({
      help: 'Scopes that a sign-in requests. offline_access lets users stay signed in; omit it if the provider refuses it.',
      default: 'openid profile email offline_access',
      takes: 'scopes separated by spaces, among them openid',
    }),
    rolesClaim: text({
      help: 'Claim of the ID token that oidc.access maps to roles. For a claim inside of another, separate the names with dots. The claim email counts only if the provider has verified the address.',
      default: 'groups',
    }),
    access: structure(accessRules, {
      reloadable: true,
      help: 'Roles by value of the claim. Users get the roles of all rules that apply to them, each in its instances. A rule without instances applies to all of them; the role keys cannot be limited to instances.',
      takes: 'a list such as [{ value = "plant-7", roles = ["operator"], instances = ["<uuid>"] }]',
    }),
    algorithms: words(SIGN_IN_ALGORITHMS, {
      help: 'Algorithms with which the provider may sign ID tokens.',
      default: ['RS256', 'PS256', 'ES256', 'EdDSA'],
    }),
    maxAge: duration({
      reloadable: true,
      help: 'Maximum age of an ID token, even if it expires later. A user whom the provider no longer knows keeps access until the ID token expires.',
      default: '12h',
      min: '1m',
      max: '30d',
    }),
    timeout: duration({
      help: 'Maximum time in which the provider must send its metadata and keys. Other requests do not wait for it.',
      default: '5s',
      min: '100ms',
      max: '30s',
    }),
  },
  policy: {
    undecidedClock: choice(['allow', 'refuse'], {
      help: 'Decision of a device whose clock cannot tell whether a line item is valid now.',
      default: 'allow',
    }),
    cacheMax: integer({
      help: 'Number of instances whose rules are cached in memory.',
      default: 1_000,
      min: 1,
      max: 1_000_000,
    }),
  },
  sessions: {
    sweepEvery: duration({
      help: 'How often to check for sessions whose automatic charge, heartbeat or end is due.',
      default: '1s',
      min: '100ms',
      max: '5m',
    }),
    trialInterval: duration({
      help: 'For trials: length of the charge period of sessions, instead of session.charge.period. 0: off.',
      default: '0',
      min: '0',
      max: '24h',
    }),
  },
  audit: {
    sessionRetention: duration({
      reloadable: true,
      help: 'How long the audit keeps records of sessions that clients and devices opened and closed. All other records are kept.',
      default: '30d',
      min: '1h',
      max: '3660d',
    }),
    sessionsMax: integer({
      reloadable: true,
      help: 'Such records are kept only among this number of the newest records of the audit.',
      default: 1_000_000,
      min: 1_000,
      max: 1_000_000_000,
    }),
  },
  usage: {
    tenantId: text({
      help: 'Name of the producer in exported usage records.',
      default: 'tallygate',
      max: 200,
    }),
    retention: duration({
      reloadable: true,
      help: 'How long the database keeps usage records. Once a day, older ones are moved to usage.archive. 0: forever.',
      default: '0',
      min: '0',
      max: '3660d',
    }),
    archive: text({
      reloadable: true,
      help: 'Where archives of usage records are written. All nodes need access to it.',
      default: null,
      takes: 'a directory, or s3://bucket/prefix',
    }),
  },
  s3: {
    endpoint: url({
      help: 'Address of an S3-compatible store. Omitted: Amazon S3.',
      default: null,
      schemes: ['https', 'http'],
    }),
    region: text({ help: 'Region of the bucket.', default: 'us-east-1', max: 100 }),
    accessKeyId: text({
      help: 'Id of the access key. It needs the rights to list the bucket, and to read and write objects below the prefix.',
      default: null,
    }),
    secretAccessKey: secret({ help: 'Secret of the access key.' }),
    sessionToken: secret({ help: 'Session token, if the access key is a temporary one.' }),
  },
  events: {
    webhooks: structure(webhookSettings, {
      help: 'Addresses that receive events: usage, line items that run low, and changes of devices. A new name begins with the next event. docs/how-to/events.md describes the requests and their signatures.',
      takes:
        'a list such as [{ name = "billing", url = "https://billing.example/events", secret_file = "/etc/tallygate/billing.secret", types = ["usage"] }]; token_file adds a bearer token; types: "usage", "line-item", "device"',
    }),
    natsUrl: url({
      help: 'Address of a NATS server with JetStream that receives events. Omitted: none. A stream must take the subjects.',
      default: null,
      schemes: ['nats', 'tls'],
    }),
    natsSubject: text({
      help: 'First words of the subjects. An event has the subject <these words>.<type>.<device or instance>, such as tallygate.usage.<id>.',
      default: 'tallygate',
      takes: 'words of letters, digits, - and _, separated by dots',
      max: 100,
    }),
    natsTypes: words(EVENT_GROUPS, {
      help: 'Events that NATS receives.',
      default: EVENT_GROUPS,
    }),
    natsUsername: text({ help: 'User name of the cloud at the NATS server.', default: null }),
    natsPassword: secret({ help: 'Password of the cloud at the NATS server.' }),
    natsCredentials: secret({
      help: 'Credentials of the cloud at the NATS server, as `nsc generate creds` prints them.',
    }),
    caFile: path({
      help: 'Additional CA certificates in PEM to trust for receivers of events.',
      default: null,
    }),
    retention: duration({
      reloadable: true,
      help: 'How long the database keeps events that every sink has passed, except for usage. 0: forever.',
      default: '90d',
      min: '0',
      max: '3660d',
    }),
    undeliveredRetention: duration({
      reloadable: true,
      help: 'How long the database keeps events that a sink has not passed, or keeps as dead letters, except for usage. At least events.retention. 0: forever.',
      default: '366d',
      min: '0',
      max: '3660d',
    }),
    lowPercent: integer({
      reloadable: true,
      help: 'A line item is low when this percentage of its tokens, or less, is left.',
      default: 20,
      min: 1,
      max: 99,
    }),
  },
  edge: {
    grantLifetime: duration({
      reloadable: true,
      help: 'How long a device may spend its tokens without contact to the cloud. Longer than edge.sync_every.',
      default: '7d',
      min: '1m',
      max: '366d',
    }),
    grantHorizon: duration({
      help: 'How long the tokens granted to a device should last without contact, at its burn rate.',
      default: '24h',
      min: '1m',
      max: '366d',
    }),
    policyUsable: duration({
      help: 'How long a device may decide by its current rules without contact to the cloud. Longer than edge.sync_every.',
      default: '30d',
      min: '1m',
      max: '3660d',
    }),
    syncEvery: duration({
      reloadable: true,
      help: 'Maximum interval between two reports of a device.',
      default: '5m',
      min: '1s',
      max: '30d',
    }),
    settleAfter: duration({
      reloadable: true,
      help: 'Time without contact after which the cloud settles the tokens of a device.',
      default: '30d',
      min: '1h',
      max: '3660d',
    }),
    settleAs: choice(['charge', 'release'], {
      reloadable: true,
      help: 'How these tokens are settled: "charge" counts them as used until the device reports otherwise; "release" returns them to the pool. If the device has used released tokens, more may be used than was sold; edge.settle_after must be at least edge.grant_lifetime.',
      default: 'charge',
    }),
    settlePercentMax: integer({
      reloadable: true,
      help: 'Maximum percentage of the devices that may be settled within 24 hours, at least one device. If more are due, settlement waits until an administrator confirms it. 100: no limit.',
      default: 25,
      min: 1,
      max: 100,
    }),
    attachesMax: integer({
      reloadable: true,
      help: 'Maximum number of attaches of a device within an hour. Two devices with one identity fence each other with each attach.',
      default: 12,
      min: 1,
      max: 1_000_000,
    }),
    receiptMargin: duration({
      reloadable: true,
      help: 'How long devices keep acknowledged entries, so that they can send them again to a cloud that was restored from a backup. Set it to at least the maximum age of your newest backup.',
      default: '7d',
      min: '1m',
      max: '366d',
    }),
  },
  push: {
    broker: choice(['embedded', 'external', 'off'], {
      help: 'Broker for change notifications to devices: embedded in the cloud, external (required for several nodes), or off.',
      default: 'embedded',
    }),
    host: text({ help: 'Address that the embedded broker listens on.', default: '127.0.0.1' }),
    port: integer({
      help: 'Port that the embedded broker listens on; 0: any free port.',
      default: 7083,
      min: 0,
      max: 65_535,
    }),
    publicUrl: url({
      help: 'URL at which devices reach the broker. Omitted: the address of the embedded broker, or push.url. For networks that permit only HTTPS: a wss:// address.',
      default: null,
      schemes: ['mqtt', 'mqtts', 'ws', 'wss'],
    }),
    url: url({ help: 'Address of the external broker.', default: null, schemes: ['mqtt', 'mqtts', 'ws', 'wss'] }),
    username: text({ help: 'User name of the cloud at the external broker.', default: null }),
    password: secret({ help: 'Password of the cloud at the external broker.' }),
    caFile: path({
      help: 'Additional CA certificates in PEM to trust for the external broker.',
      default: null,
    }),
  },
  metrics: {
    listen: text({
      help: 'Separate address for the metrics, as host:port. Omitted: /metrics of the cloud, only from this machine or with the token.',
      default: null,
      takes: 'host:port, such as 127.0.0.1:9464 or [::1]:9464',
    }),
    token: secret({ help: 'Bearer token that clients must send to read the metrics.' }),
  },
  log: {
    level: choice(['debug', 'info', 'warn', 'error'], {
      reloadable: true,
      help: 'Minimum severity to log.',
      default: 'info',
    }),
  },
}

export const cloudOptions: OptionTable<typeof options> = { envPrefix: 'TALLYGATE_CLOUD', options }

export type CloudSettings = Settings<typeof options>
