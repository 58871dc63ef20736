// A PostgreSQL cluster that Patroni manages, with the settings of docs/how-to/high-availability.md: two servers and one etcd, whose
// processes a test may kill and freeze.
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync, readFileSync } from 'node:fs'
import { chown, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { promisify } from 'node:util'
import { parse, stringify } from 'yaml'
import { Authority } from './certificates.ts'
import { runSql } from './postgres-schema.ts'
import { freePort } from './free-port.ts'
import { childrenOf, signalEach } from './processes.ts'
import { onPath } from './on-path.ts'
import { anotherUser, server } from './servers.ts'

const PAGE = new URL('../../docs/how-to/high-availability.md', import.meta.url)
const PASSWORD = 'secret-of-tests'

interface Programs {
  readonly patroni: string
  readonly patronictl: string
  readonly etcd: string
  /** Folder of those of PostgreSQL. */
  readonly postgres: string
}

/** The tests of the scope are skipped where a program is missing. Call it like those in servers.ts. */
export function patroniPrograms(): Programs {
  const folders = globSync('/usr/lib/postgresql/*/bin').sort().reverse()
  const found = {
    patroni: onPath(['patroni']),
    patronictl: onPath(['patronictl']),
    etcd: onPath(['etcd']),
    pg_rewind: onPath(['pg_rewind'], folders),
  }
  const missing = Object.entries(found).flatMap(([name, path]) => (path === undefined ? [name] : []))
  server('Patroni', [
    async () =>
      missing.length > 0 ? `no ${missing.join(', ')} on PATH` : { url: 'patroni:', stop: async () => undefined },
  ])
  const { patroni = '', patronictl = '', etcd = '', pg_rewind = '' } = found
  return { patroni, patronictl, etcd, postgres: dirname(pg_rewind) }
}

interface Place {
  readonly programs: Programs
  readonly folder: string
  readonly user: { readonly uid: number; readonly gid: number } | undefined
}

/** A program that a test may kill, and start again at the same ports. */
class Daemon {
  readonly #place: Place
  readonly #program: string
  readonly #args: readonly string[]
  #child: ChildProcess | undefined
  output = ''

  constructor(place: Place, program: string, args: readonly string[]) {
    this.#place = place
    this.#program = program
    this.#args = args
  }

  get pid(): number | undefined {
    const child = this.#child
    return child === undefined || child.exitCode !== null || child.signalCode !== null ? undefined : child.pid
  }

  start(): void {
    const { folder, user } = this.#place
    // libpq looks for certificates in the home directory.
    const env = { ...process.env, HOME: folder }
    const child = spawn(this.#program, this.#args, { cwd: folder, env, stdio: ['ignore', 'pipe', 'pipe'], ...user })
    this.#child = child
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (chunk: Buffer) => (this.output += chunk.toString()))
    }
  }

  async kill(): Promise<void> {
    const child = this.#child
    if (child === undefined || this.pid === undefined) return
    const gone = once(child, 'exit')
    child.kill('SIGKILL')
    await gone
  }
}

export class PatroniMember {
  readonly name: string
  readonly port: number
  readonly restPort: number
  readonly settings: string
  readonly #data: string
  readonly #patroni: Daemon

  constructor(place: Place, name: string, ports: readonly [port: number, restPort: number]) {
    this.name = name
    ;[this.port, this.restPort] = ports
    this.#data = join(place.folder, name)
    this.settings = join(place.folder, `${name}.yml`)
    this.#patroni = new Daemon(place, place.programs.patroni, [this.settings])
  }

  /** What Patroni logged. */
  get output(): string {
    return this.#patroni.output
  }

  start(): void {
    this.#patroni.start()
  }

