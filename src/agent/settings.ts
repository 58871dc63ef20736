/** The agent's option table. The TOML file, environment, flags, `--help` and documentation are generated from it. */
import {
  type OptionTable,
  type Settings,
  bytes,
  choice,
  duration,
  integer,
  optionalSecret,
  path,
  secret,
  text,
  toggle,
  url,
} from '../settings/option.ts'

const WHO = 'a comma-separated list of *, user:NAME, uid:N, group:NAME and gid:N'

const options = {
  enrollment: {
    token: optionalSecret({
      reloadable: true,
      help: 'One-time token from an administrator that enrolls this device with a cloud. The default file is used if the agent can read it. After the enrollment, the file may be deleted.',
      file: '/etc/tallygate/enrollment-token',
    }),
  },
  state: {
    directory: path({
      help: 'Directory of the ledger and the device key. It must be on storage that keeps flushed data in a power cut.',
      default: '/var/lib/tallygate/agent',
    }),
    ledgerMax: bytes({
      help: 'Maximum size of the ledger. A device that was offline until its ledger is full refuses requests.',
      default: '8GiB',
      min: '64MiB',
      max: '1TiB',
    }),
    diskReserve: bytes({
      help: 'Space reserved in the ledger and on the disk so that a full device can still deliver its usage.',
      default: '16MiB',
      min: '16MiB',
      max: '1GiB',
    }),
    retention: duration({
      help: 'How long delivered usage is kept, in case a cloud restored from a backup requests it again.',
      default: '7d',
      min: '1h',
      max: '366d',
    }),
    retainedMax: bytes({
      help: 'Maximum size of delivered usage, regardless of the retention; the oldest is deleted first.',
      default: '1GiB',
      min: '1MiB',
      max: '1TiB',
    }),
    writeBudget: bytes({
      reloadable: true,
      help: 'Bytes written to storage per day above which the agent warns; 0: never. See docs/how-to/operate-devices.md for how to choose it.',
      default: '0',
      min: '0',
      max: '1TiB',
    }),
    answersMax: integer({
      help: 'Application sessions per caller whose last response is kept for retries; the caller’s longest idle session is dropped first.',
      default: 10_000,
      min: 1,
      max: 1_000_000,
    }),
  },
  backup: {
    maxAge: duration({
      reloadable: true,
      help: 'Maximum age of the last backup by tallygate backup before status and doctor warn; 0: no backup is expected.',
      default: '0',
      min: '0',
      max: '366d',
    }),
  },
  durability: choice(['durable', 'write-behind'], {
    help: 'durable: charges are written to disk before the response. write-behind: the response is sent at once from a reservation on disk; a power cut may count the unused part of the reservation as used.',
    default: 'durable',
  }),
  writeBehind: {
    directory: path({
      help: 'With durability "write-behind": directory for entries not yet in the ledger. Use tmpfs: elsewhere, each decision wears out the storage. If a restart of the agent empties it, open reservations count as used.',
      default: '/run/tallygate',
    }),
    reservationMax: integer({
      help: 'Maximum reservation per account, unless one charge is larger. A power cut costs at most this many tokens per account.',
      default: 10_000,
      min: 1,
      max: 1_000_000_000,
      unit: 'tokens',
    }),
  },
  device: {
    keyFile: path({
      help: 'Private key of the device, P-256 or Ed25519, in PEM. Omitted: the agent generates one in the state directory.',
      default: null,
    }),
    nextKeyFile: path({
      help: 'With device.key_file: the next private key, used when an administrator rotates the key.',
      default: null,
    }),
  },
  socket: {
    path: path({ help: 'Unix socket for local applications.', default: '/run/tallygate/agent.sock' }),
    mode: choice(['0600', '0660', '0666'], {
      help: 'File mode of the socket. Every user that can connect may spend tokens, unless callers are limited.',
      default: '0660',
    }),
    connectionsMax: integer({ help: 'Maximum number of open connections.', default: 1_024, min: 1, max: 65_535 }),
    waitingMax: integer({
      help: 'Maximum number of requests being decided or recorded; further ones are refused with OVERLOADED.',
      default: 4_096,
      min: 1,
      max: 1_000_000,
    }),
    bodyMax: bytes({ help: 'Maximum size of a request body.', default: '64KiB', min: '1KiB', max: '1MiB' }),
    requestTimeout: duration({
      help: 'Maximum time for a whole request to arrive.',
      default: '30s',
      min: '1s',
      max: '10m',
    }),
    drainTimeout: duration({
      reloadable: true,
      help: 'How long a stop waits for pending requests. A stop takes up to the sum of this and sync.stop_timeout: give the service manager more time (TimeoutStopSec, stop_grace_period; 20s in the files that come with the agent).',
      default: '5s',
      min: '100ms',
      max: '5m',
    }),
  },
  callers: {
    use: text({
      reloadable: true,
      help: 'Users and groups that may make access requests and use their own sessions on the socket. The kernel identifies the caller.',
      default: '*',
      takes: WHO,
    }),
    observe: text({
      reloadable: true,
      help: 'Users and groups that may read the agent’s status, its log and the explanations of decisions.',
      default: '*',
      takes: WHO,
    }),
    administer: text({
      reloadable: true,
      help: 'Users and groups that may read and end all sessions and rotate the device key.',
      default: 'uid:0',
      takes: WHO,
    }),
    limits: text({
      reloadable: true,
      help: 'Limits of callers; the first matching entry applies. Omitted: no limits. Returned tokens do not count.',
      default: null,
      takes:
        'semicolon-separated entries such as "user:hmi = 500 tokens/h, 20 requests/s, 8 connections, 10 sessions, as machine:press-4"',
      max: 10_000,
    }),
  },
  sessions: {
    liveMax: integer({
      reloadable: true,
      help: 'Maximum number of live sessions of local applications; further ones are refused with OVERLOADED.',
      default: 1_000,
      min: 0,
      max: 100_000,
    }),
  },
  sync: {
    interval: duration({
      reloadable: true,
      help: 'Maximum time between two syncs. Each sync starts up to a quarter of it earlier, to spread devices.',
      default: '5m',
      min: '1s',
      max: '7d',
    }),
    batch: integer({
      help: 'Number of pending ledger entries that starts a sync before the interval is over.',
      default: 1_000,
      min: 1,
      max: 1_000_000,
    }),
    heartbeat: duration({
      reloadable: true,
      help: 'Maximum idle time of the session with the cloud before the agent sends a heartbeat.',
      default: '15m',
      min: '10s',
      max: '12h',
    }),
    sessionCheck: duration({
      reloadable: true,
      help: 'Maximum time between two checks of the session’s state in the cloud.',
      default: '1h',
      min: '10s',
      max: '7d',
    }),
    backoffMin: duration({
      help: 'Maximum wait before the first retry of a failed sync; it doubles with each retry.',
      default: '1s',
      min: '10ms',
      max: '5m',
    }),
    backoffMax: duration({
      help: 'Maximum wait between retries of a failed sync.',
      default: '5m',
      min: '1s',
      max: '1d',
    }),
    stopTimeout: duration({
      reloadable: true,
      help: 'How long a stop may take to sign off from the cloud.',
      default: '2s',
      min: '0ms',
      max: '5m',
    }),
  },
  grants: {
    starting: integer({
      help: 'Initial target balance of the device for each pool and allocation, before it has used any. The cloud shares pools fairly between devices.',
      default: 100,
      min: 0,
      max: 1_000_000_000,
      unit: 'tokens',
    }),
    topUpDeadline: duration({
      reloadable: true,
      help: 'How long a request may wait for a top-up from the cloud when the device is connected and its balance is too low. With 0ms, no request waits or brings tokens: the device grants only what it has received in advance (grants.starting, which must then be above 0).',
      default: '2s',
      min: '0ms',
      max: '60s',
    }),
    returnOnStop: toggle({
      reloadable: true,
      help: 'Return all unspent tokens at a stop. For devices that are retired or always online.',
      default: false,
    }),
  },
  push: {
    enabled: toggle({
      help: 'Receive change notifications over MQTT if the cloud offers them. Without them, changes arrive with the next sync.',
      default: true,
    }),
    username: text({
      help: 'User name of this device at a broker with its own users. Omitted: the device id.',
      default: null,
    }),
    password: secret({
      help: 'Password of this device at such a broker. Omitted: a fresh token of the device for each connection.',
    }),
  },
  tls: {
    caFile: path({
      help: 'Additional CA certificates in PEM to trust for the cloud, its broker and a proxy, besides those of the system.',
      default: null,
    }),
  },
  proxy: {
    url: url({
      help: 'HTTP proxy that leads to the cloud, and to a broker at a wss:// address. Omitted: HTTPS_PROXY and HTTP_PROXY of the environment.',
      default: null,
      schemes: ['http', 'https'],
    }),
    credentials: secret({ help: 'User name and password for proxy.url, as name:password.' }),
    bypass: text({
      help: 'Hosts that are reached without the proxy. Omitted: NO_PROXY of the environment. This machine is always reached directly.',
      default: null,
      takes:
        'a comma-separated list of host names (with their subdomains), addresses and networks such as 10.0.0.0/8; *: all',
    }),
  },
  status: {
    port: integer({
      help: 'Port of the status page, metrics and health checks; 0: any free port. Omitted: they are off.',
      default: null,
      min: 0,
      max: 65_535,
    }),
    host: text({
      help: 'Address of the status page. Beyond loopback, a certificate and either a token or a client CA are required.',
      default: '127.0.0.1',
    }),
    token: secret({
      help: 'Token that clients must send: as a bearer token, or as the password in a browser, with any user name.',
      reloadable: true,
    }),
    certificateFile: path({
      reloadable: 'between values',
      help: 'Certificate chain in PEM. With certificate and key, the status page uses HTTPS.',
      default: null,
    }),
    keyFile: path({
      reloadable: 'between values',
      help: 'Private key of the certificate, in PEM.',
      default: null,
    }),
    clientCaFile: path({
      reloadable: 'between values',
      help: 'CA certificates in PEM. Clients with a certificate of this CA may read; if a token is set too, either is enough.',
      default: null,
    }),
  },
  explain: {
    decisions: integer({
      help: 'Number of delivered decisions that can still be explained, newest first. 0: no explanations are stored.',
      default: 1_000,
      min: 0,
      max: 1_000_000,
    }),
    refusals: integer({
      help: 'Number of requests refused before a decision that can be explained, newest first, until a restart.',
      default: 1_000,
      min: 0,
      max: 100_000,
    }),
    rulesMax: bytes({
      help: 'Maximum size of replaced rules kept to explain decisions; the oldest are deleted first.',
      default: '8MiB',
      min: '0B',
      max: '1GiB',
    }),
  },
  log: {
    level: choice(['debug', 'info', 'warn', 'error'], {
      reloadable: true,
      help: 'Minimum severity to log.',
      default: 'info',
    }),
    perDayMax: bytes({
      reloadable: true,
      help: 'Maximum size of the log per day. Similar lines are counted, and lines beyond the limit are dropped; 0: no limit.',
      default: '960KiB',
      min: '0',
      max: '1GiB',
    }),
  },
}

export const agentOptions: OptionTable<typeof options> = { envPrefix: 'TALLYGATE_AGENT', options }

export type AgentSettings = Settings<typeof options>
