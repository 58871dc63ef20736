// Servers that tests need, such as an MQTT broker. Each kind is a list of ways to get one, tried in order: an address from
// the environment, a container, a server binary on this machine. Where none works, the tests in the scope are skipped with
// every reason; with TALLYGATE_REQUIRE_SERVERS=1 they fail instead. No test ever passes because its server was missing.
import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { pbkdf2Sync, randomBytes, randomUUID } from 'node:crypto'
import { existsSync, globSync, readFileSync, readlinkSync } from 'node:fs'
import { chown, mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { homedir, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import pg from 'pg'
import { GenericContainer, Wait } from 'testcontainers'
import { afterAll, beforeAll, beforeEach } from 'vitest'
import { messageOf } from '../../src/protocol/errors.ts'
import { freePort } from './free-port.ts'
import { onPath } from './on-path.ts'

/** A server that runs; `stop` frees everything that was started for it and is called once. */
export interface Running {
  url: string
  stop: () => Promise<void>
}

/** One way to get a server: the running server, or a sentence that says why this way is closed here. */
export type Way = () => Promise<Running | string>

/** What a test holds: the address of a server that lives as long as the file or `describe` that asked for it. */
export interface Server {
  /** Readable in tests and in beforeEach; throws where there is no server. */
  readonly url: string
}

/**
 * An MQTT broker for the calling file or `describe`, as `mqtt://host:port`: anonymous clients, no persistence.
 * A broker from TALLYGATE_TEST_MQTT_URL may be shared with other tests, so give topics a unique prefix.
 */
export function mosquitto(): Server {
  return server('mosquitto', [
    fromEnvironment('TALLYGATE_TEST_MQTT_URL'),
    fromContainer({
      image: process.env['TEST_MOSQUITTO_IMAGE'] ?? 'eclipse-mosquitto:2',
      port: 1883,
      files: [{ path: '/tmp/tallygate.conf', content: brokerSettings('listener 1883 0.0.0.0') }],
      command: ['mosquitto', '-c', '/tmp/tallygate.conf'],
      url: (host, port) => `mqtt://${host}:${port}`,
    }),
    fromBinary({
      names: ['mosquitto'],
      prepare: async (folder, port) => {
        const file = join(folder, 'mosquitto.conf')
        await writeFile(file, brokerSettings(`listener ${port} 127.0.0.1`))
        return ['-c', file]
      },
      url: (port) => `mqtt://127.0.0.1:${port}`,
    }),
  ])
}

/**
 * A NATS server with JetStream, as `nats://host:port`. One from TALLYGATE_TEST_NATS_URL may be shared with other tests: use
 * subjects and streams of your own.
 */
export function nats(): Server {
  return server('nats', [
    fromEnvironment('TALLYGATE_TEST_NATS_URL'),
    fromContainer({
      image: process.env['TEST_NATS_IMAGE'] ?? 'nats:2',
      port: 4222,
      command: ['-js'],
      url: (host, port) => `nats://${host}:${port}`,
    }),
    fromBinary({
      names: ['nats-server'],
      prepare: async (folder, port) => ['-a', '127.0.0.1', '-p', String(port), '-js', '-sd', join(folder, 'jetstream')],
      url: (port) => `nats://127.0.0.1:${port}`,
    }),
  ])
}

function brokerSettings(listener: string): string {
  return [listener, 'allow_anonymous true', 'persistence false', 'user root', ''].join('\n')
}

/** Whom a broker lets in, to what, and how it shows who it is. */
export interface BrokerGuard {
  /** User name to password. */
  readonly users: Readonly<Record<string, string>>
  /** Lines of Mosquitto's file of rights. */
  readonly rights: readonly string[]
  /** PEM; null: without TLS. */
  readonly certificate: { readonly certificate: string; readonly key: string } | null
}

/** A Mosquitto of its own that asks for user names and passwords, at `mqtts://` where it has a certificate. */
export function guardedMosquitto(name: string, make: () => Promise<BrokerGuard>): Server {
  let guard: Promise<BrokerGuard> | undefined
  const made = (): Promise<BrokerGuard> => (guard ??= make())
  let scheme = 'mqtt'
  const url = (host: string, port: number): string => `${scheme}://${host}:${port}`
  /** Files by name, and the settings that name them, for a folder at `place`. */
  const files = async (listener: string, place: string): Promise<Record<string, string>> => {
    const { users, rights, certificate } = await made()
    const lines = [listener, 'allow_anonymous false', 'persistence false', 'user root']
    lines.push(`password_file ${place}/passwords`, `acl_file ${place}/rights`)
    if (certificate !== null) {
      scheme = 'mqtts'
      lines.push(`certfile ${place}/certificate.pem`, `keyfile ${place}/key.pem`)
    }
    return {
      passwords: Object.entries(users)
        .map(([user, password]) => `${user}:${mosquittoHash(password)}\n`)
        .join(''),
      rights: `${rights.join('\n')}\n`,
      'mosquitto.conf': `${lines.join('\n')}\n`,
      ...(certificate === null ? {} : { 'certificate.pem': certificate.certificate, 'key.pem': certificate.key }),
    }
  }
  const inContainer: Way = async () => {
    const place = '/tmp/tallygate'
    const contents = await files('listener 1883 0.0.0.0', place)
    const started = await fromContainer({
      image: process.env['TEST_MOSQUITTO_IMAGE'] ?? 'eclipse-mosquitto:2',
      port: 1883,
      files: Object.entries(contents).map(([file, content]) => ({ path: `${place}/${file}`, content, mode: 0o600 })),
      command: ['mosquitto', '-c', `${place}/mosquitto.conf`],
      url,
    })()
    return typeof started === 'string' ? started : atLoopback(started)
  }
  const fromMachine = fromBinary({
    names: ['mosquitto'],
    prepare: async (folder, port) => {
      const contents = await files(`listener ${port} 127.0.0.1`, folder)
      for (const [file, content] of Object.entries(contents)) {
        await writeFile(join(folder, file), content, { mode: 0o600 })
      }
      return ['-c', join(folder, 'mosquitto.conf')]
    },
    url: (port) => url('127.0.0.1', port),
  })
  return server(name, [inContainer, fromMachine])
}

/** The same server at 127.0.0.1, the only address that certificates of tests are for: an engine has a host of its own. */
async function atLoopback({ url, stop }: Running): Promise<Running> {
  const far = new URL(url)
  const sockets = new Set<Socket>()
  const forwarder = createServer((near) => {
    const onward = connect(Number(far.port), far.hostname)
    for (const [socket, other] of [
      [near, onward],
      [onward, near],
    ] as const) {
      sockets.add(socket)
      socket.on('error', () => other.destroy())
      socket.on('close', () => {
        sockets.delete(socket)
        other.destroy()
      })
    }
    near.pipe(onward).pipe(near)
  }).listen(0, '127.0.0.1')
  await new Promise((resolve) => forwarder.once('listening', resolve))
  return {
    url: `${far.protocol}//127.0.0.1:${(forwarder.address() as AddressInfo).port}`,
    stop: async () => {
      const closed = new Promise((resolve) => forwarder.close(resolve))
      for (const socket of sockets) socket.destroy()
      await closed
      await stop()
    },
  }
}

/** As mosquitto_passwd writes it. */
function mosquittoHash(password: string): string {
  const salt = randomBytes(12)
  const hash = pbkdf2Sync(password, salt, 101, 64, 'sha512')
  return `$7$101$${salt.toString('base64')}$${hash.toString('base64')}`
}

/**
 * A PostgreSQL server for the calling file or `describe`, as `postgres://user:password@host:port/database`. A server from
 * TALLYGATE_TEST_POSTGRES_URL may be shared with other tests: make a schema of your own (postgres-schema.ts).
 */
export function postgres(): Server {
  return server('postgres', [
    fromEnvironment('TALLYGATE_TEST_POSTGRES_URL'),
    fromContainer({
      image: process.env['TEST_POSTGRES_IMAGE'] ?? 'postgres:17',
      port: 5432,
      environment: { POSTGRES_USER: 'test', POSTGRES_PASSWORD: 'test', POSTGRES_DB: 'test' },
      url: (host, port) => `postgres://test:test@${host}:${port}/test`,
      ready: answersQueries,
    }),
    fromBinary({
      names: ['postgres'],
      // Debian keeps the servers of all versions off the path; the newest comes first.
      folders: globSync('/usr/lib/postgresql/*/bin').sort().reverse(),
      unprivileged: true,
      prepare: async (folder, port, { path, run }) => {
        const data = join(folder, 'data')
        await makeCluster(data, dirname(path), run)
        const settings = ['listen_addresses=127.0.0.1', 'unix_socket_directories=', 'fsync=off']
        return ['-D', data, '-p', String(port), ...settings.flatMap((setting) => ['-c', setting])]
      },
      url: (port) => `postgres://test@127.0.0.1:${port}/postgres`,
      ready: answersQueries,
      // SIGTERM waits until the last client has gone.
      stopSignal: 'SIGINT',
    }),
  ])
}

const CACHE = fileURLToPath(new URL('../../node_modules/.cache', import.meta.url))

/** Makes a new cluster. Copying one takes less time than initializing it, so the first one is kept. */
async function makeCluster(data: string, programs: string, run: Tools['run']): Promise<void> {
  const initdb = join(programs, 'initdb')
  const { stdout } = await promisify(execFile)(initdb, ['--version'])
  const kept = join(CACHE, `postgres-${process.getuid?.()}-${stdout.trim().replaceAll(/\W+/g, '-')}`)
  const args = ['-U', 'test', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync']
  // Keeps the owner: PostgreSQL opens no files of another user.
  const copy = (from: string, to: string) => promisify(execFile)('cp', ['-a', from, to])
  if (existsSync(kept)) {
    await copy(kept, data)
    return
  }
  await run(initdb, ['-D', data, ...args])
  await mkdir(CACHE, { recursive: true })
  const copied = `${kept}-${randomUUID()}`
  await copy(data, copied)
  // Another process may have kept one meanwhile.
  await rename(copied, kept).catch(() => rm(copied, { recursive: true }))
}

/** Credentials and bucket of {@link s3}. */
export const S3_TEST = { accessKeyId: 'test-access', secretAccessKey: 'test-secret', bucket: 'usage' }

/**
 * An S3-compatible store that checks signatures, for the calling file or `describe`, with {@link S3_TEST}. One from
 * TALLYGATE_TEST_S3_URL may be shared with other tests: use a prefix of your own.
 */
export function s3(): Server {
  const { accessKeyId, secretAccessKey, bucket } = S3_TEST
  const args = (port: number) => ['--access', accessKeyId, '--secret', secretAccessKey, '--port', `127.0.0.1:${port}`]
  return server('s3', [
    fromEnvironment('TALLYGATE_TEST_S3_URL'),
    fromBinary({
      names: ['versitygw'],
      folders: [join(homedir(), 'go', 'bin')],
      prepare: async (folder, port) => {
        await mkdir(join(folder, 'data', bucket), { recursive: true })
        await mkdir(join(folder, 'attributes'))
        return [...args(port), '--quiet', 'posix', '--sidecar', join(folder, 'attributes'), join(folder, 'data')]
      },
      url: (port) => `http://127.0.0.1:${port}`,
    }),
  ])
}

/** A server that still starts accepts connections, to say that it is not ready. */
export async function answersQueries(url: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 })
  client.on('error', () => undefined)
  try {
    await client.connect()
    await client.query('SELECT 1')
    return true
  } catch {
    return false
  } finally {
    await client.end().catch(() => undefined)
  }
}

/**
 * Opens the first way that works before the tests of the calling scope and stops the server after them.
 * Call it at the top of a file or `describe`, never inside a test.
 */
export function server(name: string, ways: Way[], required = process.env['TALLYGATE_REQUIRE_SERVERS'] === '1'): Server {
  let running: Running | undefined
  let missing = `${name} is not started yet: read its address in a test or in beforeEach`
  beforeAll(async () => {
    const found = await firstOf(ways)
    if (typeof found !== 'string') {
      running = found
      return
    }
    missing = `needs ${name}: ${found}`
    if (required) throw new Error(`${missing} (TALLYGATE_REQUIRE_SERVERS forbids to skip)`)
  })
  beforeEach(({ skip }) => skip(running === undefined, missing))
  afterAll(async () => running?.stop())
  return {
    get url() {
      if (running === undefined) throw new Error(missing)
      return running.url
    },
  }
}

/** Tries the ways in order: the first running server, or all reasons joined into one sentence. */
export async function firstOf(ways: Way[]): Promise<Running | string> {
  const reasons: string[] = []
  for (const way of ways) {
    const found = await way()
    if (typeof found !== 'string') return found
    reasons.push(found)
  }
  return reasons.join('; ')
}

/** A server that runs outside the tests, by its address in the environment variable `name`. */
export function fromEnvironment(name: string): Way {
  return async () => {
    const url = process.env[name]
    return url === undefined || url === '' ? `${name} is not set` : { url, stop: async () => undefined }
  }
}

export interface ContainerServer {
  image: string
  port: number
  /** Without it the image's own command runs. */
  command?: string[]
  environment?: Record<string, string>
  files?: { path: string; content: string; mode?: number }[]
  url: (host: string, port: number) => string
  /** Whether the server does its work; it is asked until it says so. Without it, listening is enough. */
  ready?: (url: string) => Promise<boolean>
}

/** A container by whatever Docker-compatible engine testcontainers finds. */
function fromContainer({ image, port, command, environment = {}, files = [], url, ready }: ContainerServer): Way {
  return async () => {
    try {
      const description = new GenericContainer(image)
        .withExposedPorts(port)
        .withEnvironment(environment)
        .withWaitStrategy(Wait.forListeningPorts())
        .withStartupTimeout(60_000)
      if (command !== undefined) description.withCommand(command)
      description.withCopyContentToContainer(files.map(({ path, ...file }) => ({ target: path, ...file })))
      const container = await description.start()
      const address = url(container.getHost(), container.getMappedPort(port))
      const stop = async (): Promise<void> => {
        await container.stop()
      }
      if (ready === undefined || (await until(() => ready(address), 60_000))) return { url: address, stop }
      await stop()
      return `the container of ${image} did not become ready`
    } catch (error) {
      return `no container of ${image} (${messageOf(error)})`
    }
  }
}

export interface BinaryServer {
  /** Names of the executable; the first one found on PATH or in the system's folders for daemons is taken. */
  names: string[]
  /** Where else to look. */
  folders?: string[]
  /** The server refuses to run as root: where the tests do, it gets another user. */
  unprivileged?: boolean
  /** Writes what the server needs into its temporary folder; the result is its arguments, to listen on 127.0.0.1 at `port`. */
  prepare: (folder: string, port: number, tools: Tools) => Promise<string[]>
  url: (port: number) => string
  /** Whether the server does its work; it is asked until it says so. Without it, listening is enough. */
  ready?: (url: string) => Promise<boolean>
  stopSignal?: NodeJS.Signals
}

/** What a preparation may use. */
interface Tools {
  /** Of the executable. */
  path: string
  /** Runs a program to its end, as the user of the server. */
  run: (program: string, args: string[]) => Promise<void>
}

/** A server binary of this machine, on a free port, with a temporary folder that goes when it stops. */
export function fromBinary(binary: BinaryServer): Way {
  return async () => {
    const path = onPath(binary.names, binary.folders)
    if (path === undefined) return `no ${binary.names.join(' or ')} on PATH`
    let reason = ''
    // Between choosing a free port and binding it, another process may take it: that is worth another try, with another port.
    for (let attempt = 0; attempt < 3; attempt++) {
      const started = await launch(binary, path, await freePort())
      if (typeof started !== 'string') return started
      reason = started
    }
    return reason
  }
}

async function launch(binary: BinaryServer, path: string, port: number): Promise<Running | string> {
  const folder = await mkdtemp(join(tmpdir(), 'tallygate-server-'))
  const user = binary.unprivileged === true && process.getuid?.() === 0 ? anotherUser() : undefined
  let args: string[]
  try {
    if (user !== undefined) await chown(folder, user.uid, user.gid)
    const run = async (program: string, its: string[]): Promise<void> => {
      await promisify(execFile)(program, its, { cwd: folder, ...user })
    }
    args = await binary.prepare(folder, port, { path, run })
  } catch (error) {
    await rm(folder, { recursive: true, force: true })
    return `${path} could not be prepared (${messageOf(error).trim()})`
  }
  const child = spawn(path, args, { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'], ...user })
  let output = ''
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()))
  child.stderr.on('data', (chunk: Buffer) => (output += chunk.toString()))
  const ended = new Promise<void>((resolve) => {
    child.once('close', () => resolve())
    child.once('error', (error) => {
      output += error.message
      resolve()
    })
  })
  const killWithUs = (): void => void child.kill('SIGKILL')
  process.once('exit', killWithUs)
  const stop = async (): Promise<void> => {
    child.kill(binary.stopSignal ?? 'SIGTERM')
    await ended
    process.off('exit', killWithUs)
    await rm(folder, { recursive: true, force: true })
  }
  // Only the preparation knows all of it.
  const url = binary.url(port)
  const alive = (): boolean => isAlive(child)
  const works = async (): Promise<boolean> => binary.ready?.(url) ?? ((await accepts(port)) && owns(child, port))
  if ((await until(works, 15_000, alive)) && isAlive(child)) return { url, stop }
  await stop()
  return `${path} did not start (${output.trim().split('\n').at(-1) ?? 'no output'})`
}

/** The user of an installed PostgreSQL, which may read what that needs; else the user nobody. */
export function anotherUser(): { uid: number; gid: number } {
  const users = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
  const found = users.find(([name]) => name === 'postgres') ?? users.find(([name]) => name === 'nobody')
  return { uid: Number(found?.[2] ?? 65_534), gid: Number(found?.[3] ?? 65_534) }
}

/** Asks until the answer is yes: false when the process has ended, or the time is over. */
async function until(
  check: () => Promise<boolean>,
  timeoutMs: number,
  alive: () => boolean = () => true,
): Promise<boolean> {
  const deadline = performance.now() + timeoutMs
  while (alive() && performance.now() < deadline) {
    if (await check()) return true
    await pause(20)
  }
  return false
}

function isAlive(child: ChildProcess): boolean {
  return child.exitCode === null && child.signalCode === null
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })
}

/** Another process may have taken the port, and a connection to a port without a listener may reach itself. */
function owns({ pid }: ChildProcess, port: number): boolean {
  if (!existsSync('/proc/net/tcp')) return true
  const sockets = ['/proc/net/tcp', '/proc/net/tcp6'].flatMap((file) => listeningSockets(file, port))
  return globSync(`/proc/${pid}/fd/*`).some((path) => sockets.includes(linkOf(path)))
}

/** Lines of /proc/net/tcp: number, address, peer, state, and six fields later the inode. */
function listeningSockets(file: string, port: number): readonly string[] {
  const end = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  return readFileSync(file, 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([, address, , state]) => address?.endsWith(end) === true && state === '0A')
    .map(({ 9: inode }) => `socket:[${inode}]`)
}

/** Empty if it is gone. */
function linkOf(path: string): string {
  try {
    return readlinkSync(path)
  } catch {
    return ''
  }
}