  /** PostgreSQL is no child of Patroni, which may be replaced while it runs. */
  #postgres(): readonly number[] {
    try {
      const pid = Number(readFileSync(join(this.#data, 'postmaster.pid'), 'utf8').split('\n')[0])
      return [pid, ...childrenOf(pid)]
    } catch {
      return []
    }
  }

  /** As a machine that loses its power. */
  async kill(): Promise<void> {
    // It must start no other process while its own are found.
    await this.killPatroni()
    signalEach(this.#postgres(), 'SIGSTOP')
    signalEach(this.#postgres(), 'SIGKILL')
  }

  /** PostgreSQL continues. */
  async killPatroni(): Promise<void> {
    await this.#patroni.kill()
  }

  /** Patroni's answer to a health check. */
  async is(role: 'primary' | 'synchronous'): Promise<boolean> {
    const sent = fetch(`http://127.0.0.1:${this.restPort}/${role}`, { signal: AbortSignal.timeout(1_000) })
    return (await sent.catch(() => undefined))?.ok === true
  }
}

/** Shorter than on the page. A `retry_timeout` of a second is too short for a machine that is busy. */
const WAITS = { ttl: 8, loop_wait: 1, retry_timeout: 3 }

/** A standby that has not followed an idle primary after this time needs the next file of its log. */
const IDLE_MS = 30_000

interface Settings {
  bootstrap: { dcs: object }
  postgresql: { parameters: object; authentication: Record<string, { username: string; password: string }> }
}

export class PatroniCluster implements AsyncDisposable {
  readonly members: readonly [PatroniMember, PatroniMember]
  readonly etcd: Daemon
  readonly #place: Place
  readonly #authority: Authority

  private constructor(place: Place, authority: Authority, etcd: Daemon, members: [PatroniMember, PatroniMember]) {
    this.#place = place
    this.#authority = authority
    this.etcd = etcd
    this.members = members
  }

  static async start(programs: Programs): Promise<PatroniCluster> {
    const folder = await mkdtemp(join(tmpdir(), 'tallygate-patroni-'))
    const user = process.getuid?.() === 0 ? anotherUser() : undefined
    const place = { programs, folder, user }
    const authority = await Authority.make()
    const [client, peer] = [await freePort(), await freePort()].map((port) => `http://127.0.0.1:${port}`)
    const etcd = new Daemon(place, programs.etcd, [
      ...['--data-dir', join(folder, 'etcd'), '--listen-client-urls', client!, '--advertise-client-urls', client!],
      ...['--listen-peer-urls', peer!, '--initial-advertise-peer-urls', peer!, '--initial-cluster', `default=${peer}`],
    ])
    const members = [
      new PatroniMember(place, 'db-a', [await freePort(), await freePort()]),
      new PatroniMember(place, 'db-b', [await freePort(), await freePort()]),
    ] as [PatroniMember, PatroniMember]
    const cluster = new PatroniCluster(place, authority, etcd, members)
    try {
      await cluster.#begin(new URL(client!).host)
      return cluster
    } catch (error) {
      await cluster[Symbol.asyncDispose]()
      throw error
    }
  }

  async #begin(etcd: string): Promise<void> {
    const { folder, user, programs } = this.#place
    const { certificate, key } = await this.#authority.certify(Date.now() + 86_400_000)
    const [certFile, keyFile] = [join(folder, 'server.pem'), join(folder, 'server.key')]
    await writeFile(certFile, certificate)
    await writeFile(keyFile, key, { mode: 0o600 })
    await writeFile(join(folder, 'ca.pem'), this.#authority.certificate)
    await mkdir(join(folder, 'sockets'))
    const page = /```yaml\n([^]*?)```/.exec(readFileSync(PAGE, 'utf8'))?.[1] ?? ''
    for (const { name, port, restPort, settings: file } of this.members) {
      const settings = parse(page) as Settings
      const { bootstrap, postgresql } = settings
      Object.assign(bootstrap.dcs, WAITS)
      Object.assign(postgresql.parameters, {
        ssl_cert_file: certFile,
        ssl_key_file: keyFile,
        unix_socket_directories: join(folder, 'sockets'),
        // These servers lose their processes, never their machine.
        fsync: 'off',
      })
      for (const each of Object.values(postgresql.authentication)) each.password = PASSWORD
      const address = (port: number) => ({ listen: `127.0.0.1:${port}`, connect_address: `127.0.0.1:${port}` })
      const places = {
        ...address(port),
        data_dir: join(folder, name),
        bin_dir: programs.postgres,
        pgpass: join(folder, `${name}.pgpass`),
      }
      const mine = {
        name,
        restapi: address(restPort),
        etcd3: { hosts: etcd },
        postgresql: { ...postgresql, ...places },
      }
      await writeFile(file, stringify({ ...settings, ...mine }))
    }
    if (user !== undefined) {
      for (const path of [folder, join(folder, 'sockets'), certFile, keyFile]) await chown(path, user.uid, user.gid)
    }
    this.etcd.start()
    const [first, second] = this.members
    first.start()
    await this.hasPrimary(first)
    await runSql(this.urlOf(first, 'postgres', 'postgres'), `CREATE ROLE tallygate LOGIN PASSWORD '${PASSWORD}'`)
    await runSql(
      this.urlOf(first, 'postgres', 'postgres'),
      'CREATE DATABASE tallygate OWNER tallygate ENCODING UTF8 TEMPLATE template0',
    )
    second.start()
    const inStep = this.inStep()
    // A fresh standby sometimes requests the next file of the log, which a primary that writes nothing never begins.
    while (await Promise.race([inStep.then(() => false), pause(IDLE_MS, true, { ref: false })])) {
      await runSql(this.urlOf(first, 'postgres', 'postgres'), 'SELECT pg_switch_wal()')
    }
  }

  /** Waits until this member is the primary. */
  hasPrimary(member: PatroniMember): Promise<void> {
    return this.#until(() => member.is('primary'))
  }

  /** Waits until there is a primary, and a standby that has all that it confirms. Returns the primary. */
  async inStep(): Promise<PatroniMember> {
    const [first, second] = this.members
    let primary: PatroniMember | undefined
    await this.#until(async () => {
      if ((await first.is('primary')) && (await second.is('synchronous'))) primary = first
      else if ((await second.is('primary')) && (await first.is('synchronous'))) primary = second
      return primary !== undefined
    })
    return primary!
  }

  async #until(check: () => Promise<boolean>): Promise<void> {
    const deadline = performance.now() + 120_000
    while (!(await check())) {
      if (performance.now() > deadline) {
        const outputs = this.members.map(({ name, output }) => `${name}:\n${output.slice(-4_000)}`)
        throw new Error([...outputs, `etcd:\n${this.etcd.output.slice(-2_000)}`].join('\n'))
      }
      await pause(50)
    }
  }

  /** Runs `patronictl`. */
  async ctl(...args: string[]): Promise<string> {
    const { programs, folder, user } = this.#place
    const options = { cwd: folder, env: { ...process.env, HOME: folder, LC_ALL: 'C.UTF-8' }, ...user }
    return (await promisify(execFile)(programs.patronictl, ['-c', this.members[0].settings, ...args], options)).stdout
  }

  urlOf({ port }: PatroniMember, user = 'tallygate', database = 'tallygate'): string {
    return `postgres://${user}:${PASSWORD}@127.0.0.1:${port}/${database}?${this.#tls}`
  }

  /** Names both servers. */
  get url(): string {
    const hosts = this.members.map(({ port }) => `127.0.0.1:${port}`).join(',')
    return `postgres://tallygate:${PASSWORD}@${hosts}/tallygate?${this.#tls}`
  }

  get #tls(): string {
    return `sslmode=verify-full&sslrootcert=${join(this.#place.folder, 'ca.pem')}`
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const each of this.members) await each.kill()
    await this.etcd.kill()
    await this.#authority[Symbol.asyncDispose]()
    await rm(this.#place.folder, { recursive: true, force: true })
  }
}
