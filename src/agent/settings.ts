/**
 * Every path, limit and habit of the agent, in one table: the TOML file, the environment, the flags, `--help` and the
 * documentation come from it.
 */
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
} from '../settings/option.ts'

const WHO = 'a list of *, user:NAME, uid:N, group:NAME and gid:N, with commas between'

const options = {
  enrollment: {
    token: secret({
      reloadable: true,
      help: 'One-time token of an administrator by which a device that belongs to no cloud yet becomes known to one.',
    }),
  },
  state: {
    directory: path({
      help: 'Where the ledger and the key of the device are kept. It must be on storage that keeps what was flushed.',
      default: '/var/lib/tallygate/agent',
    }),
    ledgerMax: bytes({
      help: 'How large the ledger may grow. A device that has been offline for so long that it is full refuses requests.',
      default: '8GiB',
      min: '64MiB',
      max: '1TiB',
    }),
    slack: bytes({
      help: 'Space kept back, in the ledger and on the disk, so that a full device can still deliver its usage.',
      default: '16MiB',
      min: '16MiB',
      max: '1GiB',
    }),
    retention: duration({
      help: 'How long delivered usage is kept, for a cloud that is restored from a backup and asks for it again.',
      default: '7d',
      min: '1h',
      max: '366d',
    }),
    retainedMax: bytes({
      help: 'Most that delivered usage takes, whatever the retention says; the oldest goes first.',
      default: '1GiB',
      min: '1MiB',
      max: '1TiB',
    }),
    writeBudget: bytes({
      reloadable: true,
      help: 'What may be written to storage in a day before the agent warns; 0: it never does. See operations for how to choose it.',
      default: '0',
      min: '0',
      max: '1TiB',
    }),
    answersMax: integer({
      help: 'Application sessions of each caller whose last answer is kept for a retry; the one of its own that was idle longest goes first.',
      default: 10_000,
      min: 1,
      max: 1_000_000,
    }),
  },
  backup: {
    maxAge: duration({
      reloadable: true,
      help: 'How old the last backup by tallygate backup may be before status and doctor warn; 0: none is expected.',
      default: '0',
      min: '0',
      max: '366d',
    }),
  },
  durability: choice(['durable', 'reserved'], {
    help: 'When an answer leaves: after the commit of its charge, or at once within a block that is reserved ahead, of which a power cut may count too much as used.',
    default: 'durable',
  }),
  reserve: {
    directory: path({
      help: 'Where a device that reserves ahead keeps what is on its way to the ledger. It must be on tmpfs, and stay over restarts.',
      default: '/run/tallygate',
    }),
    blockMax: integer({
      help: 'Most tokens of an account that are reserved ahead, unless one charge is larger: what a power cut costs at most.',
      default: 10_000,
      min: 1,
      max: 1_000_000_000,
      unit: 'tokens',
    }),
  },
  device: {
    keyFile: path({
      help: 'Private key of the device, in PEM. Left out: the agent makes one in the state directory.',
      default: null,
    }),
    nextKeyFile: path({
      help: 'With a key that is provided: the one that shall take its place, when a change is ordered.',
      default: null,
    }),
  },
  socket: {
    path: path({ help: 'Unix socket for local applications.', default: '/run/tallygate/agent.sock' }),
    mode: choice(['0600', '0660', '0666'], {
      help: 'Permissions of the socket: who may connect may spend.',
      default: '0660',
    }),
    connectionsMax: integer({ help: 'Most connections at a time.', default: 1_024, min: 1, max: 65_535 }),
    waitingMax: integer({
      help: 'Requests that are being decided or recorded at a time; more are refused with OVERLOADED.',
      default: 4_096,
      min: 1,
      max: 1_000_000,
    }),
    bodyMax: bytes({ help: 'Largest body of a request.', default: '64KiB', min: '1KiB', max: '1MiB' }),
    requestTimeout: duration({
      help: 'How long a request may take to arrive.',
      default: '30s',
      min: '1s',
      max: '10m',
    }),
    drainTimeout: duration({
      reloadable: true,
      help: 'How long a stop waits for requests under way.',
      default: '5s',
      min: '100ms',
      max: '5m',
    }),
  },
  callers: {
    use: text({
      reloadable: true,
      help: 'Who may make access requests and keep sessions of their own at the socket, by the kernel’s word on who connects.',
      default: '*',
      takes: WHO,
    }),
    observe: text({
      reloadable: true,
      help: 'Who may see the status of the agent, its log lines, and why it decided as it did.',
      default: '*',
      takes: WHO,
    }),
    administer: text({
      reloadable: true,
      help: 'Who may see and end the sessions of everybody, and have the device replace its key.',
      default: 'uid:0',
      takes: WHO,
    }),
    limits: text({
      reloadable: true,
      help: 'What callers are held to, each by the first entry that names it. Left out: nothing. Tokens that come back do not count.',
      default: null,
      takes:
        'entries such as "user:hmi = 500 tokens/h, 20 requests/s, 8 connections, 10 sessions, as machine:press-4", with semicolons between',
      max: 10_000,
    }),
  },
  sessions: {
    liveMax: integer({
      reloadable: true,
      help: 'Sessions of local applications that are live at a time; more are refused with OVERLOADED.',
      default: 1_000,
      min: 0,
      max: 100_000,
    }),
  },
  sync: {
    interval: duration({
      reloadable: true,
      help: 'Longest time between two syncs. Each one comes up to a quarter earlier, so that devices spread.',
      default: '5m',
      min: '1s',
      max: '7d',
    }),
    batch: integer({
      help: 'Ledger entries that are delivered before the interval is over.',
      default: 1_000,
      min: 1,
      max: 1_000_000,
    }),
    heartbeat: duration({
      reloadable: true,
      help: 'Longest silence of the session with the cloud before it gets a heartbeat.',
      default: '15m',
      min: '10s',
      max: '12h',
    }),
    sessionCheck: duration({
      reloadable: true,
      help: 'How often the cloud is asked for the state of the session, at the least.',
      default: '1h',
      min: '10s',
      max: '7d',
    }),
    backoffMin: duration({
      help: 'Longest wait before a sync that failed is tried again for the first time; it doubles from there.',
      default: '1s',
      min: '10ms',
      max: '5m',
    }),
    backoffMax: duration({
      help: 'Longest wait before a sync that failed is tried again.',
      default: '5m',
      min: '1s',
      max: '1d',
    }),
    stopTimeout: duration({
      reloadable: true,
      help: 'How long a stop may take to say goodbye to the cloud.',
      default: '2s',
      min: '0ms',
      max: '5m',
    }),
  },
  grants: {
    starting: integer({
      help: 'Tokens that the device wants in hand of each pool and allocation before it has used any. Its share is fair.',
      default: 100,
      min: 0,
      max: 1_000_000_000,
      unit: 'tokens',
    }),
    topUpDeadline: duration({
      reloadable: true,
      help: 'How long a request may wait for the cloud when the device is connected and its grant does not suffice.',
      default: '2s',
      min: '0ms',
      max: '60s',
    }),
    returnOnStop: toggle({
      reloadable: true,
      help: 'Give all unspent tokens back at a stop. For a device that goes away for good, or is always online.',
      default: false,
    }),
  },
  push: {
    enabled: toggle({
      help: 'Take hints over MQTT where the cloud offers them. Without them changes are found at the next sync.',
      default: true,
    }),
    username: text({
      help: 'User name of this device at a broker that keeps users of its own. Left out: the device id.',
      default: null,
    }),
    password: secret({
      help: 'Password of this device at such a broker. Left out: a token of the device, each time a fresh one.',
    }),
  },
  tls: {
    caFile: path({
      help: 'Certificates, in PEM, that the cloud may have besides those that the system trusts.',
      default: null,
    }),
  },
  status: {
    port: integer({
      help: 'Port of the status page, the metrics and the health checks; 0 takes any free one. Left out: there are none.',
      default: null,
      min: 0,
      max: 65_535,
    }),
    host: text({
      help: 'Address that they listen on. Beyond loopback they need a certificate, and a token or an authority of clients.',
      default: '127.0.0.1',
    }),
    token: secret({
      help: 'What a reader must know: as bearer token, or as the password that a browser asks for, with any user name.',
      reloadable: true,
    }),
    certificateFile: path({
      reloadable: 'between values',
      help: 'Certificate chain in PEM: with it and its key they speak HTTPS.',
      default: null,
    }),
    keyFile: path({
      reloadable: 'between values',
      help: 'Private key of the certificate, in PEM.',
      default: null,
    }),
    clientCaFile: path({
      reloadable: 'between values',
      help: 'Certificates in PEM of the authority whose clients may read: with a token as well, either of them suffices.',
      default: null,
    }),
  },
  explain: {
    decisions: integer({
      help: 'Delivered decisions that can still be explained, the newest ones. With 0, nothing is kept that only explains.',
      default: 1_000,
      min: 0,
      max: 1_000_000,
    }),
    refusals: integer({
      help: 'Requests turned away before they were decided that can be explained, the newest ones, until a restart.',
      default: 1_000,
      min: 0,
      max: 100_000,
    }),
    rulesMax: bytes({
      help: 'Most that replaced rules take that decisions were made by; the oldest go first.',
      default: '8MiB',
      min: '0B',
      max: '1GiB',
    }),
  },
  log: {
    level: choice(['debug', 'info', 'warn', 'error'], {
      reloadable: true,
      help: 'Least severity of what is logged.',
      default: 'info',
    }),
    perDayMax: bytes({
      reloadable: true,
      help: 'What the log may have of a day: lines alike are counted, and what is beyond it is left out; 0: no limit.',
      default: '960KiB',
      min: '0',
      max: '1GiB',
    }),
  },
}

export const agentOptions: OptionTable<typeof options> = { envPrefix: 'TALLYGATE_AGENT', options }

export type AgentSettings = Settings<typeof options>
