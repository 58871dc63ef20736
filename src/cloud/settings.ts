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
  text,
  toggle,
  url,
} from '../settings/option.ts'

const options = {
  http: {
    host: text({
      help: 'Address to listen on. Loopback unless the twin is to be reached from elsewhere.',
      default: '127.0.0.1',
    }),
    port: integer({ help: 'Port to listen on; 0 takes any free one.', default: 7080, min: 0, max: 65_535 }),
    prefix: text({
      help: 'Path below which the areas of the service are.',
      default: '/dynamicmonetization',
      takes: 'a path that begins with a slash and does not end with one',
      max: 200,
    }),
    publicUrl: url({
      help: 'How devices and clients reach the twin, without the prefix, where that is not the address that it listens on.',
      default: null,
      schemes: ['http', 'https'],
    }),
    bodyMax: bytes({ help: 'Largest body of a request to the service.', default: '1MiB', min: '1KiB', max: '64MiB' }),
    requestsMax: integer({
      help: 'Requests under way at a time; more are answered with OVERLOADED.',
      default: 1_000,
      min: 1,
      max: 1_000_000,
    }),
    requestsPerKeyMax: integer({
      help: 'Of these, with tokens of one registered key; more are answered with KEY_BUSY. A device may have 16.',
      default: 500,
      min: 1,
      max: 1_000_000,
    }),
    requestTimeout: duration({
      help: 'Longest that a request may take to arrive as a whole. Long enough for a device on a slow line.',
      default: '2m',
      min: '1s',
      max: '1h',
    }),
    checkAnswers: toggle({
      help: 'Hold every answer against what its operation declares; a wrong one becomes INTERNAL. For tests and trials.',
      default: false,
    }),
    drainTimeout: duration({
      reloadable: true,
      help: 'How long a stop waits for requests under way.',
      default: '10s',
      min: '100ms',
      max: '5m',
    }),
  },
  tls: {
    certificateFile: path({
      reloadable: 'between values',
      help: 'Certificate chain in PEM. With it and its key the twin speaks HTTPS; without them put it behind a proxy.',
      default: null,
    }),
    keyFile: path({
      reloadable: 'between values',
      help: 'Private key of the certificate, in PEM.',
      default: null,
    }),
  },
  db: url({
    help: 'Database on PostgreSQL, which several nodes may share. Left out: a file in the directory of the store.',
    default: null,
    schemes: ['postgres', 'postgresql'],
  }),
  dbPassword: secret({
    help: 'Password for db; it takes the place of one in the URL, which other users of the machine can see in a flag.',
  }),
  dbWait: duration({
    help: 'How long a start waits for a database on PostgreSQL that does not answer, before it ends with exit code 69.',
    default: '1m',
    min: '0',
    max: '1h',
  }),
  store: {
    path: path({
      help: 'Directory of the database and of the keys that the twin makes. It must be on storage that keeps what was flushed.',
      default: '/var/lib/tallygate/cloud',
    }),
    restored: toggle({
      help: 'The database comes from a backup: begin a recovery, also where the sales mark does not show it. For the first start after a restore.',
      default: false,
    }),
    check: toggle({
      help: 'Verify the whole database at each start, about a second per gigabyte.',
      default: true,
    }),
  },
  keys: {
    delay: duration({
      help: 'After what time a saved key begins, and a deleted one ends, to verify tokens. The original takes up to 10m.',
      default: '0',
      min: '0',
      max: '10m',
    }),
    replaceSigning: text({
      help: 'Thumbprint of a signing key that takes the place of a lost one. Every device must then be enrolled again.',
      default: null,
      max: 100,
    }),
  },
  policy: {
    undecidedClock: choice(['allow', 'refuse'], {
      help: 'What a device does whose clock cannot tell whether the window of a line item is open.',
      default: 'allow',
    }),
    cacheMax: integer({
      help: 'Instances whose rules are kept ready in memory.',
      default: 1_000,
      min: 1,
      max: 1_000_000,
    }),
  },
  sessions: {
    sweepEvery: duration({
      help: 'How often to look for sessions whose automatic charge, heartbeat or end is due.',
      default: '1s',
      min: '100ms',
      max: '5m',
    }),
    trialInterval: duration({
      help: 'For trials: length of the interval that a session pays for, in place of session.charge.period. 0: none.',
      default: '0',
      min: '0',
      max: '24h',
    }),
  },
  usage: {
    tenantId: text({
      help: 'Name of the producer in exported usage records.',
      default: 'tallygate',
      max: 200,
    }),
  },
  edge: {
    grantLifetime: duration({
      reloadable: true,
      help: 'How long a device may spend what it holds without hearing from the twin.',
      default: '7d',
      min: '1m',
      max: '366d',
    }),
    grantHorizon: duration({
      help: 'How long the tokens granted to a device should last without contact, at the rate at which it spends.',
      default: '24h',
      min: '1m',
      max: '366d',
    }),
    policyUsable: duration({
      help: 'How long a device may decide by the rules that it has without hearing from the twin.',
      default: '30d',
      min: '1m',
      max: '3660d',
    }),
    syncEvery: duration({
      reloadable: true,
      help: 'How often a device should report at least.',
      default: '5m',
      min: '1s',
      max: '30d',
    }),
    settleAfter: duration({
      reloadable: true,
      help: 'After how long without a word what a device holds is settled.',
      default: '30d',
      min: '1h',
      max: '3660d',
    }),
    settleAs: choice(['charge', 'release'], {
      reloadable: true,
      help: 'How it is settled: "charge" counts it as used until the device says otherwise; "release" gives it back to the pool, at the risk that the device has used it: then more may be used than was sold.',
      default: 'charge',
    }),
    settlePercentMax: integer({
      reloadable: true,
      help: 'Percent of the devices that may be settled within 24 hours, at least one; when more are due, settlement waits until an administrator confirms it. 100: no limit.',
      default: 25,
      min: 1,
      max: 100,
    }),
    attachesMax: integer({
      reloadable: true,
      help: 'How often a device may attach within an hour: two devices with one identity fence each other with each attach.',
      default: 12,
      min: 1,
      max: 1_000_000,
    }),
    receiptMargin: duration({
      reloadable: true,
      help: 'How long devices keep what the twin has acknowledged, so that they can send it again to a twin that was restored from a backup. At least as long as the newest backup may be old.',
      default: '7d',
      min: '1m',
      max: '366d',
    }),
  },
  push: {
    broker: choice(['embedded', 'external', 'off'], {
      help: 'Where change notifications to devices go: a broker inside the twin, one that somebody else runs (for several nodes), or nowhere.',
      default: 'embedded',
    }),
    host: text({ help: 'Address that the embedded broker listens on.', default: '127.0.0.1' }),
    port: integer({
      help: 'Port that the embedded broker listens on; 0 takes any free one.',
      default: 7083,
      min: 0,
      max: 65_535,
    }),
    publicUrl: url({
      help: 'How devices reach the broker, where that is not the address that it listens on, or push.url.',
      default: null,
      schemes: ['mqtt', 'mqtts'],
    }),
    url: url({ help: 'Address of the external broker.', default: null, schemes: ['mqtt', 'mqtts'] }),
    username: text({ help: 'User name of the twin at the external broker.', default: null }),
    password: secret({ help: 'Password of the twin at the external broker.' }),
    caFile: path({
      help: 'Certificates in PEM that the external broker is trusted by, besides those of the system.',
      default: null,
    }),
  },
  metrics: {
    listen: text({
      help: 'Address of their own for the metrics, as host:port. Left out: /metrics of the twin, for this machine alone or with the token.',
      default: null,
      takes: 'host:port, such as 127.0.0.1:9464 or [::1]:9464',
    }),
    token: secret({ help: 'Bearer token without which nobody gets the metrics.' }),
  },
  log: {
    level: choice(['debug', 'info', 'warn', 'error'], {
      reloadable: true,
      help: 'Least severity of what is logged.',
      default: 'info',
    }),
  },
}

export const cloudOptions: OptionTable<typeof options> = { envPrefix: 'TALLYGATE_CLOUD', options }

export type CloudSettings = Settings<typeof options>
